#include "actors/instance/running_batch.h"

#include <algorithm>
#include <utility>

#include "actors/instance/kv_moves.h"
#include "protocols/check.h"

namespace seer {

RunningBatch::RunningBatch(StepPlannerConfig planner, int32_t step_depth, const EngineInfo& info, DeviceBlocks& devices,
                           const SequenceTable& all, EngineQueue& engine, StepRun& steps, SequenceDrafts* drafts,
                           OnGain on_gain)
    : planner_(planner),
      step_depth_(std::min(step_depth, info.orders_max)),
      info_(info),
      devices_(devices),
      all_(all),
      engine_(engine),
      steps_(steps),
      drafts_(drafts),
      on_gain_(std::move(on_gain)) {}

// ---- members ---------------------------------------------------------------------------------------------------------

void RunningBatch::add(Sequence& s) { add_unslotted(s); }

void RunningBatch::add_unslotted(Sequence& s) {
  unslotted_.insert(std::ranges::upper_bound(unslotted_, s.arrival, {}, &Sequence::arrival), &s);
}

void RunningBatch::remove(Sequence& s) {
  if (s.slot != kNoBatchSlot) leave(s);
  std::erase(unslotted_, &s);
}

void RunningBatch::drop(Sequence& s) {
  std::erase(unslotted_, &s);
  if (s.slot != kNoBatchSlot) {
    at(std::exchange(s.slot, kNoBatchSlot)).sequence = nullptr;
    some_dropped_ = true;
  }
  if (!is_ordered()) leave_dropped();
}

// ---- plan ------------------------------------------------------------------------------------------------------------

void RunningBatch::plan() {
  gave_way_ = false;
  if (drafts_ != nullptr && drafts_->choice_is_due()) leave_all();  // every sequence gets a new draft length
  plan_beside_slots();
  while (make_room_in_slots()) plan_beside_slots();
  all_in_ = plan_.sequences.size() == running_.size();
  blocks_short_ = plan_.blocks_short > 0;
}

/// Plans with the rows and blocks that the sequences in slots leave.
void RunningBatch::plan_beside_slots() {
  gather_running();
  if (drafts_ != nullptr) drafts_->propose(running_, rows_, all_);
  const auto available = static_cast<int32_t>(std::max<int64_t>(0, devices_.counts().available() - std::ssize(block_needs_)));
  plan_step(rows_, planner_, info_.block_tokens, available, plan_, slot_rows_);
}

/// Gathers the sequences to plan. Those in slots just go on.
void RunningBatch::gather_running() {
  rows_.clear();
  running_.clear();
  prefilling_.clear();
  is_parking_ = is_importing_ = false;
  for (Sequence* const sequence : unslotted_) {
    Sequence& s = *sequence;
    is_parking_ |= s.phase == ChunkPhase::kParking;
    is_importing_ |= s.phase == ChunkPhase::kImporting;
    if (drafts_ != nullptr) {
      s.draft.clear();
      s.draft_allowed = 0;
    }
    if (s.phase != ChunkPhase::kRunning || waits_for_prompt(s)) continue;
    running_.push_back(&s);
    rows_.push_back({.id = s.arrival,
                     .known_tokens = s.log.size(),
                     .kv_tokens = s.kv_tokens,
                     .draft_tokens = 0,
                     .table_blocks = static_cast<int32_t>(s.table.size()),
                     .wants_sampling = true});
  }
  running_count_ = std::ssize(running_) + static_cast<int64_t>(all_.size()) - std::ssize(unslotted_);
}

/// When several members of a group start together, the first computes the prompt. The others wait without blocks and then share
/// its whole blocks. The scheduler counts the prompt's blocks once per group, so computing it in each would exceed the room.
bool RunningBatch::waits_for_prompt(Sequence& s) {
  const int64_t whole_blocks = std::min(s.log.prompt_tokens(), s.log.size() - 1) / info_.block_tokens;
  if (std::ssize(s.chain) >= whole_blocks) return false;
  const GroupId group = s.request.group;
  const bool begun = std::ranges::find(prefilling_, group) != prefilling_.end();
  if (!s.table.empty() || begun) {
    if (!begun) prefilling_.push_back(group);
    return s.table.empty();
  }
  const std::span<const BlockRef> prompt_names = names_of(s, whole_blocks, info_);
  s.chain.assign(prompt_names.begin(), prompt_names.begin() + devices_.retain_run(prompt_names, s.table));
  s.kv_tokens = s.done.cached_tokens = std::ssize(s.chain) * info_.block_tokens;
  if (std::ssize(s.chain) < whole_blocks) prefilling_.push_back(group);
  return false;
}

/// Sequences in slots are served first, with all their rows and their blocks for the next step. If the others then get less than
/// a plan of all sequences would give them, those in slots leave. True: they left, so plan again.
bool RunningBatch::make_room_in_slots() {
  if (slot_rows_ == 0) return false;
  if (plan_.rows_short) {
    leave_all();
    return true;
  }
  const bool is_cut = plan_.is_cut || (plan_.prefill_cut && !is_single_step());  // slots keep drafts over many steps only
  if (block_needs_.empty() || (!is_cut && std::ssize(block_needs_) <= devices_.counts().available())) return false;
  for (const int32_t slot : std::exchange(block_needs_, {})) leave_with_gains(*at(slot).sequence);
  return true;
}

std::vector<Sequence*> RunningBatch::all_running() const {
  std::vector<Sequence*> all;
  for (Sequence* const s : unslotted_)
    if (s->phase == ChunkPhase::kRunning) all.push_back(s);
  for (const Slot& slot : slots_)
    if (slot.sequence != nullptr) all.push_back(slot.sequence);
  return all;
}

/// Sequences in slots need no blocks for this step, so each counts as one row that fits in its block.
std::vector<Sequence*> RunningBatch::pick_victims() {
  if (plan_.blocks_short == 0) return {};
  std::vector<Sequence*> all = running_;
  for (size_t i = 0; i < running_.size(); ++i) rows_[i].yield_rank = running_[i]->yield_rank;
  const auto add = [&](const Slot& member) {
    if (member.sequence == nullptr) return;
    all.push_back(member.sequence);
    rows_.push_back({.id = member.arrival, .known_tokens = 1, .table_blocks = 1, .yield_rank = member.yield_rank});
  };
  std::ranges::for_each(slots_, add);
  std::vector<Sequence*> victims;
  const auto sole_blocks = [&](int32_t of) { return devices_.sole_user_count(all[static_cast<size_t>(of)]->table); };
  for (const int32_t i : seer::pick_victims(rows_, plan_.blocks_short, info_.block_tokens, sole_blocks))
    victims.push_back(all[static_cast<size_t>(i)]);
  rows_.resize(running_.size());
  return victims;
}

void RunningBatch::take_out(std::span<Sequence* const> victims) {
  std::erase_if(plan_.sequences, [&](const PlannedRows& rows) {
    return std::ranges::find(victims, running_[static_cast<size_t>(rows.sequence)]) != victims.end();
  });
  gave_way_ = !victims.empty();
  for (Sequence* const s : victims) leave_with_gains(*s);
  for (const int32_t slot : block_needs_) note_growth(slot);
  if (gave_way_) take_growing(steps_done());
}

// ---- order -----------------------------------------------------------------------------------------------------------

/// Sequences in slots go on; planned ones get slots.
void RunningBatch::order(int32_t steps_max, bool arrival_fits) {
  if (is_idle()) return;
  for (const int32_t slot : std::exchange(block_needs_, {})) take_block(slot);
  for (const PlannedRows& rows : plan_.sequences) join(rows);
  std::erase_if(unslotted_, [](const Sequence* s) { return s->slot != kNoBatchSlot; });
  if (drafts_ != nullptr && is_single_step()) time_order();
  is_stale_ = false;
  submit_order(steps_at_once(steps_max, arrival_fits));
}

void RunningBatch::submit_order(int32_t steps) {
  ++orders_;
  blocks_free_ = devices_.counts().available();
  engine_.submit(StepOrder{.id = next_step_++, .steps = steps, .blocks_free = blocks_free_});
}

/// Does not order ahead of a step that differs from the last one. A chunk answered after it often makes room for a new chunk,
/// which would then wait for two steps instead of one. A sequence with a draft leaves its slot after each step, so while there
/// are drafts no step repeats. Which blocks the next step needs is known once the engine has the last order.
void RunningBatch::order_ahead() {
  if (!is_ordered() || step_depth_ == 1) return;
  if (drafts_ != nullptr && drafts_->choice_is_due()) return;
  while (orders_ < step_depth_ && !engine_.has_waiting() && repeats()) {
    note_block_needs(1);
    if (std::ssize(block_needs_) > devices_.counts().available()) return;
    for (const int32_t slot : std::exchange(block_needs_, {})) take_block(slot);
    submit_order(1);
  }
}

/// The next step has the same sequences as the last one, as far as is known before that one ends.
bool RunningBatch::repeats() const {
  return !has_changed_ && !is_stale_ && !some_dropped_ && all_in_ && steps_.all_go_on();
}

void RunningBatch::join(const PlannedRows& rows) {
  Sequence& s = *running_[static_cast<size_t>(rows.sequence)];
  const bool cut = rows.draft_tokens < rows_[static_cast<size_t>(rows.sequence)].draft_tokens;
  fill(joining_, s, rows);
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<int32_t>(slots_.size()));
    slots_.emplace_back();
  }
  s.slot = free_slots_.back();
  free_slots_.pop_back();
  at(s.slot) = {&s, rows.rows, rows.sample_rows, s.arrival, s.yield_rank};
  slot_rows_ += rows.rows;
  has_changed_ = true;
  note_growth(s.slot);
  steps_.join(s.slot, joining_, cut ? std::nullopt : limit_of(s, rows));
}

