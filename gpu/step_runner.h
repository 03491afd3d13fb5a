// StepRunner: an engine used without actors: submits a step and waits for it. Also makes steps of a given shape without
// prompts, for measuring: the time of a step does not depend on the values in it.
// Used by seer score, seer profile and the benchmarks. Single owner, not thread-safe.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "gpu/engine.h"
#include "protocols/step_cost.h"

namespace seer {

/// Rows of one sequence of a step: positions [start, start + rows), the last sample_rows of them sampled.
struct SequenceShape {
  int64_t start = 0;
  int32_t rows = 1;
  int32_t sample_rows = 1;
};
using StepSequences = std::vector<SequenceShape>;

class StepRunner {
 public:
  explicit StepRunner(std::unique_ptr<Engine> engine);

  const EngineInfo& info() const { return engine_->info(); }
  StepResult run(StepBatch batch);
  /// The first error of a step.
  const Status& status() const { return status_; }
  /// How long a step of a running batch takes whose sequences decode from these positions on: the mean of `steps`, with as many orders
  /// open as the engine takes. REQUIRES: the engine has a StepRun, and blocks for them and steps + 8 more tokens of each.
  double decoding_step_us(std::span<const SequenceShape> sequences, int32_t steps);
  /// Writes `bytes`, of one block, to each of the blocks [0, count).
  void fill_blocks(int32_t count, std::span<std::byte> bytes);
  /// Writes zeros to the blocks [0, count). Memory that was never written is one page of zeros in the cache, which
  /// attention would read faster than real KV.
  void zero_blocks(int32_t count);

 private:
  EngineResult run_work(EngineWork work);
  EngineResult wait();

  std::mutex mutex_;
  std::condition_variable wake_;
  bool ready_ = false;              // guarded by mutex_
  Status status_;
  std::deque<EngineResult> results_;  // taken and not yet given back
  std::unique_ptr<Engine> engine_;  // last: its thread calls the notifier, which uses the above
};

StepShape step_shape(std::span<const SequenceShape> sequences);
/// Median time of a few such steps, or the time of one if it takes long, after a step to warm up.
double typical_step_us(StepRunner& engine, std::span<const SequenceShape> sequences);
/// KV blocks that synthetic_step() uses.
int64_t blocks_of(std::span<const SequenceShape> sequences, int64_t block_tokens);
/// A step of this shape over blocks from 0 on, with some tokens and plain sampling. REQUIRES: the engine has the
/// blocks.
StepBatch synthetic_step(const EngineInfo& info, std::span<const SequenceShape> sequences);

/// Engines that run beside the measured one, like the other instances of a rollout. They repeat its step with KV of their own,
/// so that caches and memory are shared as in a rollout.
class StepNeighbours {
 public:
  /// Begins with steps[0]. REQUIRES: every engine has KV for each of the steps.
  StepNeighbours(std::vector<std::unique_ptr<Engine>> engines, std::vector<StepSequences> steps);
  void go_to(size_t step) { step_.store(step); }

 private:
  const std::vector<StepSequences> steps_;
  std::atomic<size_t> step_ = 0;
  std::vector<std::jthread> threads_;  // last: they use the above
};

}  // namespace seer
