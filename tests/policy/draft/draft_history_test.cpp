#include <doctest/doctest.h>

#include "actors/policy/draft/draft_history.h"

using namespace seer;

namespace {

DraftCounts sum(const DraftHistory& history) {
  DraftCounts all;
  for (const DraftCounts& slice : history.slices) all += slice;
  return all;
}

}  // namespace

TEST_CASE("draft history: stays bounded and loses nothing, however long it runs") {
  DraftHistory history;
  DraftCounts all;
  for (int64_t t_us = 0; t_us < 100'000'000; t_us += 70'000) {
    const DraftCounts drafts{1, 3 + t_us % 2, 2};
    add_drafts(history, t_us, drafts);
    all += drafts;
    REQUIRE(history.slices.size() <= kDraftSlicesMax);
  }
  CHECK(sum(history) == all);
  CHECK(history.slice_us == 16 * kDraftSliceUs);  // 64 x 1.6 s is the least that holds 100 s
  CHECK(history.slices[10].verifies >= 22);       // 1.6 s / 70 ms
  CHECK(history.slices[10].verifies <= 23);
}

TEST_CASE("draft history: histories of instances add up by time, whichever ran longer") {
  DraftFigures early, late;
  add_drafts(early.history, 50'000, {1, 2, 1});
  add_drafts(late.history, 10'000, {1, 4, 4});
  add_drafts(late.history, 9'000'000, {2, 6, 3});
  late.probe_trees = {1, 4, 4};
  late.other_paths = {2, 6, 3};
  for (const bool early_first : {true, false}) {
    DraftFigures figures = early_first ? early : late;
    add_figures(figures, early_first ? late : early);
    CHECK(figures.history.slices.front() == DraftCounts{2, 6, 5});
    CHECK(figures.history.slices.back() == DraftCounts{2, 6, 3});
    CHECK(sum(figures.history) == DraftCounts{4, 12, 8});
    CHECK(figures.trees() == DraftCounts{1, 4, 4});
    CHECK(figures.all() == DraftCounts{3, 10, 7});
  }
}
