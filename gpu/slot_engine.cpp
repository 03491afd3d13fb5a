#include "gpu/slot_engine.h"

#include <utility>

#include "protocols/check.h"

namespace seer {

void SlotEngine::submit(EngineWork work) {
  SEER_CHECK(!std::holds_alternative<StepBatch>(work));
  if (const auto* const order = std::get_if<StepOrder>(&work)) work = rows_of(*order);
  rows_->submit(std::move(work));
}

std::vector<EngineResult> SlotEngine::take_results() {
  std::vector<EngineResult> results = rows_->take_results();
  for (EngineResult& result : results)
    if (auto* const step = std::get_if<StepResult>(&result)) take_step(*step);
  return results;
}

StepBatch SlotEngine::rows_of(const StepOrder& order) {
  const std::vector<int32_t>& in_order = slots_.begin_order();
  StepBatch batch{.id = order.id, .sequences = std::exchange(spent_rows_, {}), .spent = std::exchange(spent_samples_, {})};
  batch.sequences.resize(in_order.size());
  for (size_t i = 0; i < in_order.size(); ++i) batch.sequences[i] = slots_.next(in_order[i]);
  slots_.advance();
  return batch;
}

void SlotEngine::take_step(StepResult& result) {
  if (!result.status.ok()) {
    slots_.drop_order();
    return;
  }
  slots_.end_order(result.sampled, result);
  spent_rows_ = std::move(result.spent);
  spent_samples_ = std::move(result.sampled);
}

std::shared_ptr<Engine> with_slots(std::shared_ptr<Engine> engine) {
  if (engine->step_run() != nullptr) return engine;
  return std::make_shared<SlotEngine>(std::move(engine));
}

}  // namespace seer
