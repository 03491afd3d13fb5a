#include "actors/instance/drafting.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "actors/policy/draft/draft_history.h"
#include "gpu/accept_draft.h"

namespace seer {

SequenceDrafts::SequenceDrafts(Drafting parts)
    : parts_(std::move(parts)), budget_(parts_.budget, parts_.step_ns), sync_(parts_.sync, parts_.drafter) {}

// ---- for a step ------------------------------------------------------------------------------------------------------

void SequenceDrafts::propose(std::span<Sequence* const> running, std::span<RunningSequence> rows, const SequenceTable& all) {
  if (choice_due_) choose(running, all);
  if (choice_due_) return;  // nobody decodes
  timing_.draft_ns = 0;
  if (!choice_.drafts() && choice_.scouts == 0) return;
  timing_.draft_ns = timed([&] {
    int64_t made = 0;
    for (size_t i = 0; i < running.size(); ++i) {
      if (running[i]->decodes()) made += propose(*running[i]) ? 1 : 0;
      rows[i].draft_tokens = static_cast<int32_t>(running[i]->draft.tokens.size());
    }
    return made;
  });
}

template <class Make>
int64_t SequenceDrafts::timed(Make make) {
  const int64_t start_ns = parts_.clock_ns ? parts_.clock_ns() : 0;
  const int64_t made = make();
  if (!parts_.clock_ns) return 0;
  const int64_t took_ns = parts_.clock_ns() - start_ns;
  draft_ns_ += took_ns;
  budget_.drafting_took(made, static_cast<double>(took_ns));
  return took_ns;
}

void SequenceDrafts::choose(std::span<Sequence* const> running, const SequenceTable& all) {
  StepShape decode;
  std::array<int64_t, DraftBudget::kClasses> sequences_of{};
  for (const Sequence* s : running) {
    if (!s->decodes()) continue;
    decode.add(s->kv_tokens, 1, 1);
    ++sequences_of[s->draft_class()];
  }
  if (decode.sequences == 0) return;
  for (Sequence* const s : running) judge_trial(*s);
  choice_ = budget_.choose(decode, sequences_of);
  choice_due_ = false;
  send_scouts(running, all, decode.sequences);
  if (parts_.clock_ns && !choice_.drafts()) begin_trials(running);
}

void SequenceDrafts::begin_trials(std::span<Sequence* const> running) {
  timed([&] {
    int64_t made = 0;
    for (Sequence* const s : running) {
      if (!s->decodes() || s->trial.allowed > 0) continue;  // the one before needs more tokens to be judged
      s->trial.shape = budget_.shape_after(s->trial.shape);
      s->trial.allowed = budget_.rows_max(s->trial.shape);
      if (s->trial.allowed == 0) continue;
      s->trial.after_tokens = s->log.size();
      draft(*s, s->trial.shape, s->trial.allowed, s->trial.draft);
      ++made;
    }
    return made;
  });
}

/// Counts the rows of a trial that would have been accepted, once as many tokens came as it may have.
void SequenceDrafts::judge_trial(Sequence& s) {
  if (s.trial.allowed == 0 || s.log.size() < s.trial.after_tokens + s.trial.allowed) return;
  const std::vector<int32_t> came = s.log.tokens(s.trial.after_tokens, s.trial.after_tokens + s.trial.allowed);
  const Draft& draft = s.trial.draft;
  budget_.verified(s.draft_class(), s.trial.shape, std::exchange(s.trial.allowed, 0), std::ssize(draft.tokens),
                   path_of_text(draft.tokens, draft.parents, came));
}

/// Makes some of the `decoding` sequences scouts, evenly spaced, starting at a different one each time.
void SequenceDrafts::send_scouts(std::span<Sequence* const> running, const SequenceTable& all, int64_t decoding) {
  const int64_t scouts = choice_.scouts;
  const int64_t apart = scouts > 0 ? decoding / scouts : 0;
  int64_t sent = 0, next = scouts > 0 ? first_scout_++ % apart : -1;
  DraftShape shape = choice_.scout_shape;
  for (const auto& [id, s] : all) s->is_scout = false;
  for (int64_t i = 0; Sequence* s : running) {
    if (!s->decodes() || i++ != next || sent == scouts) continue;
    s->is_scout = true;
    s->scout_shape = shape;
    shape = budget_.shape_after(shape);
    next += apart;
    ++sent;
  }
}

/// False: no draft is wanted.
bool SequenceDrafts::propose(Sequence& s) {
  const int64_t longest = s.tokens_left() - 1;
  s.draft_shape = s.is_scout ? s.scout_shape : choice_.shape;
  const int64_t wanted = s.is_scout ? budget_.rows_max(s.draft_shape) : choice_.tokens[s.draft_class()];
  s.draft_allowed = std::max<int64_t>(0, std::min(wanted, longest));
  if (s.draft_allowed == 0) return false;
  draft(s, s.draft_shape, s.draft_allowed, s.draft);
  return true;
}

void SequenceDrafts::draft(const Sequence& s, DraftShape shape, int64_t allowed, Draft& out) {
  const DraftLimits limits{.max_tokens = static_cast<int32_t>(allowed),
                           .min_probability = choice_.min_probability,
                           .tree = shape == DraftShape::kTree};
  parts_.drafter->draft(s.text(), limits, out);
}

void SequenceDrafts::step_ordered(const StepShape& decode, const StepShape& step, bool only_decodes) {
  timing_.only_decodes = only_decodes;
  timing_.decode = decode;
  timing_.step = step;
}

/// The time between two results is that of the later step and of the wait before it. In a wait above kWaitUsMax there was no work.
void SequenceDrafts::step_came(int64_t now_us, int64_t step_us) {
  constexpr int64_t kWaitUsMax = 1000;
  const int64_t wait_us = now_us - std::exchange(came_us_, now_us) - step_us;
  waited_ns_ = wait_us <= kWaitUsMax ? 1000 * static_cast<double>(std::max<int64_t>(0, wait_us)) : 0;
  if (parts_.clock_ns && !choice_due_ && wait_us <= kWaitUsMax)
    budget_.engine_waited(choice_.drafts() || choice_.scouts > 0, waited_ns_);
}

void SequenceDrafts::step_took(int64_t step_us, int64_t tokens) {
  if (!parts_.clock_ns || !timing_.only_decodes || choice_due_) return;
  budget_.took(timing_.decode, timing_.step, 1000 * static_cast<double>(step_us));
  StepTimes& times = choice_.drafts() ? figures_.drafting_steps : figures_.plain_steps;
  const double waited_ns = choice_.drafts() ? budget_.extra_wait_ns(waited_ns_) : 0;
  times += {1, tokens, step_us + std::llround(waited_ns / 1000), std::llround(choice_.token_ns * static_cast<double>(tokens) / 1000)};
}

// ---- what the engine made of a draft ---------------------------------------------------------------------------------

void SequenceDrafts::count(const Sequence& s, std::span<const int32_t> rows) {
  const int64_t drafted = std::ssize(s.draft.tokens);
  budget_.verified(s.draft_class(), s.draft_shape, s.draft_allowed, drafted, rows);
  count(s, DraftCounts{1, drafted, std::ssize(rows) - 1});
}

void SequenceDrafts::count_paths(const Sequence& s, std::span<const int32_t> gained) {
  const int64_t drafted = std::ssize(s.draft.tokens), drafts = std::ssize(gained);
  budget_.verified_paths(s.draft_class(), s.draft_allowed, drafted, gained);
  count(s, DraftCounts{drafts, drafted * drafts, std::reduce(gained.begin(), gained.end()) - drafts});
}

void SequenceDrafts::count(const Sequence& s, const DraftCounts& counts) {
  if (counts.drafted == 0) return;
  const bool is_path = s.draft_shape == DraftShape::kPath;
  if (s.draft_class() == DraftBudget::kHigh)
    (is_path ? figures_.probe_paths : figures_.probe_trees) += counts;
  else
    (is_path ? figures_.other_paths : figures_.other_trees) += counts;
  uncounted_ += counts;
}

void SequenceDrafts::begin_history() {
  figures_.history = {.number = figures_.history.number + 1};
  uncounted_ = {};
}

const DraftFigures& SequenceDrafts::figures_at(int64_t since_begin_us) {
  figures_.draft_us = draft_ns_ / 1000;
  figures_.losses = parts_.drafter->losses();
  add_drafts(figures_.history, since_begin_us, std::exchange(uncounted_, {}));
  return figures_;
}

// ---- what others may draft from --------------------------------------------------------------------------------------

/// Returns the groups that run here.
std::vector<GroupId> SequenceDrafts::show_texts(const SequenceTable& all) {
  std::vector<GroupId> groups;
  for (const auto& [id, s] : all) groups.push_back(s->request.group);
  std::ranges::sort(groups);
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  parts_.drafter->running(groups);
  for (const auto& [id, s] : all) parts_.drafter->learn(s->text());
  return groups;
}

void SequenceDrafts::forget(RolloutId rollout) {
  parts_.drafter->forget(rollout);
  sync_.forget(rollout);
}

}  // namespace seer
