// SlotEngine: gives a running batch with slots (StepRun in engine.h) to an engine that computes given rows. It keeps the slot
// table: what the sequence in each slot feeds next, its block table, and where it ends. An order becomes one step with a row,
// or the first rows, of every sequence that continues. While the last step is not over, the engine itself feeds the token
// which that step samples (SequenceStep::fed_by).
//
// Always true:
//  (1) a sequence that continues feeds the token sampled last, at the position after the one that it fed;
//  (2) `next` of a slot describes its rows after the newest order.
// Single owner, not thread-safe.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "gpu/engine.h"

namespace seer {

class SlotEngine final : public Engine, private StepRun {
 public:
  /// REQUIRES: `rows` computes given rows and returns them in StepResult::spent; this is its only user.
  explicit SlotEngine(std::shared_ptr<Engine> rows) : rows_(std::move(rows)) {}

  const EngineInfo& info() const override { return rows_->info(); }
  void set_notify(std::function<void()> notify) override { rows_->set_notify(std::move(notify)); }
  /// REQUIRES: a StepBatch has no sequences of its own; fewer than info().orders_max are open.
  void submit(EngineWork work) override;
  std::vector<EngineResult> take_results() override;
  StepRun* step_run() override { return this; }

 private:
  struct Slot {
    bool is_used = false;
    std::optional<StepsLimit> limit;
    SequenceStep next;
    int64_t orders = 0;          // since it joined, of which `open` have no result yet
    int32_t open = 0;
    bool has_ended = false;
    GainedTokens untaken;
  };

  void join(int32_t slot, const SequenceStep& step, const std::optional<StepsLimit>& limit) override;
  void grant(int32_t slot, DeviceBlockId block) override;
  void leave(int32_t slot) override;
  void take(int32_t slot, int64_t steps, GainedTokens& gained) override;
  std::vector<int32_t> take_block_needs(int64_t steps) override;
  bool all_go_on() const override;
  int64_t step_running() const override { return 0; }
  void split() override {}  // an order is one step
  std::optional<StepResult> take_steps_over() override { return std::nullopt; }

  Slot& at(int32_t slot) { return slots_[static_cast<size_t>(slot)]; }
  void add_rows(StepBatch& batch);
  void take_step(StepResult& result);
  void take_token(Slot& slot);
  static bool goes_on(const Slot& slot);
  bool ends_with(const Slot& slot, int32_t token) const;

  std::shared_ptr<Engine> rows_;
  std::vector<Slot> slots_;
  std::deque<std::vector<int32_t>> open_;  // per step in the engine, the slots of its sequences
  std::vector<int32_t> needs_;         // slots that lack a block after the newest order, not yet reported
  std::vector<SequenceStep> spent_rows_;                // memory for the next step
  std::vector<std::vector<SampledToken>> spent_samples_;  // likewise
};

/// Gives slots to an engine that has none; returns one that has slots unchanged.
std::shared_ptr<Engine> with_slots(std::shared_ptr<Engine> engine);

}  // namespace seer
