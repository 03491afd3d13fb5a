#include "actors/policy/draft/draft_history.h"

#include <utility>

#include "protocols/check.h"

namespace seer {

void double_slices(DraftHistory& history) {
  std::vector<DraftCounts>& slices = history.slices;
  for (size_t i = 0; i < slices.size(); ++i) {
    const DraftCounts counts = std::exchange(slices[i], {});
    slices[i / 2] += counts;
  }
  slices.resize((slices.size() + 1) / 2);
  history.slice_us *= 2;
}

void add_drafts(DraftHistory& history, int64_t t_us, const DraftCounts& drafts) {
  SEER_CHECK(t_us >= 0, t_us);
  if (history.slice_us == 0) history.slice_us = kDraftSliceUs;
  while (t_us / history.slice_us >= static_cast<int64_t>(kDraftSlicesMax)) double_slices(history);
  const auto slice = static_cast<size_t>(t_us / history.slice_us);
  if (history.slices.size() <= slice) history.slices.resize(slice + 1);
  history.slices[slice] += drafts;
}

void add_figures(DraftFigures& figures, const DraftFigures& more) {
  figures.probe_paths += more.probe_paths;
  figures.probe_trees += more.probe_trees;
  figures.other_paths += more.other_paths;
  figures.other_trees += more.other_trees;
  figures.draft_us += more.draft_us;
  figures.drafting_steps += more.drafting_steps;
  figures.plain_steps += more.plain_steps;
  figures.losses += more.losses;
  DraftHistory& history = figures.history;
  if (more.history.slice_us == 0) return;
  if (history.slice_us == 0) history.slice_us = more.history.slice_us;
  while (history.slice_us < more.history.slice_us) double_slices(history);
  for (size_t i = 0; i < more.history.slices.size(); ++i)
    add_drafts(history, static_cast<int64_t>(i) * more.history.slice_us, more.history.slices[i]);
}

}  // namespace seer
