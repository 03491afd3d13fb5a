#include "actors/policy/schedule/instance_picker.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

using namespace seer;

namespace {

InstanceLimits instance(uint32_t id, uint32_t node, int64_t kv_blocks, int32_t rows_max = 256) {
  return {.id = {id}, .node = {node}, .kv_blocks = kv_blocks, .block_tokens = 16, .rows_max = rows_max};
}

KvNeed need(uint32_t group, int64_t prompt_blocks, int64_t own_blocks) {
  return {.group = {group}, .prompt_blocks = prompt_blocks, .own_blocks = own_blocks, .own_blocks_least = 1};
}

constexpr CachedAt kNowhere{};
CachedAt cached_at(uint32_t id, uint32_t node) { return {.instance = {id}, .node = {node}}; }

// Applies every rule by a walk over everything, from a plain list of what runs where.
struct SlowPicker {
  struct Run {
    InstanceId instance;
    KvNeed charged;
  };
  std::vector<InstanceLimits> instances;
  std::vector<Run> runs;
  int32_t inflight_spread_max = 32;

  int64_t used(InstanceId id) const {
    int64_t blocks = 0;
    std::vector<GroupId> groups;
    for (const Run& run : runs) {
      if (run.instance != id) continue;
      blocks += run.charged.own_blocks;
      if (std::find(groups.begin(), groups.end(), run.charged.group) == groups.end()) {
        groups.push_back(run.charged.group);
        blocks += run.charged.prompt_blocks;
      }
    }
    return blocks;
  }
  int64_t running(InstanceId id) const {
    return std::count_if(runs.begin(), runs.end(), [&](const Run& run) { return run.instance == id; });
  }
  bool has_group(InstanceId id, GroupId group) const {
    return std::any_of(runs.begin(), runs.end(),
                       [&](const Run& run) { return run.instance == id && run.charged.group == group; });
  }
  bool fits(const InstanceLimits& limits, const KvNeed& wanted) const {
    if (running(limits.id) == 0) return wanted.prompt_blocks + wanted.own_blocks_least <= limits.kv_blocks;
    const int64_t prompt = has_group(limits.id, wanted.group) ? 0 : wanted.prompt_blocks;
    return running(limits.id) < limits.rows_max && used(limits.id) + prompt + wanted.own_blocks <= limits.kv_blocks;
  }
  template <class Allowed>
  std::optional<InstanceId> least_loaded(const KvNeed& wanted, Allowed allowed) const {
    const InstanceLimits* best = nullptr;
    auto load = [&](const InstanceLimits& l) { return std::tuple(used(l.id), running(l.id), l.id); };
    for (const InstanceLimits& limits : instances)
      if (allowed(limits) && fits(limits, wanted) && (!best || load(limits) < load(*best))) best = &limits;
    return best ? std::optional(best->id) : std::nullopt;
  }
  std::optional<InstanceId> pick(const KvNeed& wanted, CachedAt cached, PlaceBy by) const {
    switch (by) {
      case PlaceBy::kCached:
        return cached_first(wanted, cached);
      case PlaceBy::kMostRoom:
        return most_room(wanted, cached.instance);
      case PlaceBy::kFewestRunning:
        return fewest_running(wanted, cached.instance);
    }
    return std::nullopt;
  }
  std::optional<InstanceId> most_room(const KvNeed& wanted, InstanceId last) const {
    const auto best = least_loaded(wanted, [](const InstanceLimits&) { return true; });
    const auto stay = least_loaded(wanted, [&](const InstanceLimits& l) { return l.id == last; });
    if (!best || !stay) return best;
    return used(*stay) - used(*best) <= instances[last.value].kv_blocks * 3 / 100 ? stay : best;
  }
  std::optional<InstanceId> fewest_running(const KvNeed& wanted, InstanceId last) const {
    int64_t fewest = INT64_MAX;
    for (const InstanceLimits& limits : instances)
      if (fits(limits, wanted)) fewest = std::min(fewest, running(limits.id));
    const auto has_fewest = [&](const InstanceLimits& l) { return running(l.id) == fewest; };
    if (auto stay = least_loaded(wanted, [&](const InstanceLimits& l) { return l.id == last && has_fewest(l); }))
      return stay;
    return least_loaded(wanted, has_fewest);
  }
  std::optional<InstanceId> cached_first(const KvNeed& wanted, CachedAt cached) const {
    int64_t low = INT64_MAX, high = 0, spread_max = inflight_spread_max;
    for (const InstanceLimits& limits : instances) {
      low = std::min(low, running(limits.id));
      high = std::max(high, running(limits.id));
      spread_max = std::min<int64_t>(spread_max, limits.rows_max / 8);
    }
    if (high - low <= spread_max) {
      if (auto same = least_loaded(wanted, [&](const InstanceLimits& l) { return l.id == cached.instance; }))
        return same;
      if (auto near = least_loaded(wanted, [&](const InstanceLimits& l) { return l.node == cached.node; })) return near;
    }
    return least_loaded(wanted, [](const InstanceLimits&) { return true; });
  }
};

}  // namespace

