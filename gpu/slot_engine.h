// SlotEngine: gives a running batch with slots (StepRun in engine.h) to an engine that computes given rows. An order becomes one
// step with a row, or the first rows, of every sequence that continues. While the last step is not over, the engine itself feeds
// the token which that step samples (SequenceStep::fed_by).
// Single owner, not thread-safe.
#pragma once
#include <memory>
#include <vector>

#include "gpu/engine.h"
#include "gpu/slot_table.h"

namespace seer {

class SlotEngine final : public Engine {
 public:
  /// REQUIRES: `rows` computes given rows and returns them in StepResult::spent; this is its only user.
  explicit SlotEngine(std::shared_ptr<Engine> rows) : rows_(std::move(rows)), slots_(rows_->info()) {}

  const EngineInfo& info() const override { return rows_->info(); }
  void set_notify(std::function<void()> notify) override { rows_->set_notify(std::move(notify)); }
  /// REQUIRES: it is no StepBatch; fewer than info().orders_max orders are open.
  void submit(EngineWork work) override;
  std::vector<EngineResult> take_results() override;
  StepRun* step_run() override { return &slots_; }

 private:
  StepBatch rows_of(const StepOrder& order);
  void take_step(StepResult& result);

  std::shared_ptr<Engine> rows_;
  SlotTable slots_;
  std::vector<SequenceStep> spent_rows_;                  // memory for the next step
  std::vector<std::vector<SampledToken>> spent_samples_;  // likewise
};

/// Gives slots to an engine that has none; returns one that has slots unchanged.
std::shared_ptr<Engine> with_slots(std::shared_ptr<Engine> engine);

}  // namespace seer
