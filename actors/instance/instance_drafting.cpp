// The part of instance_actor that drafts: what is proposed for a step, what of it stands, and what is shared with other
// instances.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "actors/instance/instance_actor.h"
#include "actors/policy/draft/draft_history.h"
#include "gpu/accept_draft.h"

namespace seer {

/// Proposes a draft for each sequence that decodes. What drafts are wanted is chosen anew whenever tokens are reported.
void InstanceActor::choose_drafts() {
  const auto decodes = [](const Sequence& s) { return s.kv_tokens + 1 == s.log.size(); };
  if (drafts_due) {
    StepShape decode;
    std::array<int64_t, DraftBudget::kClasses> sequences_of{};
    for (const Sequence* s : running) {
      if (!decodes(*s)) continue;
      decode.add(s->kv_tokens, 1, 1);
      ++sequences_of[s->draft_class()];
    }
    if (decode.sequences == 0) return;
    draft_choice = draft_budget->choose(decode, sequences_of);
    drafts_due = false;
    send_scouts(decode.sequences);
  }
  timing.draft_ns = 0;
  if (!draft_choice.drafts() && draft_choice.scouts == 0) return;
  timed([&] {
    int64_t made = 0;
    for (size_t i = 0; i < running.size(); ++i) {
      if (decodes(*running[i])) made += propose_draft(*running[i]);
      running_memory[i].draft_tokens = static_cast<int32_t>(running[i]->draft.tokens.size());
    }
    return made;
  });
}

/// Makes every so many of the `decoding` sequences a scout, beginning with another one each time.
void InstanceActor::send_scouts(int64_t decoding) {
  const int64_t scouts = draft_choice.scouts;
  const int64_t apart = scouts > 0 ? decoding / scouts : 0;
  int64_t sent = 0, next = scouts > 0 ? first_scout++ % apart : -1;
  DraftShape shape = draft_choice.scout_shape;
  for (const auto& [id, s] : sequences) s->is_scout = false;
  for (int64_t i = 0; Sequence* s : running) {
    if (s->kv_tokens + 1 != s->log.size() || i++ != next || sent == scouts) continue;
    s->is_scout = true;
    s->scout_shape = shape;
    const DraftShape other = shape == DraftShape::kPath ? DraftShape::kTree : DraftShape::kPath;
    if (draft_budget->has(other)) shape = other;
    next += apart;
    ++sent;
  }
}

/// `drafting` makes drafts and says how many.
void InstanceActor::timed(const std::function<int64_t()>& drafting) {
  const auto& clock_ns = parts.drafting.clock_ns;
  const int64_t start_ns = clock_ns ? clock_ns() : 0;
  const int64_t drafts = drafting();
  if (!clock_ns) return;
  timing.draft_ns = clock_ns() - start_ns;
  draft_ns += timing.draft_ns;
  draft_budget->drafting_took(drafts, static_cast<double>(timing.draft_ns));
}

/// No longer than what may still come, less the token that is sampled behind it. False: none is wanted.
bool InstanceActor::propose_draft(Sequence& s) {
  const int64_t longest = s.tokens_left() - 1;
  s.draft_shape = s.is_scout ? s.scout_shape : draft_choice.shape;
  const int64_t wanted = s.is_scout ? draft_budget->rows_max(s.draft_shape) : draft_choice.tokens[s.draft_class()];
  s.draft_allowed = std::max<int64_t>(0, std::min(wanted, longest));
  if (s.draft_allowed == 0) return false;
  const DraftLimits limits{.max_tokens = static_cast<int32_t>(s.draft_allowed),
                           .min_probability = draft_choice.min_probability,
                           .tree = s.draft_shape == DraftShape::kTree};
  parts.drafting.drafter->draft(s.text(), limits, s.draft);
  return true;
}

/// Rows of the sequence's step whose tokens and KV stay: the last known token's, and those of its draft that stand.
std::span<const int32_t> InstanceActor::rows_that_stand(const Sequence& s, std::span<const SampledToken> sampled) {
  if (s.draft.is_path()) return first_rows(acceptance_length(s.draft.tokens, sampled));
  verified_tokens.assign(1, s.log.back());
  verified_tokens.insert(verified_tokens.end(), s.draft.tokens.begin(), s.draft.tokens.end());
  verified_parents.assign(1, -1);
  verified_parents.insert(verified_parents.end(), s.draft.parents.begin(), s.draft.parents.end());
  stood_memory = accepted_path(verified_tokens, verified_parents, sampled);
  return stood_memory;
}

std::span<const int32_t> InstanceActor::first_rows(int64_t count) {
  while (std::ssize(row_numbers) < count) row_numbers.push_back(static_cast<int32_t>(row_numbers.size()));
  return std::span(row_numbers).first(static_cast<size_t>(count));
}

/// Of its draft, perhaps an empty one, these rows stand.
void InstanceActor::verified(const Sequence& s, std::span<const int32_t> rows) {
  const int64_t drafted = std::ssize(s.draft.tokens);
  draft_budget->verified(s.draft_class(), s.draft_shape, s.draft_allowed, drafted, rows);
  count_drafts(s, {1, drafted, std::ssize(rows) - 1});
}

/// The same for steps that were in the engine together, which had the same draft: what each gained.
void InstanceActor::verified_paths(const Sequence& s, std::span<const int32_t> gained) {
  const int64_t drafted = std::ssize(s.draft.tokens), drafts = std::ssize(gained);
  draft_budget->verified_paths(s.draft_class(), s.draft_allowed, drafted, gained);
  count_drafts(s, {drafts, drafted * drafts, std::reduce(gained.begin(), gained.end()) - drafts});
}

void InstanceActor::count_drafts(const Sequence& s, const DraftCounts& counts) {
  if (counts.drafted == 0) return;
  DraftFigures& figures = report.drafting;
  const bool is_path = s.draft_shape == DraftShape::kPath;
  if (s.draft_class() == DraftBudget::kHigh)
    (is_path ? figures.probe_paths : figures.probe_trees) += counts;
  else
    (is_path ? figures.other_paths : figures.other_trees) += counts;
  unreported_drafts += counts;
}

/// The step that ended gained so many tokens.
void InstanceActor::note_times(int64_t step_us, int64_t tokens) {
  if (!parts.drafting.clock_ns || !timing.only_decodes || drafts_due) return;
  draft_budget->took(timing.decode, timing.step, 1000 * static_cast<double>(step_us));
  StepTimes& times = draft_choice.drafts() ? report.drafting.drafting_steps : report.drafting.plain_steps;
  times += {1, tokens, step_us + timing.draft_ns / 1000, std::llround(draft_choice.token_ns * static_cast<double>(tokens) / 1000)};
}

/// Drafts of the time since it was last called go into the report's history.
void InstanceActor::note_drafts() {
  if (!draft_budget || started_us < 0) return;
  report.drafting.draft_us = draft_ns / 1000;
  report.drafting.losses = parts.drafting.drafter->losses();
  add_drafts(report.drafting.history, rt::now_us(self) - started_us, std::exchange(unreported_drafts, {}));
}

/// The drafter learns what the requests that run here have written, and which groups these are: returns those.
std::vector<GroupId> InstanceActor::show_texts() {
  std::vector<GroupId> groups;
  for (const auto& [id, s] : sequences) groups.push_back(s->spec.request.group);
  std::ranges::sort(groups);
  groups.erase(std::ranges::unique(groups).begin(), groups.end());
  parts.drafting.drafter->running(groups);
  for (const auto& [id, s] : sequences) parts.drafting.drafter->learn(s->text());
  return groups;
}

/// What the groups that run here have written, up to the step that ended, is shared with the other instances.
void InstanceActor::sync_drafts() { draft_sync->sync(show_texts(), handle{self}, rt::now_us(self)); }

}  // namespace seer