/// Notes the shape of the ordered step, so that its time can be compared with the expected one.
void RunningBatch::time_order() {
  StepShape decode, step;
  for (const Slot& member : slots_) {
    if (member.sequence == nullptr) continue;
    decode.add(member.sequence->kv_tokens, 1, 1);
    step.add(member.sequence->kv_tokens, member.rows, member.sample_rows);
  }
  drafts_->step_ordered(decode, step, plan_.prefill_rows == 0);
}

/// Sets every field of `step`, which is reused for its memory.
void RunningBatch::fill(SequenceStep& step, Sequence& s, const PlannedRows& rows) {
  if (!s.writes && s.kv_tokens % info_.block_tokens != 0)
    devices_.will_write(s.table[static_cast<size_t>(s.kv_tokens) / info_.block_tokens]);
  s.writes = true;
  take_blocks(s, s.kv_tokens + rows.rows);
  const bool has_draft = s.draft_allowed > 0;
  if (const auto planned = static_cast<size_t>(rows.draft_tokens); has_draft && planned < s.draft.tokens.size()) {
    s.draft.shorten(planned);
    s.draft_allowed = rows.draft_tokens;
  }
  step.start = s.kv_tokens;
  step.tokens.clear();
  s.log.copy(s.kv_tokens, s.kv_tokens + rows.rows - rows.draft_tokens, step.tokens);
  if (has_draft) step.tokens.insert(step.tokens.end(), s.draft.tokens.begin(), s.draft.tokens.end());
  step.blocks.clear();
  if (is_single_step()) step.blocks = s.table;
  step.sample_rows = rows.sample_rows;
  step.seed = s.seed;
  if (step.sampling != s.sampling) step.sampling = s.sampling;
  step.ends_from = s.log.prompt_tokens() + std::min(s.sampling->min_tokens, info_.context_tokens_max);
  step.history.clear();
  if (s.sampling->repetition_penalty != 1.0f) s.log.copy(0, s.kv_tokens, step.history);
  step.targets.clear();
  step.parents.clear();
  if (has_draft && !s.draft.is_path()) {
    step.parents.push_back(-1);
    step.parents.insert(step.parents.end(), s.draft.parents.begin(), s.draft.parents.end());
  }
}

