// SimEngine: an engine without a model. Step times come from a cost model, tokens from a seeded oracle, and a KV block holds
// the hash of its content. It runs on the timer it is given (a virtual clock), so the actors of a real rollout can be run, and
// tested with faults, in one thread.
//
// KV is the hash of the prefix, chained from block to block, and is part of each log-probability: a block in the wrong
// place, moved too late, or of another weight version changes the outputs, as it would on a real engine. With has_kv false an
// engine keeps no KV bytes and does not check this, but can do many equal steps at once (StepRun). Its copies run beside the
// steps, as on the copy engines of a GPU: a copy begins when the running step ends and delays no other. Its drafts are paths;
// trees are verified with KV only.
//
// Single owner, not thread-safe. Same calls, same results.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "gpu/engine.h"
#include "gpu/sim/sim_step_run.h"
#include "protocols/hash.h"
#include "protocols/kv.h"
#include "protocols/step_cost.h"

namespace seer {

struct SimEngineConfig {
  EngineInfo info;               // with KV, block_bytes: at least kSimTokenBytes * block_tokens, and steps_max 1
  int64_t step_us_base = 1000;   // a step costs base + rows * row
  int64_t step_us_row = 10;
  int64_t copy_us_block = 5;
  bool has_kv = true;
  int64_t stage_us = 1000;       // to read new weights, beside the steps
  std::function<Status()> stage_fault;  // if set: called for new weights: their error, if they cannot be read
  int64_t draft_ns = 0;          // to make the draft of one sequence, before the step
  std::function<int64_t(const StepShape&)> step_ns;        // if set: what a step costs instead
  std::function<int64_t(uint64_t seed)> last_position;     // of the response with this seed; needed without KV
  /// Without KV the content of drafts has no effect. This function decides how many draft tokens each of several consecutive
  /// verifies accepts. The first verify drafts after `position`, each further one after the last token sampled by the one
  /// before.
  std::function<void(uint64_t seed, int64_t position, int64_t draft_tokens, std::span<int32_t> accepted)> accepted;
  std::function<void(const StepShape&, int64_t ns, int64_t steps)> on_steps;  // if set: called as steps end
  std::function<void(uint64_t seed, int64_t ns)> on_leave;  // if set: called as a response leaves the batch, with its time there
};
inline constexpr int64_t kSimTokenBytes = 16;  // per token of a block: the hash of the prefix that ends there

class SimEngine final : public Engine, private StepRun {
 public:
  /// Runs `work` after `delay_ns` of virtual time.
  using After = std::function<void(int64_t delay_ns, std::function<void()> work)>;
  /// The empty prefix once these weights have come; {} before. Log-probabilities are made of the prefix.
  static PrefixHash root_of(WeightVersion version) { return {mix64(version.value), mix64(version.value + 1)}; }
  /// The tokens sampled from `position` on of the response with this seed. Log-probabilities are not the oracle's.
  using Oracle = std::function<void(uint64_t seed, int64_t position, std::span<SampledToken> sampled)>;
  /// now_ns: virtual time. fired_ns: the time up to which all timers of this engine have fired; it is a nanosecond before now
  /// while timers of others that are due now come first. Needed without KV only.
  struct Clock {
    std::function<int64_t()> now_ns, fired_ns;
  };

  SimEngine(SimEngineConfig config, Oracle oracle, After after, Clock clock = {});

  const EngineInfo& info() const override { return config_.info; }
  void set_notify(std::function<void()> notify) override { notify_ = std::move(notify); }
  void submit(EngineWork work) override;
  std::vector<EngineResult> take_results() override;
  StepRun* step_run() override { return config_.has_kv ? nullptr : this; }

 private:
  void join(int32_t place, const SequenceStep& step, const std::optional<StepsLimit>& limit) override;
  void grant(int32_t, DeviceBlockId) override {}  // run_ assumes that it gets the blocks it asks for
  void leave(int32_t place) override;
  void take(int32_t place, int64_t steps, GainedTokens& gained) override;
  std::vector<int32_t> take_block_needs(int64_t steps) override { return run_.take_block_needs(steps); }
  int64_t step_running() const override;
  void split() override;
  std::optional<StepResult> take_steps_over() override;

  void start_next();
  void finish_front();
  void end_front_after(int64_t delay_ns);
  void copy_beside(const CopyBatch& batch);
  void end_copy_after(int64_t delay_ns, CopyResult result);
  int64_t step_ns(const StepShape& shape) const;
  void start(const StepBatch& batch);
  const std::vector<int64_t>& ends_ns() const { return config_.has_kv ? ends_ns_ : run_.ends_ns(); }
  StepResult result_of_steps(size_t end_step);
  StepResult end_steps(const StepOrder& order);
  void sample_gained(const SimStepRun::Taken& taken, std::vector<SampledToken>& sampled);
  StepResult run(StepBatch& batch);
  std::vector<SampledToken> run_tree(const SequenceStep& sequence);
  SampledToken sample(const SequenceStep& sequence, int64_t position, const PrefixHash& prefix) const;
  CopyResult run(const CopyBatch& batch);
  WeightResult run(const SwitchWeights& weights);
  void stage(const StageWeights& weights);
  int32_t token_of(uint64_t seed, int64_t position) const;
  std::byte* token_at(const SequenceStep& sequence, int64_t position);

  SimEngineConfig config_;
  Oracle oracle_;
  After after_;
  Clock clock_;
  std::function<void()> notify_;
  std::vector<std::byte> memory_;
  std::deque<EngineWork> queue_;
  std::vector<EngineResult> results_;
  uint64_t kv_hash_of(WeightVersion version) const { return hash_pair(first_kv_hash_, version.value); }

  WeightVersion version_;                       // in use; info() has it once its WeightResult was taken
  uint64_t first_kv_hash_;                      // of the weights that it began with
  std::optional<WeightVersion> staged_;
  PrefixHash root_;                             // the empty prefix
  bool busy_ = false;
  int64_t copies_end_ns_ = 0;  // of all copies beside the steps so far

  // The step or steps at the front of the queue, while they run.
  int64_t started_ns_ = 0;
  StepShape shape_;               // with KV
  std::vector<int64_t> ends_ns_;  // with KV: the end of the step, from its start
  size_t taken_steps_ = 0;        // steps whose figures were reported

  SimStepRun run_;                // without KV
  struct Joined {
    uint64_t seed = 0;
    int64_t ns = 0;
  };
  std::vector<Joined> joined_;    // by place; with on_leave
  std::vector<SampledToken> sampled_, drafted_;  // scratch of sample_gained()
  std::shared_ptr<uint64_t> timer_ = std::make_shared<uint64_t>(0);  // a timer that is not the newest, or fires after
                                                                     // our end, does nothing
};

}  // namespace seer
