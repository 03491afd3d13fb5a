#include "actors/policy/schedule/verl_scheduler.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "policy/schedule/scheduler_desk.h"

using namespace seer;

TEST_CASE("verl: groups are dealt round robin over all instances, also those added after the groups") {
  SchedulerDesk desk("verl");
  for (uint32_t id = 0; id < 4; ++id) desk.group({.id = id, .samples = 2});
  desk.instance(0, 100).instance(1, 100).instance(2, 100);
  for (const Placement& placement : desk.place()) {
    CHECK(placement.instance.value == placement.request.group.index % 3);
    CHECK_FALSE(placement.keep_kv);
    CHECK(placement.max_new_tokens == 160);
  }
  CHECK(desk.scheduler->running_count() == 8);
}

TEST_CASE("verl: a request stays with its instance although others are idle") {
  SchedulerDesk desk("verl");
  desk.instance(0, 100, 1).instance(1, 100, 1);
  desk.group({.samples = 2});
  const Placement first = desk.place_one();
  CHECK(first.instance == InstanceId{0});
  desk.end(first, 160, ChunkEnd::kFinished);
  CHECK(desk.place_one().instance == InstanceId{0});
}

TEST_CASE("verl: admission looks at the KV held now, not at lengths, and is first come first served") {
  SchedulerDesk desk("verl");
  desk.instance(0, 12).group({}).group({.id = 1, .prompt_tokens = 96, .max_tokens = 96});
  desk.group({.id = 2, .prompt_tokens = 80, .max_tokens = 80}).group({.id = 3});
  const auto placements = desk.place();  // 2 and 7 blocks; group 2 needs 6, and group 3 waits behind it
  REQUIRE(requests_of(placements) == Order{request(0, 0), request(1, 0)});
  desk.scheduler->progressed(request(0, 0), 49);  // 5 blocks held now
  desk.end(placements[1], 1, ChunkEnd::kFinished);
  CHECK_MESSAGE(requests_of(desk.place()) == Order{request(2, 0)}, "5 + 6 of 12 blocks leave none for group 3");
}

TEST_CASE("verl: the latest admitted gives way first and then stands at the front of the queue") {
  SchedulerDesk desk("verl");
  desk.instance(0, 100, 2).group({.samples = 4});
  const auto placements = desk.place();
  REQUIRE(requests_of(placements) == Order{request(0, 0), request(0, 1)});
  CHECK(placements[1].yield_rank > placements[0].yield_rank);
  desk.now_us += 1000;
  desk.end(placements[1], 50, ChunkEnd::kPreempted);
  CHECK(desk.place_one().request == request(0, 1));
}

TEST_CASE("verl: a preempted request comes back only where the watermark stays free beside it, of one hundredth or none") {
  for (const auto& [held, watermark_share] : {std::pair{93, 0.01}, {94, 0.01}, {95, 0.0}, {96, 0.0}}) {
    CAPTURE(held);
    ChunkSchedulerConfig config;
    config.watermark_share = watermark_share;
    SchedulerDesk desk("verl", config);
    desk.instance(0, 200, 2).group({.prompt_tokens = 16, .max_tokens = 3000}).group({.id = 1, .max_tokens = 3000});
    const auto placements = desk.place();
    REQUIRE(placements.size() == 2);
    desk.end(placements[1], 104 * 16 - 17, ChunkEnd::kPreempted);  // needs 105 blocks
    desk.scheduler->progressed(request(0, 0), 16 * held - 16);     // of 200 blocks
    CHECK(desk.place().size() == (held == 93 || held == 95 ? 1 : 0));
  }
}

TEST_CASE("verl: groups of a lost instance are dealt anew, each to one instance") {
  SchedulerDesk desk("verl");
  desk.instance(0, 100, 1).instance(1, 100, 4).instance(2, 100, 4);
  const Placement lost = desk.group({.samples = 3}).place_one();
  desk.scheduler->remove_instance({0});
  desk.end(lost, 10, ChunkEnd::kPreempted);
  const auto placements = desk.place();
  REQUIRE(placements.size() == 3);
  for (const Placement& placement : placements) CHECK(placement.instance == placements[0].instance);
}

TEST_CASE("verl: an instance too small for a group is passed by, and the round goes on after the one that took it") {
  SchedulerDesk desk("verl");
  desk.instance(0, 100).instance(1, 10).instance(2, 100);  // a group of the usual shape may come to 11 blocks
  for (uint32_t id = 0; id < 3; ++id) desk.group({.id = id});
  desk.group({.id = 3, .max_tokens = 16});
  std::vector<uint32_t> homes;
  for (const Placement& placement : desk.place()) homes.push_back(placement.instance.value * 10 + placement.request.group.index);
  std::ranges::sort(homes);
  CHECK(homes == std::vector<uint32_t>{0, 2, 13, 21});  // ten times the instance, plus the group
}
