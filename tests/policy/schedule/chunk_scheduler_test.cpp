#include "actors/policy/schedule/chunk_scheduler.h"

#include <doctest/doctest.h>

#include <limits>
#include <map>

#include "actors/policy/schedule/divided_scheduler.h"
#include "policy/schedule/scheduler_desk.h"

using namespace seer;

TEST_CASE("chunk scheduler: settings out of range are refused") {
  CHECK_FALSE(make_chunk_scheduler({.chunk_tokens = -1}).ok());
  CHECK_FALSE(make_chunk_scheduler({.reserve_share = 1.5}).ok());
  CHECK_FALSE(make_chunk_scheduler({.reserve_share = std::numeric_limits<double>::quiet_NaN()}).ok());
  CHECK_FALSE(make_chunk_scheduler({.starve_us = -1}).ok());
  CHECK_FALSE(make_chunk_scheduler({.unexplained_before = 1.5}).ok());
  CHECK(make_chunk_scheduler({.without = {"probes", "spread"}}).ok());
  CHECK_FALSE(make_chunk_scheduler({.without = {"probe"}}).ok());
  CHECK_FALSE(make_chunk_scheduler({.inflight_spread_max = -1}).ok());
  CHECK_FALSE(make_chunk_scheduler({.misses_max = 0}).ok());
  CHECK_FALSE(make_chunk_scheduler({.running_max = -1}).ok());
}

TEST_CASE("chunk scheduler: a group that no instance can hold is refused with the numbers and adds nothing") {
  for (const std::string& policy : chunk_policy_names()) {
    CAPTURE(policy);
    SchedulerDesk desk(policy);
    desk.instance(0, 8).instance(1, 12);
    GroupShape shape{.prompt_tokens = 33, .max_tokens = 160, .known_tokens = {5}};
    const Status refused = desk.scheduler->add_group(group_of(shape), 0);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == Code::kInvalidArgument);
    CHECK(refused.error().detail ==
          "group 0: a prompt of 33 tokens with max_tokens=160 needs 13 KV blocks; the largest instance holds 12 blocks "
          "of 16 tokens");
    CHECK(desk.scheduler->waiting_count() == 0);
    shape.prompt_tokens = 32;
    CHECK(desk.scheduler->add_group(group_of(shape), 0).ok());
    CHECK_FALSE_MESSAGE(desk.scheduler->add_group(group_of(shape), 0).ok(), "the same group again");
    CHECK_FALSE(desk.scheduler->add_group(group_of({.id = 1, .samples = 0}), 0).ok());
    CHECK_FALSE(desk.scheduler->add_group(group_of({.id = 1, .prompt_tokens = 0, .known_tokens = {5}}), 0).ok());
    CHECK_FALSE(desk.scheduler->add_group(group_of({.id = 1, .max_tokens = 0, .known_tokens = {5}}), 0).ok());
    CHECK(desk.scheduler->waiting_count() == 1);
  }
}

TEST_CASE("chunk scheduler: a chunk is promised its reserve and one block, its prompt's blocks once per instance") {
  SchedulerDesk desk("divided");
  desk.instance(0, 100).group({.samples = 2, .prompt_tokens = 40});
  const auto placements = desk.place();
  REQUIRE(placements.size() == 2);
  CHECK(placements[0].max_new_tokens == 32);
  CHECK(placements[0].credit_blocks == 6);  // ceil((40 + 32) / 16) + 1
  CHECK(placements[0].keep_kv);
  const auto& divided = dynamic_cast<DividedScheduler&>(*desk.scheduler);
  CHECK(divided.picker().used_blocks({0}) == 2 + 4 + 4);  // two whole prompt blocks, then each one's own
}

TEST_CASE("chunk scheduler: a small reserve promises a share of the chunk only") {
  SchedulerDesk desk("divided", {.chunk_tokens = 100, .reserve_share = 0.1});
  desk.instance(0, 100).group({.prompt_tokens = 38});
  CHECK(desk.place_one().credit_blocks == 4);  // ceil((38 + 10) / 16) + 1
}

