#include "gpu/slot_engine.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "gpu/accept_draft.h"
#include "protocols/check.h"

namespace seer {
namespace {

/// Rows that give their sampled tokens to the sequence, in order: all that were sampled, but of a draft those accepted.
void accept_rows(const SequenceStep& step, const std::vector<SampledToken>& sampled, GainedTokens& gained) {
  gained.steps = 1;
  gained.rows.clear();
  gained.sampled.clear();
  if (sampled.size() < step.tokens.size()) {  // a prefill
    gained.sampled = sampled;
    return;
  }
  if (step.parents.empty()) {
    const auto draft = std::span(step.tokens).subspan(1);
    gained.rows.resize(static_cast<size_t>(acceptance_length(draft, sampled)));
    std::iota(gained.rows.begin(), gained.rows.end(), 0);
  } else {
    gained.rows = accepted_path(step.tokens, step.parents, sampled);
  }
  for (const int32_t row : gained.rows) gained.sampled.push_back(sampled[static_cast<size_t>(row)]);
}

}  // namespace

void SlotEngine::submit(EngineWork work) {
  if (auto* const batch = std::get_if<StepBatch>(&work)) add_rows(*batch);
  rows_->submit(std::move(work));
}

std::vector<EngineResult> SlotEngine::take_results() {
  std::vector<EngineResult> results = rows_->take_results();
  for (EngineResult& result : results)
    if (auto* const step = std::get_if<StepResult>(&result)) take_step(*step);
  return results;
}

// ---- who is in which slot --------------------------------------------------------------------------------------------

void SlotEngine::join(int32_t slot, const SequenceStep& step, const std::optional<StepsLimit>& limit) {
  if (static_cast<size_t>(slot) >= slots_.size()) slots_.resize(static_cast<size_t>(slot) + 1);
  Slot& s = at(slot);
  SEER_CHECK(!is_open_, slot);
  SEER_CHECK(!s.is_used, slot);
  SEER_CHECK(!limit || (step.tokens.size() == 1 && step.sample_rows == 1), slot, step.tokens.size(), step.sample_rows);
  s.is_used = true;
  s.limit = limit;
  s.next = step;
  s.gained_tokens = 0;
  s.untaken.steps = 0;
}

void SlotEngine::grant(int32_t slot, DeviceBlockId block) {
  SEER_CHECK(!is_open_, slot);
  at(slot).next.blocks.push_back(block);
}

void SlotEngine::leave(int32_t slot) {
  SEER_CHECK(!is_open_, slot);
  SEER_CHECK(at(slot).is_used, slot);
  at(slot).is_used = false;
  std::erase(needs_, slot);
}

void SlotEngine::take(int32_t slot, int64_t steps, GainedTokens& gained) {
  gained.steps = 0;
  gained.sampled.clear();
  if (steps > 0) std::swap(gained, at(slot).untaken);
}

std::vector<int32_t> SlotEngine::take_block_needs(int64_t steps) {
  return steps > 0 ? std::exchange(needs_, {}) : std::vector<int32_t>{};
}

// ---- a step ----------------------------------------------------------------------------------------------------------

void SlotEngine::add_rows(StepBatch& batch) {
  SEER_CHECK(!is_open_, batch.id);
  SEER_CHECK(batch.sequences.empty(), batch.id);
  is_open_ = true;
  batch.sequences = std::exchange(spent_rows_, {});
  batch.spent = std::exchange(spent_samples_, {});
  in_step_.clear();
  for (const bool prefills : {false, true})  // the rows of like kind together
    for (int32_t slot = 0; slot < std::ssize(slots_); ++slot) {
      const Slot& s = at(slot);
      if (s.is_used && prefills == (std::ssize(s.next.tokens) != s.next.sample_rows)) in_step_.push_back(slot);
    }
  batch.sequences.resize(in_step_.size());
  for (size_t i = 0; i < in_step_.size(); ++i) std::swap(batch.sequences[i], at(in_step_[i]).next);
}

void SlotEngine::take_step(StepResult& result) {
  is_open_ = false;
  if (!result.status.ok()) return;
  SEER_CHECK(result.spent.size() == in_step_.size(), result.id, result.spent.size(), in_step_.size());
  for (size_t i = 0; i < in_step_.size(); ++i) {
    Slot& s = at(in_step_[i]);
    std::swap(s.next, result.spent[i]);
    accept_rows(s.next, result.sampled[i], s.untaken);
    s.gained_tokens += std::ssize(s.untaken.sampled);
    if (ends(s)) {
      result.ended.push_back(in_step_[i]);
      continue;
    }
    SequenceStep& next = s.next;
    if (next.sampling->repetition_penalty != 1.0f) next.history.push_back(next.tokens[0]);
    next.tokens[0] = s.untaken.sampled[0].token;
    ++next.start;
    if (next.start >= std::ssize(next.blocks) * info().block_tokens) needs_.push_back(in_step_[i]);
  }
  spent_rows_ = std::move(result.spent);
  spent_samples_ = std::move(result.sampled);
}

bool SlotEngine::ends(const Slot& s) const {
  if (!s.limit || s.gained_tokens > s.limit->gain_max) return true;
  const int32_t token = s.untaken.sampled.back().token;
  if (token == kNotFinite) return true;
  return !s.next.sampling->ignore_eos && std::ranges::find(info().eos_ids, token) != info().eos_ids.end();
}

std::shared_ptr<Engine> with_slots(std::shared_ptr<Engine> engine) {
  if (engine->step_run() != nullptr) return engine;
  return std::make_shared<SlotEngine>(std::move(engine));
}

}  // namespace seer
