// SlotEngine: gives a running batch with slots (StepRun in engine.h) to an engine that computes given rows. It keeps the slot
// table: what the sequence in each slot feeds next, its block table, and where it ends. An order becomes one step with a row,
// or the first rows, of every sequence in a slot. Nothing is copied from step to step: the rows go to the engine and come
// back with its result.
//
// Always true:
//  (1) between an order and its result, no slot changes;
//  (2) a sequence that goes on feeds the token sampled last, at the position after the one that it fed.
// Single owner, not thread-safe.
#pragma once
#include <memory>
#include <vector>

#include "gpu/engine.h"

namespace seer {

class SlotEngine final : public Engine, private StepRun {
 public:
  /// REQUIRES: `rows` computes given rows, gives these back in StepResult::spent, and this is its only user.
  explicit SlotEngine(std::shared_ptr<Engine> rows) : rows_(std::move(rows)) {}

  const EngineInfo& info() const override { return rows_->info(); }
  void set_notify(std::function<void()> notify) override { rows_->set_notify(std::move(notify)); }
  /// REQUIRES: a StepBatch has no sequences of its own; nobody else's order is open.
  void submit(EngineWork work) override;
  std::vector<EngineResult> take_results() override;
  StepRun* step_run() override { return this; }

 private:
  struct Slot {
    bool is_used = false;
    std::optional<StepsLimit> limit;
    SequenceStep next;           // its rows in the step to come; with the engine while that runs
    int64_t gained_tokens = 0;   // since it joined
    GainedTokens untaken;        // of the step that ended
  };

  void join(int32_t slot, const SequenceStep& step, const std::optional<StepsLimit>& limit) override;
  void grant(int32_t slot, DeviceBlockId block) override;
  void leave(int32_t slot) override;
  void take(int32_t slot, int64_t steps, GainedTokens& gained) override;
  std::vector<int32_t> take_block_needs(int64_t steps) override;
  int64_t step_running() const override { return 0; }
  void split() override {}  // an order is one step
  std::optional<StepResult> take_steps_over() override { return std::nullopt; }

  Slot& at(int32_t slot) { return slots_[static_cast<size_t>(slot)]; }
  void add_rows(StepBatch& batch);
  void take_step(StepResult& result);
  bool ends(const Slot& slot) const;

  std::shared_ptr<Engine> rows_;
  std::vector<Slot> slots_;
  bool is_open_ = false;               // a step is in the engine
  std::vector<int32_t> in_step_;       // slots of its sequences
  std::vector<int32_t> needs_;         // slots that lack a block for the step to come, not told
  std::vector<SequenceStep> spent_rows_;                // memory for the next step
  std::vector<std::vector<SampledToken>> spent_samples_;  // likewise
};

/// The engine itself if it has slots of its own.
std::shared_ptr<Engine> with_slots(std::shared_ptr<Engine> engine);

}  // namespace seer