void RunningBatch::take_blocks(Sequence& s, int64_t tokens) {
  const int32_t more = blocks_needed(tokens, static_cast<int32_t>(s.table.size()), info_.block_tokens);
  if (more == 0) return;
  const Status taken = devices_.allocate(more, s.table);
  SEER_CHECK(taken.ok(), taken.error());
}

/// Says how long the sequence does the same in each step; nothing: for one step only.
std::optional<StepsLimit> RunningBatch::limit_of(const Sequence& s, const PlannedRows& rows) const {
  const bool prefills = rows.rows != rows.sample_rows;
  const bool prompt_due = s.has_pool && s.offered_blocks < prompt_blocks(s, info_.block_tokens);
  const bool drafts_anew = s.draft_allowed > 0 && is_single_step();
  if (prefills || prompt_due || drafts_anew || s.may_stop_anywhere()) return {};
  return StepsLimit{.gain_max = s.tokens_left() - (s.draft_allowed + 1),
                    .covered = std::ssize(s.table) * info_.block_tokens};
}

/// Returns how many steps to order at once. Other changes of the plan come as messages, which split the order.
int32_t RunningBatch::steps_at_once(int32_t steps_max, bool arrival_fits) const {
  if (gave_way_) return 1;  // the blocks that were freed may suffice from the next step on
  // While steps run, room only shrinks. So an arrival that does not fit now keeps waiting, and so does a sequence that got no
  // rows, unless others can give way for it (never while chunks park). With drafts, plan the next step in both cases: drafts
  // are cut to the room that is left, which differs from step to step.
  if (drafts_ != nullptr && arrival_fits) return 1;
  if (!all_in_ && (drafts_ != nullptr || (blocks_short_ && !is_parking_))) return 1;
  return std::min(info_.steps_max, steps_max);
}

