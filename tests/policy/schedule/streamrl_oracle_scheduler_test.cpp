#include "actors/policy/schedule/streamrl_oracle_scheduler.h"

#include <doctest/doctest.h>

#include <map>

using namespace seer;

namespace {

struct KnownGroup {
  uint32_t id = 0;
  std::vector<int64_t> lengths;
  int64_t prompt_tokens = 16;
};

GroupSpec spec_of(const KnownGroup& group) {
  GroupSpec spec;
  spec.id = {group.id};
  spec.prompt_ids.assign(static_cast<size_t>(group.prompt_tokens), 1);
  spec.samples = static_cast<uint32_t>(group.lengths.size());
  spec.sampling.max_tokens = 1600;
  spec.known_tokens = group.lengths;
  return spec;
}

struct Desk {
  StreamrlOracleScheduler scheduler{ChunkSchedulerConfig{}};

  explicit Desk(uint32_t instances, int64_t kv_blocks = 1000, int32_t rows_max = 256) {
    for (uint32_t id = 0; id < instances; ++id)
      REQUIRE(scheduler.add_instance({.id = {id}, .node = {id}, .kv_blocks = kv_blocks, .rows_max = rows_max}).ok());
  }
  Desk& group(const KnownGroup& group) {
    REQUIRE(scheduler.add_group(spec_of(group), 0).ok());
    return *this;
  }
  std::vector<Placement> place() {
    std::vector<Placement> placements;
    while (auto placement = scheduler.next(0)) placements.push_back(*placement);
    return placements;
  }
  /// Where the first request of each group runs.
  std::map<uint32_t, uint32_t> homes() {
    std::map<uint32_t, uint32_t> homes;
    for (const Placement& p : place()) {
      const auto [home, is_new] = homes.try_emplace(p.request.group.index, p.instance.value);
      CHECK_MESSAGE(home->second == p.instance.value, "a group is not split");
      CHECK_FALSE(p.keep_kv);
      CHECK(p.max_new_tokens == 1600);
    }
    return homes;
  }
};

}  // namespace

TEST_CASE("streamrl-oracle: groups of similar length share instances, dealt to buckets in proportion to their work") {
  Desk desk(4);
  // Work L x (16 + L): the three long groups have 3 x 2 x 1000 x 1016, the eight short ones 8 x 2 x 350 x 366: a share
  // of 3 and of 1 of the 4 instances.
  for (uint32_t id = 0; id < 8; ++id) desk.group({id, {350, 350}});
  for (uint32_t id = 8; id < 11; ++id) desk.group({id, {1000, 1000}});
  const auto homes = desk.homes();
  for (uint32_t id = 0; id < 8; ++id) CHECK(homes.at(id) == 3);
  CHECK(homes.at(8) == 0);
  CHECK(homes.at(9) == 1);
  CHECK(homes.at(10) == 2);
}

TEST_CASE("streamrl-oracle: groups within a factor of two are one bucket, as is work for less than half an instance") {
  Desk desk(2);
  desk.group({0, {400}}).group({1, {390}}).group({2, {200}}).group({3, {10}});
  const auto homes = desk.homes();  // the longest group left to the instance with the least work
  CHECK(homes == std::map<uint32_t, uint32_t>{{0, 0}, {1, 1}, {2, 1}, {3, 0}});
}

TEST_CASE("streamrl-oracle: longer responses run with smaller concurrency, as many as fit at their end") {
  Desk desk(2, 101);  // 1616 tokens
  for (uint32_t id = 0; id < 4; ++id) desk.group({id, {784, 784}});     // 2 x 800 tokens fit
  for (uint32_t id = 4; id < 36; ++id) desk.group({id, {269, 269}});    // 5 x 285
  std::map<uint32_t, int> running;
  for (const Placement& p : desk.place()) ++running[p.instance.value];
  CHECK(running[0] == 2);
  CHECK(running[1] == 5);
}

TEST_CASE("streamrl-oracle: a response that takes more than its share still runs, one at a time") {
  Desk desk(1, 101);
  desk.group({0, {1600, 1600}});
  const auto first = desk.place();
  REQUIRE(first.size() == 1);
  desk.scheduler.chunk_ended(first[0].request, 1600, ChunkEnd::kFinished, 0);
  CHECK(desk.place().size() == 1);
}

TEST_CASE("streamrl-oracle: an instance serves its longest group first") {
  Desk desk(1, 1000, 1);
  desk.group({0, {30}}).group({1, {50}}).group({2, {40}});
  std::vector<uint32_t> order;
  for (int i = 0; i < 3; ++i) {
    const auto placed = desk.place();
    REQUIRE(placed.size() == 1);
    order.push_back(placed[0].request.group.index);
    desk.scheduler.chunk_ended(placed[0].request, 30, ChunkEnd::kFinished, 0);
  }
  CHECK(order == std::vector<uint32_t>{1, 2, 0});
}

TEST_CASE("streamrl-oracle: groups of a lost instance go to the instance with the least work left") {
  Desk desk(3);
  desk.group({0, {1000}}).group({1, {900}}).group({2, {800}});
  const auto placed = desk.place();
  REQUIRE(placed.size() == 3);
  REQUIRE(placed[0].instance == InstanceId{0});
  desk.scheduler.chunk_ended(placed[1].request, 900, ChunkEnd::kFinished, 0);
  desk.scheduler.remove_instance({0});
  desk.scheduler.chunk_ended(placed[0].request, 10, ChunkEnd::kLost, 0);
  const auto again = desk.place();
  REQUIRE(again.size() == 1);
  CHECK(again[0].request == placed[0].request);
  CHECK(again[0].instance == placed[1].instance);
}

TEST_CASE("streamrl-oracle: a group without known lengths is refused") {
  Desk desk(1);
  GroupSpec spec = spec_of({0, {40, 40}});
  spec.known_tokens = {40};
  const Status refused = desk.scheduler.add_group(spec, 0);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == Code::kInvalidArgument);
  CHECK(refused.error().detail ==
        "group 0 has 1 known lengths for 2 samples; the streamrl-oracle policy needs one each");
}
