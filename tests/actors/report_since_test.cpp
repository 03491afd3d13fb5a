#include "actors/report_since.h"

#include <doctest/doctest.h>

using namespace seer;

TEST_CASE("report since: counts are those between two reports, at any depth, and what is no count is that of the second") {
  const InstanceReport before{.instance = InstanceId{3}, .busy_us = 10, .steps = 4, .kv_blocks_total = 50, .kv_blocks_used = 5, .kv_blocks_peak = 9,
                              .kv_block_bytes = 64, .chunks = 2, .drafting = {.other_trees = {.verifies = 3, .drafted = 9, .accepted = 1},
                                                                               .history = {.slice_us = 1000, .slices = {{1, 2, 3}}}}};
  InstanceReport now = before;
  now.busy_us = 25;
  now.steps = 11;
  now.kv_blocks_used = 7;
  now.chunks = 0;
  now.drafting.other_trees = {.verifies = 5, .drafted = 19, .accepted = 4};
  now.drafting.history.slices = {{2, 4, 6}, {7, 8, 9}};  // the first slice was not over
  const InstanceReport done = since(now, before);
  CHECK(done.instance == InstanceId{3});
  CHECK(done.busy_us == 15);
  CHECK(done.steps == 7);
  CHECK(done.kv_blocks_total == 50);
  CHECK(done.kv_blocks_used == 7);
  CHECK(done.kv_blocks_peak == 9);
  CHECK(done.kv_block_bytes == 64);
  CHECK(done.chunks == 0);
  CHECK(done.drafting.other_trees == DraftCounts{.verifies = 2, .drafted = 10, .accepted = 3});
  CHECK(done.drafting.history.slice_us == 1000);
  CHECK(done.drafting.history.slices == std::vector<DraftCounts>{{1, 2, 3}, {7, 8, 9}});

  // 5 s before, then a minute later: the slices of the second report are longer.
  DraftHistory first, both;
  for (int64_t t_us = 0; t_us < 5'000'000; t_us += 100'000) add_drafts(first, t_us, {1, 2, 1});
  both = first;
  add_drafts(both, 60'000'000, {10, 20, 10});
  REQUIRE(both.slice_us > first.slice_us);
  const DraftHistory later = since(both, first);
  CHECK(later.slice_us == both.slice_us);
  DraftCounts sum;
  for (const DraftCounts& counts : later.slices) {
    CHECK((counts == DraftCounts{} || counts == DraftCounts{10, 20, 10}));
    sum += counts;
  }
  CHECK(sum == DraftCounts{10, 20, 10});
  CHECK(later.slices.size() < both.slices.size());

  // Another history began in between, in which nothing is of the first.
  both.number = 1;
  CHECK(since(both, first).slices == both.slices);

  const DraftServerReport server = since(DraftServerReport{.node = NodeId{2}, .groups = 4, .tokens = 8, .bytes = 16, .appended_tokens = 30, .fetches = 3},
                                         DraftServerReport{.node = NodeId{2}, .groups = 9, .tokens = 9, .bytes = 9, .appended_tokens = 20, .fetches = 1});
  CHECK(server.node == NodeId{2});
  CHECK(server.groups == 4);
  CHECK(server.tokens == 8);
  CHECK(server.bytes == 16);
  CHECK(server.appended_tokens == 10);
  CHECK(server.fetches == 2);
}