void RunningBatch::split() {
  if (!is_ordered()) return;
  steps_.split();
  engine_.shorten_waiting_steps();
}

void RunningBatch::split_if_stale() {
  if (is_stale_ || blocks_free_ > devices_.counts().available()) split();
}

// ---- results ---------------------------------------------------------------------------------------------------------

void RunningBatch::prefetch_members() const {
  std::vector<Sequence*> members;
  for (const Slot& member : slots_)
    if (member.sequence != nullptr) members.push_back(member.sequence);
  prefetch_sequences(members, drafts_ != nullptr);
}

void RunningBatch::take(StepResult& result) {
  --orders_;
  has_changed_ = false;
  const int64_t tokens = end_slots(std::move(result.ended));
  if (drafts_ != nullptr) drafts_->step_took(result.step_us, tokens);
}

/// Handles the end of an order. The sequences in `ended` do not go on after its last step. Returns the number of tokens taken.
int64_t RunningBatch::end_slots(std::vector<int32_t> ended) {
  const int64_t last = steps_.step_running();
  take_needed_blocks(last);
  leave_dropped();
  std::erase_if(ended, [&](int32_t slot) { return at(slot).sequence == nullptr; });
  note_block_needs(last + 1);
  std::ranges::sort(ended);
  int64_t tokens = 0;
  for (const int32_t slot : slots_to_take(ended, last)) {
    const Slot member = at(slot);
    steps_.take(slot, last + 1, gained_);
    tokens += std::ssize(gained_.sampled);
    if (std::ranges::binary_search(ended, slot)) leave(*member.sequence);
    apply_gains(member);
  }
  return tokens;
}

/// Slots whose gains take effect after step `last`: decoding ones before prefilling ones, each in order of arrival. With single
/// steps these are all slots.
std::vector<int32_t> RunningBatch::slots_to_take(const std::vector<int32_t>& ended, int64_t last) {
  std::vector<int32_t> slots;
  if (is_single_step()) {
    prefetch_members();
    for (int32_t slot = 0; slot < std::ssize(slots_); ++slot)
      if (at(slot).sequence != nullptr) slots.push_back(slot);
  } else {
    slots = growing_to_report(ended, last);
    slots.insert(slots.end(), ended.begin(), ended.end());
  }
  const auto order = [&](int32_t slot) { return std::pair{at(slot).rows != at(slot).sample_rows, at(slot).arrival}; };
  std::ranges::sort(slots, {}, order);
  return slots;
}

void RunningBatch::take_gains(int64_t steps) {
  if (slot_rows_ == 0) return;
  prefetch_members();
  for (int32_t slot = 0; slot < std::ssize(slots_); ++slot)
    if (at(slot).sequence != nullptr) take_gains(slot, steps);
}

/// Applies what the sequence in this slot gained in the first `steps`. It stays in its slot.
void RunningBatch::take_gains(int32_t slot, int64_t steps) {
  steps_.take(slot, steps, gained_);
  apply_gains(at(slot));
}

/// Applies gained_. It has no steps if they were taken with an earlier result that came together with this one. Only its last token
/// can end the response, unless a stop rule unknown to the engine can, or a single step verified a draft.
void RunningBatch::apply_gains(Slot member) {
  if (gained_.steps == 0) return;
  Sequence& s = *member.sequence;
  if (s.draft_allowed > 0) count_drafts(s);
  const auto tokens = std::ssize(gained_.sampled);
  const bool any_may_end = s.may_stop_anywhere() || !gained_.rows.empty();
  const int64_t passed = any_may_end ? 0 : std::max<int64_t>(0, tokens - 1);
  on_gain_(s, member.rows != member.sample_rows ? member.rows : tokens, gained_.sampled, gained_.kept, static_cast<size_t>(passed));
}

void RunningBatch::count_drafts(const Sequence& s) {
  if (!gained_.rows.empty()) {
    // A draft cut short by a row without a token says nothing about the next one.
    if (gained_.sampled.back().token != kNotFinite) drafts_->count(s, gained_.rows);
    return;
  }
  if (s.draft.tokens.empty()) gained_.by_step.assign(static_cast<size_t>(gained_.steps), 1);
  drafts_->count_paths(s, gained_.by_step);
}

