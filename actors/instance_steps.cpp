// The part of instance_actor that gives an engine several steps at once, as simulated ones take them: how many, which
// blocks they need when, and what they bring. Chunks end, tokens and KV go out, and others come in as if steps were single.
#include <algorithm>
#include <utility>

#include "actors/instance_actor.h"

namespace seer {

/// How many steps like the one planned come next as far as can be known here: until a chunk ends other than by a stop
/// token (where the engine ends by itself), and as long as KV blocks suffice. With drafts until tokens are due to be
/// reported, as others are chosen then; the rest is for the engine to see, by the limits given to it. What else may change
/// the plan comes as a message, and splits them. Results come when tokens are due, and prompts to be offered.
int32_t InstanceActor::steps_at_once(StepBatch& batch) {
  if (gave_way) return 1;  // without those that give way blocks may suffice from the next step on
  // While steps run room only shrinks, so that an arrival for which there is too little now goes on waiting. So does who
  // found no room in this step, unless others are asked to give way for it: not while chunks park. Drafts would be cut to
  // the room that is left, at each step otherwise.
  if (draft_budget && first_arrival_fits()) return 1;
  const bool all_in = in_step.size() == running.size();
  const auto parks = [](const auto& entry) { return entry.second->phase == Phase::kParking; };
  if (!all_in && (draft_budget || (blocks_short && std::ranges::none_of(sequences, parks)))) return 1;
  // Behind the ends of prefills all decode; with a prefill, who waited for it comes in, or for its rows.
  if (plan_memory.prefill_rows > 0 && (draft_budget || prompt_awaited || !all_in)) return 1;
  const int64_t to_report = config.report_steps - steps_since_report;
  int64_t steps = std::min<int64_t>(info.steps_max, draft_budget ? to_report : info.steps_max);
  bool prompt_due = false;
  for (const StepMember& member : in_step) {
    const Sequence& s = *member.sequence;
    if (!s.sampling->stop.empty() || !s.sampling->stop_token_ids.empty()) return 1;
    prompt_due |= has_pool(s) && s.offered_blocks < prompt_blocks(s);
    if (member.sample_rows == 0 || (prompt_due && draft_budget)) return 1;
    if (!draft_budget) steps = std::min(steps, s.tokens_left());
  }
  if (steps <= 1) return 1;
  if (draft_budget) {
    limit_drafts(batch);
    return static_cast<int32_t>(steps);
  }
  steps = plan_block_needs(steps);
  if (prompt_due && to_report > 1 && steps > 1) batch.results_after.push_back(1);
  for (int64_t due = to_report; due < steps; due += config.report_steps)
    batch.results_after.push_back(static_cast<int32_t>(due));
  return static_cast<int32_t>(steps);
}

/// While each sequence may have as long a draft, and there are blocks for it.
void InstanceActor::limit_drafts(StepBatch& batch) {
  batch.blocks_free = blocks_free = devices.counts().available();  // all of them, until somebody else takes some
  for (const StepMember& member : in_step) {
    const Sequence& s = *member.sequence;
    batch.limits.push_back({.gain_max = s.tokens_left() - (s.draft_allowed + 1),
                            .covered = std::ssize(s.table) * info.block_tokens});
  }
}

/// Which of so many steps needs which blocks. Returns how many steps there is room for.
int64_t InstanceActor::plan_block_needs(int64_t steps) {
  // The first step's blocks are in the tables. Sequences fill theirs at different steps: step k needs blocks for kv_tokens
  // + rows + k tokens.
  blocks_at_step.assign(static_cast<size_t>(steps), 0);
  unsorted_needs.clear();
  for (size_t i = 0; i < in_step.size(); ++i) {
    const StepMember& member = in_step[i];
    const Sequence& s = *member.sequence;
    for (int64_t covered = std::ssize(s.table) * info.block_tokens;; covered += info.block_tokens) {
      const int64_t step = covered - s.kv_tokens - member.rows + 1;
      if (step >= steps) break;
      ++blocks_at_step[static_cast<size_t>(step)];
      unsorted_needs.push_back({static_cast<int32_t>(step), static_cast<int32_t>(i)});
    }
  }
  const int64_t available = devices.counts().available();
  int64_t needed = 0;
  for (int64_t step = 1; step < steps; ++step) {
    needed += std::exchange(blocks_at_step[static_cast<size_t>(step)], static_cast<int32_t>(needed));
    if (needed > available) needed = blocks_at_step[static_cast<size_t>(step)], steps = step;
  }
  block_needs.resize(static_cast<size_t>(needed));
  for (const BlockNeed& need : unsorted_needs)
    if (need.step < steps) block_needs[static_cast<size_t>(blocks_at_step[static_cast<size_t>(need.step)]++)] = need;
  return steps;
}

/// Before room is looked at while several steps are in the engine: those that are over, and the one that runs, have the
/// blocks that they write to. What else they bring comes with their result, unless only that says how much drafts gained.
void InstanceActor::settle_blocks() {
  if (in_step.size() < running.size()) return split_steps();  // nobody knows who will find room where some did not
  if (draft_budget && step_open && steps_open > 1) {
    if (const std::optional<StepResult> done = parts.engine->take_steps_over()) on_steps(*done);
    take_blocks_of_drafts();
  }
  if (block_needs_met < block_needs.size()) take_needed_blocks(parts.engine->steps_over());
}

/// Those of the step that runs.
void InstanceActor::take_blocks_of_drafts() {
  const int64_t available = devices.counts().available();
  for (const StepMember& member : in_step)
    if (member.sequence != nullptr) take_blocks(*member.sequence, member.sequence->kv_tokens + member.rows);
  blocks_free -= available - devices.counts().available();
}

/// Of the steps of the batch up to this one.
void InstanceActor::take_needed_blocks(int64_t step) {
  for (; block_needs_met < block_needs.size() && block_needs[block_needs_met].step <= step; ++block_needs_met) {
    Sequence* const s = in_step[static_cast<size_t>(block_needs[block_needs_met].member)].sequence;
    const Status taken = s == nullptr ? Status{} : devices.allocate(1, s->table);
    SEER_CHECK(taken.ok(), taken.error());
  }
}

/// Before what sequences have is looked at while several steps are in the engine: those that are over take effect. The one
/// that runs is the last.
void InstanceActor::split_steps() {
  if (!step_open || steps_open == 1) return;
  if (const std::optional<StepResult> done = parts.engine->split_step()) on_steps(*done);
  for (EngineWork& work : waiting_work)
    if (auto* batch = std::get_if<StepBatch>(&work)) batch->steps = 1;
  // The step that runs holds its blocks already.
  take_needed_blocks(steps_taken);
  block_needs.resize(block_needs_met);
  if (draft_budget) take_blocks_of_drafts();
  steps_open = 1;
}

/// Steps that were in the engine together, all or the first of them.
void InstanceActor::on_steps(const StepResult& result) {
  take_figures(result, result.steps);
  const size_t members = in_step.size();
  steps_taken += result.steps;
  take_needed_blocks(steps_taken - 1);
  const int64_t available = devices.counts().available();
  for (size_t i = 0; i < members; ++i) {
    if (!draft_budget || in_step[i].sequence == nullptr) continue;
    Sequence& s = *in_step[i].sequence;
    if (s.draft_allowed > 0) verified_paths(s, result.gained_by(i));
    take_blocks(s, s.kv_tokens + std::ssize(gained_before_last(result, i)) + in_step[i].rows);
  }
  blocks_free -= available - devices.counts().available();
  // Where the end of one chunk reports of all (see answer()), they have all that they had gained before the last step.
  const auto reports_all = [&](size_t i) { return in_step[i].sequence != nullptr && !in_step[i].sequence->keep_kv; };
  for (size_t i = 0; i < members; ++i) {
    if (!reports_all(i)) continue;
    const std::span<const SampledToken> before = gained_before_last(result, i);
    if (!before.empty()) fed(*in_step[i].sequence, std::ssize(before) + in_step[i].take_prefill(), before);
  }
  for (size_t i = 0; i < members; ++i) {
    if (in_step[i].sequence == nullptr) continue;
    const size_t fed_already = reports_all(i) ? gained_before_last(result, i).size() : 0;
    const auto rest = std::span(result.sampled[i]).subspan(fed_already);
    fed(*in_step[i].sequence, std::ssize(rest) + in_step[i].take_prefill(), rest);
  }
}

/// What the step's member `i` gained in all but the last of these steps.
std::span<const SampledToken> InstanceActor::gained_before_last(const StepResult& result, size_t i) const {
  const std::span<const SampledToken> all = result.sampled[i];
  const int32_t last = result.gained.empty() ? 1 : result.gained_by(i).back();
  return all.first(all.size() - static_cast<size_t>(last));
}

}  // namespace seer