TEST_CASE("instance picker: the fewest credits used win, then the fewest running, then the lowest id") {
  InstancePicker picker(0);
  for (uint32_t id : {3u, 1u, 2u}) REQUIRE(picker.add(instance(id, 0, 100)).ok());
  CHECK(picker.pick(need(0, 0, 10), kNowhere) == InstanceId{1});
  picker.start({1}, need(0, 0, 10));
  picker.start({2}, need(1, 0, 5));
  picker.start({2}, need(2, 0, 5));
  picker.start({3}, need(3, 0, 11));
  CHECK(picker.pick(need(9, 0, 10), kNowhere) == InstanceId{1});
  picker.end({2}, need(1, 0, 5));
  CHECK(picker.pick(need(9, 0, 10), kNowhere) == InstanceId{2});
}

TEST_CASE("instance picker: a need beyond the credits or the rows left fits nowhere") {
  InstancePicker picker(32);
  REQUIRE(picker.add(instance(0, 0, 100, 2)).ok());
  CHECK(picker.start({0}, need(0, 0, 60)) == 60);
  CHECK_FALSE(picker.pick(need(1, 0, 41), kNowhere));
  CHECK(picker.pick(need(1, 0, 40), kNowhere) == InstanceId{0});
  picker.start({0}, need(1, 0, 1));
  CHECK_FALSE(picker.pick(need(2, 0, 1), kNowhere));
}

TEST_CASE("instance picker: an idle instance takes what it can hold and charges no more than it has") {
  InstancePicker picker(32);
  REQUIRE(picker.add(instance(0, 0, 100)).ok());
  KvNeed big = need(0, 90, 30);
  big.own_blocks_least = 10;
  REQUIRE(picker.pick(big, kNowhere) == InstanceId{0});
  CHECK(picker.start({0}, big) == 10);
  CHECK(picker.used_blocks({0}) == 100);
  big.own_blocks = 10;
  picker.end({0}, big);
  big.own_blocks_least = 11;
  CHECK_FALSE(picker.pick(big, kNowhere));
}

TEST_CASE("instance picker: members of a group on one instance share their prompt until the last one leaves") {
  InstancePicker picker(32);
  REQUIRE(picker.add(instance(0, 0, 100)).ok());
  picker.start({0}, need(7, 50, 10));
  CHECK_FALSE(picker.pick(need(8, 50, 10), kNowhere));
  REQUIRE(picker.pick(need(7, 50, 10), kNowhere) == InstanceId{0});
  picker.start({0}, need(7, 50, 10));
  CHECK(picker.used_blocks({0}) == 70);
  picker.end({0}, need(7, 50, 10));
  CHECK(picker.used_blocks({0}) == 60);
  picker.end({0}, need(7, 50, 10));
  CHECK(picker.used_blocks({0}) == 0);
}

TEST_CASE("instance picker: a full fleet still takes a member where its prompt is") {
  InstancePicker picker(32);
  REQUIRE(picker.add(instance(0, 0, 100)).ok());
  REQUIRE(picker.add(instance(1, 1, 100)).ok());
  picker.start({0}, need(0, 0, 60));
  picker.start({1}, need(7, 40, 30));
  CHECK(picker.pick(need(7, 40, 30), kNowhere) == InstanceId{1});
  CHECK_FALSE(picker.pick(need(8, 40, 30), kNowhere));
}