std::optional<StepResult> RunningBatch::take_steps_over() {
  if (!is_ordered()) return std::nullopt;
  std::optional<StepResult> figures = steps_.take_steps_over();
  settle_blocks();
  take_gains(steps_.step_running());
  return figures;
}

// ---- growth ----------------------------------------------------------------------------------------------------------
//
// A chunk without KV to keep that ends reports how the others have grown (InstanceActor::report_growth). These stay in their
// slots, so the gains of those that may have grown by a block are applied first.

/// Notes that the sequence in this slot may have blocks that its log does not need yet, or growth not reported yet.
void RunningBatch::note_growth(int32_t slot) {
  Slot& member = at(slot);
  if (member.sequence == nullptr || member.sequence->keep_kv || member.grows) return;
  member.grows = true;
  growing_.push_back(slot);
}

/// Applies what those slots gained in the first `steps`. The ones that have nothing more to report are not noted any more.
void RunningBatch::take_growing(int64_t steps) {
  std::erase_if(growing_, [&](int32_t slot) {
    Slot& member = at(slot);
    if (member.sequence == nullptr) return true;
    take_gains(slot, steps);
    const Sequence& s = *member.sequence;
    const int32_t blocks = blocks_needed(s.log.size(), 0, info_.block_tokens);
    member.grows = std::ssize(s.table) > blocks || blocks_needed(s.reported_tokens, 0, info_.block_tokens) < blocks;
    return !member.grows;
  });
}

/// Slots whose growth a chunk in `ended` reports; without those in `ended`. When it ends they have applied every step
/// before `last`, and those that arrived before it have applied `last` too.
std::vector<int32_t> RunningBatch::growing_to_report(const std::vector<int32_t>& ended, int64_t last) {
  const auto reports_growth = [&](int32_t slot) { return at(slot).sample_rows > 0 && !at(slot).sequence->keep_kv; };
  if (std::ranges::none_of(ended, reports_growth)) return {};
  take_growing(last);
  for (const int32_t slot : block_needs_) note_growth(slot);  // may have grown in step `last`
  std::vector<int32_t> slots = growing_;
  std::erase_if(slots, [&](int32_t slot) { return std::ranges::binary_search(ended, slot); });
  return slots;
}

// ---- leaving slots ---------------------------------------------------------------------------------------------------

/// Gains that were not taken are lost.
void RunningBatch::leave(Sequence& s) {
  free_slot(std::exchange(s.slot, kNoBatchSlot));
  add_unslotted(s);
}

void RunningBatch::free_slot(int32_t slot) {
  slot_rows_ -= std::exchange(at(slot), {}).rows;
  has_changed_ = true;
  steps_.leave(slot);
  std::erase(block_needs_, slot);
  std::erase(growing_, slot);
  free_slots_.push_back(slot);
}

void RunningBatch::leave_with_gains(Sequence& s) {
  if (s.slot == kNoBatchSlot) return;
  take_gains(s.slot, steps_done());
  leave(s);
}

void RunningBatch::leave_all() {
  if (slot_rows_ == 0) return;
  take_gains(steps_done());
  for (const Slot& member : slots_)
    if (member.sequence != nullptr) leave(*member.sequence);
}

/// Frees the slots of dropped chunks.
void RunningBatch::leave_dropped() {
  if (!std::exchange(some_dropped_, false)) return;
  for (int32_t slot = 0; slot < std::ssize(slots_); ++slot)
    if (at(slot).sequence == nullptr && at(slot).rows > 0) free_slot(slot);
}

// ---- blocks of slots -------------------------------------------------------------------------------------------------

void RunningBatch::settle_blocks() {
  if (!is_ordered()) return;
  if (!all_in_) split();  // sequences without rows may find room now, so plan again
  take_needed_blocks(steps_.step_running());
}

void RunningBatch::note_block_needs(int64_t steps) {
  const std::vector<int32_t> needs = steps_.take_block_needs(steps);
  block_needs_.insert(block_needs_.end(), needs.begin(), needs.end());
}

/// Takes the blocks needed by the step after the first `steps`.
void RunningBatch::take_needed_blocks(int64_t steps) {
  for (const int32_t slot : steps_.take_block_needs(steps)) {
    take_block(slot);
    --blocks_free_;
  }
}

void RunningBatch::take_block(int32_t slot) {
  Sequence* const s = at(slot).sequence;
  if (s == nullptr) return;
  const Status taken = devices_.allocate(1, s->table);
  SEER_CHECK(taken.ok(), taken.error());
  steps_.grant(slot, s->table.back());
  note_growth(slot);
}

}  // namespace seer
