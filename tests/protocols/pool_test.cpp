#include "protocols/pool.h"

#include <doctest/doctest.h>

#include <set>

#include "protocols/text.h"

using namespace seer;

TEST_CASE("owner: requests and groups never share a name, and a request's owner knows its group's") {
  std::set<KvOwner> owners;
  for (uint32_t g = 0; g < 50; ++g) {
    owners.insert(owner_of(GroupId{g}));
    for (uint32_t s = 0; s < 50; ++s) {
      const KvOwner request = owner_of(RequestId{GroupId{g}, s});
      owners.insert(request);
      CHECK(group_of(request) == owner_of(GroupId{g}));
    }
  }
  CHECK(owners.size() == 50 * 51);
}

TEST_CASE("owner: those of different rollouts are different, ordered by rollout first, and printed with it") {
  const KvOwner first = owner_of(RequestId{GroupId{9, RolloutId{1}}, 3}), second = owner_of(RequestId{GroupId{2, RolloutId{2}}, 1});
  CHECK(first < second);
  CHECK(owner_of(GroupId{9, RolloutId{2}}) != owner_of(GroupId{9, RolloutId{1}}));
  CHECK(group_of(first) == owner_of(GroupId{9, RolloutId{1}}));
  CHECK(owner_of(RequestId{GroupId{9}, 3}) < owner_of(GroupId{9}));
  CHECK(cat(second) == "2:8589934593");  // 2 << 32 | 1
  CHECK(std::hash<KvOwner>{}(owner_of(GroupId{9, RolloutId{1}})) != std::hash<KvOwner>{}(owner_of(GroupId{9, RolloutId{2}})));
}