TEST_CASE("instance picker: a cached prefix decides only while the instances are evenly loaded") {
  InstancePicker picker(2);
  for (uint32_t id = 0; id < 4; ++id) REQUIRE(picker.add(instance(id, id / 2, 100)).ok());
  picker.start({2}, need(0, 0, 10));
  picker.start({2}, need(1, 0, 10));
  CHECK(picker.pick(need(9, 0, 10), cached_at(2, 1)) == InstanceId{2});
  picker.start({2}, need(2, 0, 75));
  CHECK(picker.inflight_spread() == 3);
  CHECK(picker.pick(need(9, 0, 10), cached_at(2, 1)) == InstanceId{0});
  picker.start({0}, need(3, 0, 10));
  picker.start({1}, need(4, 0, 10));
  picker.start({3}, need(5, 0, 10));
  CHECK(picker.pick(need(9, 0, 3), cached_at(2, 1)) == InstanceId{2});
  CHECK_MESSAGE(picker.pick(need(9, 0, 10), cached_at(2, 1)) == InstanceId{3},
                "the machine that has the KV comes next");
}

TEST_CASE("instance picker: instances with few rows are held to a smaller spread") {
  InstancePicker picker(32);
  REQUIRE(picker.add(instance(0, 0, 100, 8)).ok());
  REQUIRE(picker.add(instance(1, 1, 100, 8)).ok());
  picker.start({0}, need(0, 0, 10));
  CHECK(picker.pick(need(9, 0, 10), cached_at(0, 0)) == InstanceId{0});
  picker.start({0}, need(1, 0, 10));
  CHECK(picker.pick(need(9, 0, 10), cached_at(0, 0)) == InstanceId{1});
}

TEST_CASE("instance picker: by most room, a request stays where its KV is if that instance is about as empty") {
  InstancePicker picker(32);
  for (uint32_t id = 0; id < 2; ++id) REQUIRE(picker.add(instance(id, id, 100)).ok());
  picker.start({0}, need(0, 0, 3));
  CHECK(picker.pick(need(9, 0, 10), kNowhere, PlaceBy::kMostRoom) == InstanceId{1});
  CHECK(picker.pick(need(9, 0, 10), cached_at(0, 0), PlaceBy::kMostRoom) == InstanceId{0});
  picker.start({0}, need(1, 0, 1));
  CHECK(picker.pick(need(9, 0, 10), cached_at(0, 0), PlaceBy::kMostRoom) == InstanceId{1});
}

TEST_CASE("instance picker: by fewest running, KV in use decides only between equal ones") {
  InstancePicker picker(32);
  for (uint32_t id = 0; id < 2; ++id) REQUIRE(picker.add(instance(id, id, 100)).ok());
  picker.start({0}, need(0, 0, 60));
  picker.start({1}, need(1, 0, 5));
  CHECK(picker.pick(need(9, 0, 10), kNowhere, PlaceBy::kFewestRunning) == InstanceId{1});
  CHECK(picker.pick(need(9, 0, 10), cached_at(0, 0), PlaceBy::kFewestRunning) == InstanceId{0});
  picker.start({1}, need(2, 0, 5));
  CHECK(picker.pick(need(9, 0, 10), cached_at(1, 1), PlaceBy::kFewestRunning) == InstanceId{0});
}

TEST_CASE("instance picker: a removed instance gets nothing more and may come back once it is empty") {
  InstancePicker picker(32);
  REQUIRE(picker.add(instance(0, 0, 100)).ok());
  picker.start({0}, need(0, 0, 10));
  picker.remove({0});
  CHECK_FALSE(picker.is_open({0}));
  CHECK_FALSE(picker.pick(need(0, 0, 10), cached_at(0, 0)));
  picker.end({0}, need(0, 0, 10));
  REQUIRE(picker.add(instance(0, 0, 100)).ok());
  CHECK(picker.used_blocks({0}) == 0);
  CHECK(picker.pick(need(0, 0, 10), kNowhere) == InstanceId{0});
}

TEST_CASE("instance picker: an instance without room or with other block sizes is refused") {
  InstancePicker picker(32);
  CHECK(picker.add(instance(0, 0, 0)).error().code == Code::kInvalidArgument);
  REQUIRE(picker.add(instance(0, 0, 10)).ok());
  InstanceLimits other = instance(1, 0, 10);
  other.block_tokens = 32;
  CHECK(picker.add(other).error().code == Code::kInvalidArgument);
  CHECK(picker.open_instances().size() == 1);
}

