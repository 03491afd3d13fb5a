#include "gpu/slot_table.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "gpu/accept_draft.h"
#include "protocols/check.h"

namespace seer {
namespace {

/// Adds what the sequence gained in a step: all sampled tokens, or with a draft those of the accepted rows. `kept`: of each sampled
/// token, or empty.
void accept_rows(const SequenceStep& step, const std::vector<SampledToken>& sampled, std::span<const KeptList> kept, GainedTokens& gained) {
  ++gained.steps;
  gained.rows.clear();
  if (sampled.size() < step.tokens.size()) {  // a prefill
    gained.sampled.insert(gained.sampled.end(), sampled.begin(), sampled.end());
    gained.kept.insert(gained.kept.end(), kept.begin(), kept.end());
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
  if (!kept.empty())
    for (const int32_t row : gained.rows) gained.kept.push_back(kept[static_cast<size_t>(row)]);
}

}  // namespace

// ---- who is in which slot --------------------------------------------------------------------------------------------

void SlotTable::join(int32_t slot, const SequenceStep& step, const std::optional<StepsLimit>& limit) {
  if (static_cast<size_t>(slot) >= slots_.size()) slots_.resize(static_cast<size_t>(slot) + 1);
  Slot& s = at(slot);
  SEER_CHECK(open_.empty(), slot);
  SEER_CHECK(!s.is_used, slot);
  SEER_CHECK(!limit || (step.tokens.size() == 1 && step.sample_rows == 1), slot, step.tokens.size(), step.sample_rows);
  s.is_used = true;
  s.limit = limit;
  s.next = step;
  s.orders = 0;
  s.open = 0;
  s.has_ended = false;
  s.untaken = {};
}

void SlotTable::grant(int32_t slot, DeviceBlockId block) { at(slot).next.blocks.push_back(block); }

void SlotTable::leave(int32_t slot) {
  SEER_CHECK(at(slot).is_used, slot);
  at(slot).is_used = false;
  std::erase(needs_, slot);
}

void SlotTable::take(int32_t slot, int64_t steps, GainedTokens& gained) {
  gained.steps = 0;
  gained.sampled.clear();
  gained.kept.clear();
  gained.rows.clear();
  if (steps > 0) std::swap(gained, at(slot).untaken);
}

std::vector<int32_t> SlotTable::take_block_needs(int64_t steps) {
  return steps > 0 ? std::exchange(needs_, {}) : std::vector<int32_t>{};
}

bool SlotTable::all_go_on() const {
  return std::ranges::all_of(slots_, [](const Slot& s) { return !s.is_used || goes_on(s); });
}

// ---- an order --------------------------------------------------------------------------------------------------------

/// With a limit it decodes: each order gives it one token.
bool SlotTable::goes_on(const Slot& s) {
  return s.is_used && !s.has_ended && (s.limit ? s.orders <= s.limit->gain_max : s.orders == 0);
}

const std::vector<int32_t>& SlotTable::begin_order() {
  SEER_CHECK(std::ssize(open_) < info_.orders_max, open_.size());
  std::vector<int32_t>& in_order = open_.emplace_back();
  for (const bool prefills : {false, true})  // rows of the same kind together
    for (int32_t slot = 0; slot < std::ssize(slots_); ++slot)
      if (const Slot& s = at(slot); goes_on(s) && prefills == (std::ssize(s.next.tokens) != s.next.sample_rows))
        in_order.push_back(slot);
  return in_order;
}

void SlotTable::advance() {
  const std::vector<int32_t>& in_order = open_.back();
  for (size_t i = 0; i < in_order.size(); ++i) {
    Slot& s = at(in_order[i]);
    ++s.orders;
    ++s.open;
    if (!goes_on(s)) continue;
    SequenceStep& next = s.next;
    if (next.fed_by < 0 && next.sampling->repetition_penalty != 1.0f) next.history.push_back(next.tokens[0]);
    next.fed_by = static_cast<int32_t>(i);
    ++next.start;
    if (next.start >= std::ssize(next.blocks) * info_.block_tokens) needs_.push_back(in_order[i]);
  }
}

void SlotTable::end_order(const std::vector<std::vector<SampledToken>>& sampled, StepResult& result) {
  const std::vector<int32_t> in_order = std::move(open_.front());
  open_.pop_front();
  SEER_CHECK(sampled.size() == in_order.size(), result.id, sampled.size(), in_order.size());
  for (size_t i = 0; i < in_order.size(); ++i) {
    Slot& s = at(in_order[i]);
    if (!s.is_used || s.has_ended) continue;
    --s.open;
    accept_rows(s.next, sampled[i], result.kept.empty() ? std::span<const KeptList>() : result.kept[i], s.untaken);
    if (s.untaken.sampled.empty() || ends_with(s, s.untaken.sampled.back().token) || (s.open == 0 && !goes_on(s))) {
      s.has_ended = true;
      result.ended.push_back(in_order[i]);
      std::erase(needs_, in_order[i]);
    } else {
      take_token(s);
    }
  }
}

/// The next order feeds the gained token. That order is open already, or still to come.
void SlotTable::take_token(Slot& s) {
  SequenceStep& next = s.next;
  const int32_t token = s.untaken.sampled.back().token;
  if (s.open == 0) {
    next.tokens[0] = token;
    next.fed_by = -1;
  } else if (next.sampling->repetition_penalty != 1.0f) {
    next.history.push_back(token);
  }
}

bool SlotTable::ends_with(const Slot& s, int32_t token) const {
  if (token == kNotFinite) return true;
  return !s.next.sampling->ignore_eos && std::ranges::find(info_.eos_ids, token) != info_.eos_ids.end();
}

}  // namespace seer