TEST_CASE("chunk scheduler: without chunks a response runs whole, with the reserve of at most 2048 tokens") {
  SchedulerDesk desk("divided", {.chunk_tokens = 0, .reserve_share = 0.5});
  desk.instance(0, 1000).group({.prompt_tokens = 16, .max_tokens = 10'000});
  const Placement placement = desk.place_one();
  CHECK(placement.max_new_tokens == 10'000);
  CHECK(placement.credit_blocks == 1 + 1024 / 16 + 1);
}

TEST_CASE("chunk scheduler: the last chunk is what the limit leaves") {
  SchedulerDesk desk("divided");
  desk.instance(0, 100).group({.max_tokens = 40});
  Placement placement = desk.place_one();
  CHECK(placement.max_new_tokens == 32);
  desk.end(placement, 32);
  CHECK(desk.place_one().max_new_tokens == 8);
}

TEST_CASE("chunk scheduler: an idle instance takes a request that its reserve would not fit, a busy one does not") {
  SchedulerDesk desk("divided");
  desk.instance(0, 11).group({.samples = 2, .max_tokens = 160});  // 16 + 160 tokens: 11 blocks
  const auto first = desk.place();
  REQUIRE(first.size() == 2);  // 4 blocks, then 3 more beside the shared prompt block
  desk.end(first[0], 130, ChunkEnd::kYielded);
  desk.end(first[1], 130, ChunkEnd::kYielded);
  const Placement again = desk.place_one();  // ceil((16 + 130 + 30) / 16) + 1 = 12 of 11 blocks
  CHECK(again.credit_blocks == 11);
  CHECK(again.max_new_tokens == 30);
}

TEST_CASE("chunk scheduler: a chunk is cut to what the instance could hold alone") {
  SchedulerDesk desk("divided");
  desk.instance(0, 11).group({});
  Placement placement = desk.place_one();
  desk.end(placement, 32);
  desk.scheduler->remove_instance({0});
  desk.instance(1, 4);
  placement = desk.place_one();
  CHECK(placement.instance == InstanceId{1});
  CHECK(placement.max_new_tokens == 4 * 16 - 16 - 32);
}

TEST_CASE("chunk scheduler: growth beyond the promise takes room from others") {
  SchedulerDesk desk("divided", {.chunk_tokens = 128, .reserve_share = 0});
  desk.instance(0, 12).group({}).group({.id = 1});
  const auto placements = desk.place();
  REQUIRE(placements.size() == 2);  // 2 blocks each
  desk.group({.id = 2});
  desk.scheduler->progressed(request(0, 0), 80);  // ceil((16 + 80 + headroom 32) / 16) = 8 blocks, and 2, of 12
  const Placement third = desk.place_one();
  CHECK(third.request == request(2, 0));
  desk.end(third, 1, ChunkEnd::kYielded);
  desk.scheduler->progressed(request(0, 0), 81);
  CHECK(desk.place().empty());
}

TEST_CASE("chunk scheduler: waiting without any instance is reported and ends when one comes") {
  for (const std::string& policy : chunk_policy_names()) {
    CAPTURE(policy);
    SchedulerDesk desk(policy);
    desk.group({.samples = 2, .known_tokens = {5, 5}});
    CHECK(desk.place().empty());
    REQUIRE_FALSE(desk.scheduler->stalled().ok());
    CHECK(desk.scheduler->stalled().error().code == Code::kUnavailable);
    desk.instance(0, 100);
    CHECK(desk.place().size() == 2);
    CHECK(desk.scheduler->stalled().ok());
  }
}

TEST_CASE("chunk scheduler: requests of a lost instance run elsewhere and continue with their tokens") {
  for (const std::string& policy : chunk_policy_names()) {
    CAPTURE(policy);
    SchedulerDesk desk(policy);
    desk.instance(0, 100).instance(1, 100);
    desk.group({.known_tokens = {90}}).group({.id = 1, .known_tokens = {90}});
    const auto placements = desk.place();
    REQUIRE(placements.size() == 2);
    const Placement lost = placements[0].instance == InstanceId{0} ? placements[0] : placements[1];
    REQUIRE(lost.instance == InstanceId{0});
    desk.scheduler->remove_instance({0});
    CHECK(desk.place().empty());
    desk.end(lost, 20, ChunkEnd::kPreempted);
    const Placement again = desk.place_one();
    CHECK(again.request == lost.request);
    CHECK(again.instance == InstanceId{1});
    CHECK(desk.scheduler->requests().at(lost.request).generated_tokens == 20);
    desk.instance(0, 100);
    CHECK(desk.scheduler->running_count() == 2);
  }
}

TEST_CASE("chunk scheduler: in an open rollout a large request starts although smaller ones never cease to come") {
  for (const std::string& policy : chunk_policy_names([](const SchedulingPolicy& p) { return !p.needs_lengths; })) {
    CAPTURE(policy);
    constexpr int64_t kStepUs = 20'000, kStarveUs = 30'000'000;
    auto scheduler = std::move(*make_chunk_scheduler({.policy = policy, .chunk_tokens = 256, .is_open = true, .starve_us = kStarveUs}));
    REQUIRE(scheduler->add_instance({InstanceId{0}, NodeId{0}, 100, 16, 64}).ok());
    int64_t now_us = 0;
    uint32_t groups = 0;
    const auto add = [&](size_t prompt_tokens, int64_t max_tokens) {
      GroupSpec group{.id = GroupId{groups++}, .prompt_ids = std::vector<int32_t>(prompt_tokens, 1), .samples = 1, .sampling = {.max_tokens = max_tokens}, .seeds = {0}};
      REQUIRE(scheduler->add_group(group, now_us).ok());
      return RequestId{group.id, 0};
    };
    std::map<RequestId, int64_t> running;  // and their tokens
    const auto place = [&] {
      while (const auto placed = scheduler->next(now_us)) running[placed->request] = scheduler->requests().at(placed->request).generated_tokens;
    };
    for (int i = 0; i < 40; ++i) add(16, 128);
    place();
    const RequestId large = add(800, 256);  // 67 of the 100 blocks
    while (!running.contains(large) && now_us < 4 * kStarveUs) {
      now_us += kStepUs;
      std::vector<RequestId> over;
      for (auto& [request, tokens] : running) {
        scheduler->progressed(request, ++tokens);
        if (tokens >= 40 + request.group.index * 37 % 88) over.push_back(request);
      }
      for (const RequestId request : over) {
        scheduler->chunk_ended(request, running.at(request), ChunkEnd::kFinished, now_us);
        running.erase(request);
        add(16, 128);
      }
      place();
    }
    CHECK(running.contains(large));
    CHECK(now_us < kStarveUs + 128 * kStepUs + 1'000'000);
  }
}

TEST_CASE("chunk scheduler: requests that only a large instance can hold do not keep small ones idle") {
  for (const std::string policy : {"divided", "divided-rr", "las", "seer", "seer+"}) {
    CAPTURE(policy);
    auto scheduler = std::move(*make_chunk_scheduler({.policy = policy, .chunk_tokens = 256}));
    REQUIRE(scheduler->add_instance({InstanceId{0}, NodeId{0}, 1000, 16, 64}).ok());
    for (uint32_t i = 1; i < 4; ++i) REQUIRE(scheduler->add_instance({InstanceId{i}, NodeId{i}, 100, 16, 64}).ok());
    for (uint32_t id = 0; id < 40; ++id) {
      const size_t prompt_tokens = id < 20 ? 4000 : 100;
      const GroupSpec group{.id = GroupId{id}, .prompt_ids = std::vector<int32_t>(prompt_tokens, 1), .samples = 2, .sampling = {.max_tokens = 400}, .seeds = {0, 1}};
      REQUIRE(scheduler->add_group(group, 0).ok());
    }
    std::map<InstanceId, int> placed;
    while (const auto placement = scheduler->next(0)) ++placed[placement->instance];
    for (uint32_t i = 1; i < 4; ++i) CHECK(placed[InstanceId{i}] >= 4);  // as many as have room
  }
}

TEST_CASE("chunk scheduler: in an open rollout a starved request holds only those instances back that could run it") {
  for (const std::string policy : {"seer", "seer+"}) {
    CAPTURE(policy);
    constexpr int64_t kStarveUs = 30'000'000;
    auto scheduler = std::move(*make_chunk_scheduler({.policy = policy, .chunk_tokens = 256, .is_open = true, .starve_us = kStarveUs}));
    REQUIRE(scheduler->add_instance({InstanceId{0}, NodeId{0}, 1000, 16, 64}).ok());
    REQUIRE(scheduler->add_instance({InstanceId{1}, NodeId{1}, 100, 16, 64}).ok());
    const auto add = [&](uint32_t id, size_t prompt_tokens, int64_t now_us) {
      const GroupSpec group{.id = GroupId{id}, .prompt_ids = std::vector<int32_t>(prompt_tokens, 1), .samples = 1, .sampling = {.max_tokens = 400}, .seeds = {0}};
      REQUIRE(scheduler->add_group(group, now_us).ok());
    };
    std::map<InstanceId, int> placed;
    const auto place = [&](int64_t now_us) {
      placed.clear();
      while (const auto placement = scheduler->next(now_us)) ++placed[placement->instance];
    };
    for (uint32_t id = 0; id < 3; ++id) add(id, 7000, 0);
    place(0);
    CHECK(placed == std::map<InstanceId, int>{{InstanceId{0}, 2}});
    for (uint32_t id = 3; id < 40; ++id) add(id, 60, 2 * kStarveUs);
    place(2 * kStarveUs);
    CHECK(placed[InstanceId{0}] == 0);  // it has room for some, but the third large one waits for it
    CHECK(placed[InstanceId{1}] >= 4);  // as many as have room
  }
}