TEST_CASE("instance picker: picks what a walk over everything picks") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    auto below = [&](uint64_t n) { return static_cast<int64_t>(rng() % n); };
    SlowPicker slow;
    slow.inflight_spread_max = static_cast<int32_t>(below(4));
    InstancePicker picker(slow.inflight_spread_max);
    const uint32_t count = 1 + static_cast<uint32_t>(below(8));
    const int64_t kv_blocks = 60 + below(100);
    const bool same_size = below(2) == 0;
    for (uint32_t id = 0; id < count; ++id) {
      slow.instances.push_back(instance(id, id / 2, same_size ? kv_blocks : 60 + below(100), 16 + 8 * (seed % 2)));
      REQUIRE(picker.add(slow.instances.back()).ok());
    }
    for (int turn = 0; turn < 300; ++turn) {
      KvNeed wanted = need(static_cast<uint32_t>(below(6)), 0, 1 + below(40));
      wanted.prompt_blocks = 3 * (wanted.group.index % 4);
      const auto last = static_cast<uint32_t>(below(count));
      const CachedAt cached = below(2) == 0 ? kNowhere : cached_at(last, last / 2);
      const PlaceBy by = std::vector{PlaceBy::kCached, PlaceBy::kMostRoom, PlaceBy::kFewestRunning}[seed % 3];
      const auto picked = picker.pick(wanted, cached, by);
      REQUIRE(picked == slow.pick(wanted, cached, by));
      if (picked) {
        wanted.own_blocks = picker.start(*picked, wanted);
        slow.runs.push_back({*picked, wanted});
        REQUIRE(picker.used_blocks(*picked) <= picker.limits(*picked).kv_blocks);
      }
      if (!slow.runs.empty() && (!picked || below(3) == 0)) {
        const auto index = static_cast<size_t>(below(slow.runs.size()));
        SlowPicker::Run& run = slow.runs[index];
        if (below(2) == 0) {
          const int64_t growth = below(3);
          run.charged.own_blocks += growth;
          picker.recharge(run.instance, growth);
        } else {
          picker.end(run.instance, run.charged);
          slow.runs.erase(slow.runs.begin() + static_cast<std::ptrdiff_t>(index));
        }
      }
      for (const InstanceLimits& limits : slow.instances)
        REQUIRE(picker.used_blocks(limits.id) == slow.used(limits.id));
    }
  }
}

TEST_CASE("instance picker: an instance that is known to be slower takes a request only when the fast ones have no room") {
  for (const PlaceBy by : {PlaceBy::kCached, PlaceBy::kMostRoom, PlaceBy::kFewestRunning}) {
    CAPTURE(static_cast<int>(by));
    InstancePicker picker(32);
    for (uint32_t id = 0; id < 3; ++id) REQUIRE(picker.add(instance(id, id, 100, 1)).ok());
    picker.set_token_us({0}, 4000);
    picker.set_token_us({1}, 1000);
    picker.set_token_us({2}, 1100);
    const KvNeed wanted = need(0, 0, 10);
    CHECK(picker.pick(wanted, cached_at(0, 0), by) == InstanceId{1});
    picker.start({1}, wanted);
    CHECK(picker.token_us_least() == 1000);
    CHECK(picker.pick(wanted, cached_at(0, 0), by) == InstanceId{2});
    picker.start({2}, wanted);
    CHECK(picker.pick(wanted, kNowhere, by) == InstanceId{0});
    picker.end({2}, wanted);
    picker.end({1}, wanted);
    picker.set_token_us({0}, 1000 * kSlowerMax);
    CHECK(picker.pick(wanted, cached_at(0, 0), by) == InstanceId{0});
  }
}

TEST_CASE("instance picker: a request stays on an instance that is a little slower, while others avoid it, and leaves one that is much slower") {
  for (const PlaceBy by : {PlaceBy::kCached, PlaceBy::kMostRoom, PlaceBy::kFewestRunning}) {
    CAPTURE(static_cast<int>(by));
    InstancePicker picker(32);
    for (uint32_t id = 0; id < 2; ++id) REQUIRE(picker.add(instance(id, id, 100, 4)).ok());
    const KvNeed wanted = need(0, 0, 10);
    picker.set_token_us({1}, 1000);
    picker.set_token_us({0}, 1000 * (kSlowerMax + kLeftMax) / 2);
    CHECK(picker.pick(wanted, cached_at(0, 0), by) == InstanceId{0});
    CHECK(picker.pick(wanted, kNowhere, by) == InstanceId{1});
    CHECK(picker.pick(wanted, cached_at(1, 1), by) == InstanceId{1});
    picker.set_token_us({0}, 1000 * kLeftMax + 1);
    CHECK(picker.pick(wanted, cached_at(0, 0), by) == InstanceId{1});
  }
}
