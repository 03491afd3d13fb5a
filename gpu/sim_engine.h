// SimEngine: the engine seam without a model: step times from a cost model, tokens from a seeded oracle, KV blocks whose
// bytes stand for their content. Runs on whatever timer it is given (a virtual clock), so that the very actors of a real
// rollout can be run, and be put to faults, in one thread.
//
// KV is the hash of the prefix, chained from block to block, and comes back in each log-probability: a block in the wrong
// place, moved too late, or of other weights changes the outputs, as it would on a real engine.
//
// Single owner, not thread-safe. Same calls, same results.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "gpu/engine.h"

namespace seer {

struct SimEngineConfig {
  EngineInfo info;               // block_bytes: at least kSimTokenBytes * block_tokens
  int64_t step_us_base = 1000;   // a step costs base + rows * row + prefill rows * prefill
  int64_t step_us_row = 10;
  int64_t copy_us_block = 5;
};
inline constexpr int64_t kSimTokenBytes = 16;  // per token of a block: the hash of the prefix that ends there

class SimEngine final : public Engine {
 public:
  /// Runs `work` after `delay_us` of virtual time.
  using After = std::function<void(int64_t delay_us, std::function<void()> work)>;
  /// Token sampled at `position` of the response with this seed.
  using Oracle = std::function<int32_t(uint64_t seed, int64_t position)>;

  SimEngine(SimEngineConfig config, Oracle oracle, After after);

  const EngineInfo& info() const override { return config_.info; }
  void set_notify(std::function<void()> notify) override { notify_ = std::move(notify); }
  void submit(EngineWork work) override;
  std::vector<EngineResult> take_results() override;

 private:
  void start_next();
  StepResult run(const StepBatch& batch);
  CopyResult run(const CopyBatch& batch);
  std::byte* token_at(const SequenceStep& sequence, int64_t position);

  SimEngineConfig config_;
  Oracle oracle_;
  After after_;
  std::function<void()> notify_;
  std::vector<std::byte> memory_;
  std::deque<EngineWork> queue_;
  std::vector<EngineResult> results_;
  bool busy_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // timers that fire after our end do nothing
};

}  // namespace seer
