#include "protocols/draft.h"

#include <doctest/doctest.h>

#include <vector>

using namespace seer;

namespace {

NodeId server_of(uint32_t group, const std::vector<NodeId>& servers) { return servers.at(draft_shard(GroupId{group}, servers)); }

constexpr uint32_t kGroups = 2000;

}  // namespace

TEST_CASE("draft shard: when a server leaves, only its own groups move, and they return with it") {
  const std::vector<NodeId> all{{0}, {1}, {2}, {3}}, fewer{{0}, {1}, {3}};
  size_t moved = 0;
  for (uint32_t group = 0; group < kGroups; ++group) {
    const NodeId before = server_of(group, all), after = server_of(group, fewer);
    if (before == NodeId{2}) ++moved;
    else CHECK(after == before);
  }
  CHECK(moved > 0);
}

TEST_CASE("draft shard: the order in which servers are known does not matter") {
  const std::vector<NodeId> one{{0}, {1}, {2}, {3}}, other{{3}, {1}, {0}, {2}};
  for (uint32_t group = 0; group < kGroups; ++group) CHECK(server_of(group, one) == server_of(group, other));
}

TEST_CASE("draft shard: every server has its share of the groups, within a tenth of all") {
  const std::vector<NodeId> servers{{0}, {1}, {2}, {3}};
  std::vector<uint32_t> groups(4);
  for (uint32_t group = 0; group < kGroups; ++group) ++groups[draft_shard(GroupId{group}, servers)];
  for (const uint32_t count : groups) {
    CHECK(count > kGroups * 15 / 100);
    CHECK(count < kGroups * 35 / 100);
  }
}
