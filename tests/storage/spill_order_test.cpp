#include "storage/spill_order.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <vector>

using namespace seer;

namespace {

BlockKey key(uint64_t n) { return {WeightVersion{1}, 7, {n, n}}; }

std::vector<uint64_t> drain(SpillOrder& order, const std::map<BlockKey, SpillPlace>& places) {
  std::vector<uint64_t> out;
  while (const auto next = order.first()) {
    out.push_back(next->key.prefix.hi);
    order.remove(places.at(next->key));
  }
  return out;
}

}  // namespace

TEST_CASE("spill order: parked owners by furthest use, then running ones, then prompts; tails first") {
  SpillOrder order;
  std::map<BlockKey, SpillPlace> places;
  const auto add = [&](uint64_t owner, bool shared, uint32_t index, uint64_t n) {
    places[key(n)] = {{owner}, shared, index};
    order.add(places[key(n)], key(n));
  };
  order.set_urgency({1}, {.pinned = false, .next_use = 5});
  order.set_urgency({2}, {.pinned = false, .next_use = 9});
  order.set_urgency({3}, {.pinned = true});
  add(1, false, 0, 10), add(1, false, 1, 11);
  add(2, false, 0, 20), add(2, false, 1, 21);
  add(3, false, 0, 30);
  add(4, true, 0, 40), add(4, true, 1, 41);
  add(3, true, 1, 31);
  CHECK(order.size() == 8);
  CHECK(order.first_not_of({2})->key == key(11));
  CHECK(drain(order, places) == std::vector<uint64_t>{21, 20, 11, 10, 30, 41, 40, 31});
}

TEST_CASE("spill order: a first block is found, however many owners came and went since it was last asked") {
  for (uint64_t gone = 0; gone < 200; ++gone) {
    CAPTURE(gone);
    SpillOrder order;
    for (uint64_t owner = 10; owner < 10 + gone; ++owner) {
      order.set_urgency({owner}, {});
      order.forget({owner});
    }
    order.add({{1}, false, 0}, key(10));
    REQUIRE(order.first());
    CHECK(order.first()->key == key(10));
  }
}

TEST_CASE("spill order: a change of urgency moves all blocks of the owner") {
  SpillOrder order;
  for (uint32_t i = 0; i < 3; ++i) order.add({{1}, false, i}, key(10 + i));
  order.add({{2}, false, 0}, key(20));
  order.set_urgency({2}, {.pinned = false, .next_use = 1});
  CHECK(order.first()->key == key(20));
  order.set_urgency({1}, {.pinned = false, .next_use = 2});
  CHECK(order.first()->key == key(12));
  order.set_urgency({1}, {.pinned = true});
  CHECK(order.first()->key == key(20));
}

TEST_CASE("spill order: guests are ranked like others, but are not first at home, until they run here") {
  SpillOrder order;
  for (uint64_t owner = 1; owner <= 3; ++owner) order.add({{owner}, false, 0}, key(owner));
  order.set_urgency({1}, {.pinned = false, .next_use = 5});
  order.set_urgency({2}, {.pinned = false, .next_use = 9, .guest = true});
  order.set_urgency({3}, {.pinned = false, .next_use = 7, .guest = true});
  CHECK(order.first()->key == key(2));
  CHECK(order.first_at_home()->key == key(1));
  CHECK(order.first_not_of({2})->key == key(3));
  order.set_urgency({3}, {.pinned = false, .next_use = 7});
  CHECK(order.first_at_home()->key == key(3));
  order.remove({{1}, false, 0});
  order.remove({{3}, false, 0});
  CHECK_FALSE(order.first_at_home().has_value());
  CHECK(order.first()->key == key(2));
}

TEST_CASE("spill order: the last of the parked is the owner used next, guest or not") {
  SpillOrder order;
  CHECK_FALSE(order.last_parked().has_value());
  order.set_urgency({1}, {.pinned = true});
  order.add({{1}, false, 0}, key(1));
  order.add({{2}, true, 0}, key(2));
  CHECK_FALSE(order.last_parked().has_value());  // it runs, or is shared
  order.set_urgency({3}, {.pinned = false, .next_use = 5});
  order.add({{3}, false, 2}, key(3));
  order.set_urgency({4}, {.pinned = false, .next_use = 9});
  order.add({{4}, false, 0}, key(4));
  CHECK(order.last_parked()->owner == OwnerId{3});
  CHECK(order.last_parked()->next_use == 5);
  order.set_urgency({5}, {.pinned = false, .next_use = 3, .guest = true});
  order.add({{5}, false, 1}, key(5));
  CHECK(order.last_parked()->owner == OwnerId{5});
}

TEST_CASE("spill order: agrees with sorting everything again, over random changes") {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    SpillOrder order;
    std::map<SpillPlace, BlockKey> blocks;
    std::map<uint64_t, Urgency> urgency;
    for (int step = 0; step < 200; ++step) {
      const SpillPlace place{{rng() % 5}, rng() % 3 == 0, static_cast<uint32_t>(rng() % 6)};
      switch (rng() % 3) {
        case 0: {
          const Urgency u{rng() % 2 == 0, rng() % 4};
          urgency[place.owner.value] = u;
          order.set_urgency(place.owner, u);
          break;
        }
        case 1:
          if (blocks.emplace(place, key(step)).second) order.add(place, key(step));
          break;
        default:
          if (blocks.erase(place) > 0) order.remove(place);
      }
      REQUIRE(order.size() == static_cast<int64_t>(blocks.size()));
      const auto next = order.first();
      REQUIRE(next.has_value() == !blocks.empty());
      if (blocks.empty()) continue;
      const auto best = std::min_element(blocks.begin(), blocks.end(), [&](const auto& a, const auto& b) {
        const auto rank = [&](const SpillPlace& p) {
          const Urgency u = urgency[p.owner.value];
          return std::tuple(p.shared, u.pinned, ~u.next_use, p.owner, ~p.index);
        };
        return rank(a.first) < rank(b.first);
      });
      REQUIRE(next->key == best->second);
    }
  }
}
