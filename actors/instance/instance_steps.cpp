// The part of instance_actor that gives an engine many steps at once, as simulated ones take them (StepRun). Running
// sequences are at places of the run, which do the same in each step; what they gain is taken when somebody looks at it.
// Those that cannot go on so (a chunk ends, a prompt is prefilled, blocks are short) leave their places and are planned
// like others: chunks end, tokens and KV go out, and others come in as if steps were single.
#include <algorithm>
#include <utility>

#include "actors/instance/instance_actor.h"

namespace seer {

/// The run goes on, with those that were planned at places of their own.
void InstanceActor::start_steps() {
  if (plan_memory.sequences.empty() && rows_at_places == 0) return;
  for (const int32_t place : std::exchange(needy, {})) take_block(place);
  for (const PlannedRows& rows : plan_memory.sequences) {
    Sequence& s = *running[static_cast<size_t>(rows.sequence)];
    const bool cut = rows.draft_tokens < running_memory[static_cast<size_t>(rows.sequence)].draft_tokens;
    fill(joining, s, rows);
    if (free_places.empty()) {
      free_places.push_back(static_cast<int32_t>(in_step.size()));
      in_step.emplace_back();
    }
    s.place = free_places.back();
    free_places.pop_back();
    in_step[static_cast<size_t>(s.place)] = {&s, rows.rows, rows.sample_rows, s.spec.chunk, s.spec.yield_rank};
    rows_at_places += rows.rows;
    note_growth(s.place);
    step_run->join(s.place, joining, cut ? std::nullopt : limit_of(s, rows));
  }
  std::erase_if(unplaced, [](const Sequence* s) { return s->place != kNoPlace; });
  steps_stale = false;
  step_open = true;
  blocks_free = devices.counts().available();  // all of them, until somebody else takes some
  submit(StepBatch{.id = next_op++, .sequences = {}, .steps = steps_at_once(), .blocks_free = blocks_free});
}

/// Where it goes no further as it is; none if that is behind its first step.
std::optional<StepsLimit> InstanceActor::limit_of(const Sequence& s, const PlannedRows& rows) const {
  const bool prefills = rows.rows != rows.sample_rows;
  const bool prompt_due = has_pool(s) && s.offered_blocks < prompt_blocks(s);
  if (prefills || prompt_due || s.may_stop_anywhere()) return {};
  return StepsLimit{.gain_max = s.tokens_left() - (s.draft_allowed + 1),
                    .covered = std::ssize(s.table) * info.block_tokens};
}

/// How many steps may come before all are looked at. What else may change the plan comes as a message, and splits them.
int32_t InstanceActor::steps_at_once() const {
  if (gave_way) return 1;  // without those that give way blocks may suffice from the next step on
  // While steps run room only shrinks, so that an arrival for which there is too little now goes on waiting. So does who
  // found no room in this step, unless others are asked to give way for it: not while chunks park. Drafts would be cut to
  // the room that is left, at each step otherwise.
  if (draft_budget && first_arrival_fits()) return 1;
  if (!all_in && (draft_budget || (blocks_short && !phases.parking))) return 1;
  return std::min(info.steps_max, config.report_steps - steps_since_report);
}

/// Those at places have their blocks of the next step first, and all their rows. Where that leaves too little for the
/// others, who must get what they would among them all, they leave, and it is to be planned again: true.
bool InstanceActor::make_room_at_places(const StepPlan& plan) {
  if (rows_at_places == 0) return false;
  if (plan.rows_short) return leave_all(), true;
  if (needy.empty() || (!plan.is_cut && std::ssize(needy) <= devices.counts().available())) return false;
  for (const int32_t place : std::exchange(needy, {})) leave_fed(*in_step[static_cast<size_t>(place)].sequence);
  return true;
}

// ---- what the steps bring --------------------------------------------------------------------------------------------

/// Steps are over, behind the last of which those at these places go no further.
void InstanceActor::end_at_places(std::vector<int32_t> ended) {
  const int64_t last = step_run->step_running();
  take_needed_blocks(last);
  leave_dropped();
  const auto member = [this](int32_t place) -> StepMember& { return in_step[static_cast<size_t>(place)]; };
  std::erase_if(ended, [&](int32_t place) { return member(place).sequence == nullptr; });
  // As in a single step: those that decode come before those that prefill.
  const auto order = [&](int32_t place) {
    return std::pair{member(place).rows != member(place).sample_rows, member(place).chunk};
  };
  needy = step_run->take_block_needs(last + 1);
  // Where the end of one chunk reports how others have grown (see answer()), they have all that they had gained before the
  // last step, and those before it that of the last.
  const auto reports_growth = [&](int32_t place) {
    return member(place).sample_rows > 0 && !member(place).sequence->keep_kv;
  };
  std::vector<int32_t> fed_places = ended;
  std::ranges::sort(ended);
  if (std::ranges::any_of(ended, reports_growth)) {
    feed_growing(last);
    for (const int32_t place : needy) note_growth(place);  // perhaps in the last step
    for (const int32_t place : growing)
      if (!std::ranges::binary_search(ended, place)) fed_places.push_back(place);
  }
  std::ranges::sort(fed_places, {}, order);
  for (const int32_t place : fed_places) {
    const StepMember at = member(place);
    step_run->take(place, last + 1, gained_memory);
    if (std::ranges::binary_search(ended, place)) leave(*at.sequence);
    feed(at);
  }
}

/// What the sequence at this place has gained in so many steps takes effect. It goes on.
void InstanceActor::feed(int32_t place, int64_t steps) {
  step_run->take(place, steps, gained_memory);
  if (const StepMember at = in_step[static_cast<size_t>(place)]; gained_memory.steps > 0) feed(at);
}

/// `gained_memory` takes effect.
void InstanceActor::feed(const StepMember& at) {
  Sequence& s = *at.sequence;
  if (s.draft_allowed > 0) {
    if (s.draft.tokens.empty()) gained_memory.by_step.assign(static_cast<size_t>(gained_memory.steps), 1);
    verified_paths(s, gained_memory.by_step);
  }
  fed(s, at.rows != at.sample_rows ? at.rows : std::ssize(gained_memory.sampled), gained_memory.sampled);
}

void InstanceActor::feed_all(int64_t steps) {
  if (rows_at_places == 0) return;
  fetch_members();
  for (int32_t place = 0; place < std::ssize(in_step); ++place)
    if (in_step[static_cast<size_t>(place)].sequence != nullptr) feed(place, steps);
}

/// Its table may be ahead of it, or what was reported behind.
void InstanceActor::note_growth(int32_t place) {
  StepMember& member = in_step[static_cast<size_t>(place)];
  if (member.sequence == nullptr || member.sequence->keep_kv || member.grows) return;
  member.grows = true;
  growing.push_back(place);
}

void InstanceActor::feed_growing(int64_t steps) {
  std::erase_if(growing, [&](int32_t place) {
    StepMember& member = in_step[static_cast<size_t>(place)];
    if (member.sequence == nullptr) return true;
    feed(place, steps);
    const Sequence& s = *member.sequence;
    const int32_t blocks = blocks_needed(s.log.size(), 0, info.block_tokens);
    member.grows = std::ssize(s.table) > blocks || blocks_needed(s.reported_tokens, 0, info.block_tokens) < blocks;
    return !member.grows;
  });
}

/// What it gained and was not taken is lost.
void InstanceActor::leave(Sequence& s) {
  const int32_t place = std::exchange(s.place, kNoPlace);
  rows_at_places -= std::exchange(in_step[static_cast<size_t>(place)], {}).rows;
  add_unplaced(s);
  step_run->leave(place);
  std::erase(needy, place);
  std::erase(growing, place);
  free_places.push_back(place);
}

void InstanceActor::leave_fed(Sequence& s) {
  if (s.place == kNoPlace) return;
  feed(s.place, steps_done());
  leave(s);
}

void InstanceActor::leave_all() {
  if (rows_at_places == 0) return;
  feed_all(steps_done());
  for (const StepMember& member : in_step)
    if (member.sequence != nullptr) leave(*member.sequence);
}

/// Those whose chunks were dropped.
void InstanceActor::leave_dropped() {
  if (!std::exchange(places_dropped, false)) return;
  for (int32_t place = 0; place < std::ssize(in_step); ++place) {
    StepMember& member = in_step[static_cast<size_t>(place)];
    if (member.sequence != nullptr || member.rows == 0) continue;
    rows_at_places -= std::exchange(member, {}).rows;
    step_run->leave(place);
    free_places.push_back(place);
  }
  needy.clear();
  growing.clear();
}

/// Before what sequences have is looked at while steps run: those that are over take effect.
void InstanceActor::take_steps_over() {
  if (step_run == nullptr || !step_open) return;
  if (const std::optional<StepResult> done = step_run->take_steps_over()) take_figures(*done);
  settle_blocks();
  feed_all(step_run->step_running());
}

// ---- blocks ----------------------------------------------------------------------------------------------------------

/// Before room is looked at while steps run: those that are over, and the one that runs, have the blocks that they write to.
void InstanceActor::settle_blocks() {
  if (step_run == nullptr || !step_open) return;
  if (!all_in) split_steps();  // nobody knows who will find room where some did not
  take_needed_blocks(step_run->step_running());
}

/// For what comes behind the first `steps`.
void InstanceActor::take_needed_blocks(int64_t steps) {
  for (const int32_t place : step_run->take_block_needs(steps)) {
    take_block(place);
    --blocks_free;
  }
}

void InstanceActor::take_block(int32_t place) {
  Sequence* const s = in_step[static_cast<size_t>(place)].sequence;
  if (s == nullptr) return;
  const Status taken = devices.allocate(1, s->table);
  SEER_CHECK(taken.ok(), taken.error());
  note_growth(place);
}

/// The step that runs is the last.
void InstanceActor::split_steps() {
  if (step_run == nullptr || !step_open) return;
  step_run->split();
  for (EngineWork& work : waiting_work)
    if (auto* steps = std::get_if<StepBatch>(&work)) steps->steps = 1;
}

}  // namespace seer
