#include "protocols/ids.h"

#include <doctest/doctest.h>

#include <set>
#include <type_traits>

#include "protocols/text.h"

using namespace seer;

static_assert(!std::is_convertible_v<NodeId, InstanceId>);
static_assert(!std::is_convertible_v<RolloutId, uint32_t>);
static_assert(!std::is_constructible_v<GroupId, InstanceId>);

TEST_CASE("ids: groups and chunks are ordered by their rollout first, requests by group, then sample") {
  CHECK(GroupId{9, RolloutId{1}} < GroupId{2, RolloutId{2}});
  CHECK(GroupId{2, RolloutId{1}} < GroupId{9, RolloutId{1}});
  CHECK(ChunkId{9, RolloutId{1}} < ChunkId{2, RolloutId{2}});
  CHECK(ChunkId{2, RolloutId{1}} < ChunkId{9, RolloutId{1}});
  CHECK(RequestId{GroupId{1}, 7} < RequestId{GroupId{2}, 0});
  CHECK(RequestId{GroupId{2}, 0} < RequestId{GroupId{2}, 1});
  CHECK(GroupId{2, RolloutId{1}} != GroupId{2});
}

TEST_CASE("ids: the rollout is printed only where it is not 0") {
  CHECK(cat(InstanceId{7}) == "7");
  CHECK(cat(GroupId{5}) == "5");
  CHECK(cat(GroupId{5, RolloutId{3}}) == "3:5");
  CHECK(cat(ChunkId{8}) == "8");
  CHECK(cat(ChunkId{8, RolloutId{3}}) == "3:8");
  CHECK(cat(RequestId{GroupId{5}, 2}) == "5.2");
  CHECK(cat(RequestId{GroupId{5, RolloutId{3}}, 2}) == "3:5.2");
}

TEST_CASE("ids: requests of several rollouts have hashes of their own") {
  std::set<size_t> hashes;
  for (uint32_t rollout = 0; rollout < 8; ++rollout)
    for (uint32_t group = 0; group < 40; ++group)
      for (uint32_t sample = 0; sample < 20; ++sample)
        hashes.insert(std::hash<RequestId>{}({GroupId{group, RolloutId{rollout}}, sample}));
  CHECK(hashes.size() == 8 * 40 * 20);

  hashes.clear();
  for (uint32_t rollout = 0; rollout < 8; ++rollout)
    for (uint32_t i = 0; i < 500; ++i) hashes.insert(std::hash<GroupId>{}({i, RolloutId{rollout}}));
  CHECK(hashes.size() == 8 * 500);

  hashes.clear();
  for (uint32_t rollout = 0; rollout < 8; ++rollout)
    for (uint64_t i = 0; i < 500; ++i) hashes.insert(std::hash<ChunkId>{}({i, RolloutId{rollout}}));
  CHECK(hashes.size() == 8 * 500);
}
