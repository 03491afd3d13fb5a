#include "actors/policy/schedule/chunk_scheduler.h"

#include <doctest/doctest.h>

#include <limits>

#include "actors/policy/schedule/divided_scheduler.h"
#include "actors/policy/schedule/policies.h"

using namespace seer;

namespace {

constexpr int64_t kSecondUs = 1'000'000;

struct GroupShape {
  uint32_t id = 0;
  uint32_t samples = 1;
  int64_t prompt_tokens = 16;
  int64_t max_tokens = 160;
  std::vector<int64_t> known_tokens = {};
};

GroupSpec group_of(const GroupShape& shape) {
  GroupSpec spec;
  spec.id = {shape.id};
  spec.prompt_ids.assign(static_cast<size_t>(shape.prompt_tokens), 1);
  spec.samples = shape.samples;
  spec.sampling.max_tokens = shape.max_tokens;
  spec.known_tokens = shape.known_tokens;
  return spec;
}

// A scheduler with chunks of 32 tokens and a full reserve, so that block counts are easy to follow: a request with p
// prompt and g output tokens needs ceil((p + g + 32) / 16) + 1 blocks.
struct Desk {
  std::unique_ptr<ChunkScheduler> scheduler;
  int64_t now_us = 0;

  explicit Desk(const std::string& policy, ChunkSchedulerConfig config = {.chunk_tokens = 32, .reserve_share = 1.0}) {
    config.policy = policy;
    scheduler = std::move(make_chunk_scheduler(config)).value();
  }
  Desk& instance(uint32_t id, int64_t kv_blocks, int32_t rows_max = 256) {
    REQUIRE(scheduler->add_instance({.id = {id}, .node = {id}, .kv_blocks = kv_blocks, .rows_max = rows_max}).ok());
    return *this;
  }
  Desk& group(const GroupShape& shape) {
    REQUIRE(scheduler->add_group(group_of(shape), now_us).ok());
    return *this;
  }
  std::vector<Placement> place() {
    std::vector<Placement> placements;
    while (auto placement = scheduler->next(now_us)) placements.push_back(*placement);
    return placements;
  }
  Placement place_one() {
    const auto placements = place();
    REQUIRE(placements.size() == 1);
    return placements[0];
  }
  void end(const Placement& placement, int64_t generated, ChunkEnd end = ChunkEnd::kChunkFull) {
    scheduler->chunk_ended(placement.request, generated, end, now_us);
  }
  /// On an instance with one row: the order in which requests get it, each running one chunk of `tokens`.
  std::vector<RequestId> serve(int turns, int64_t tokens) {
    std::vector<RequestId> order;
    for (int turn = 0; turn < turns; ++turn) {
      const Placement placement = place_one();
      order.push_back(placement.request);
      now_us += 1000;
      end(placement, scheduler->requests().at(placement.request).generated_tokens + tokens);
    }
    return order;
  }
};

RequestId request(uint32_t group, uint32_t sample) { return {{group}, sample}; }
std::vector<RequestId> requests_of(const std::vector<Placement>& placements) {
  std::vector<RequestId> ids;
  for (const Placement& placement : placements) ids.push_back(placement.request);
  return ids;
}
using Order = std::vector<RequestId>;

}  // namespace

TEST_CASE("chunk scheduler: settings out of range are refused") {
  CHECK_FALSE(make_chunk_scheduler({.chunk_tokens = -1}).ok());
  CHECK_FALSE(make_chunk_scheduler({.reserve_share = 1.5}).ok());
  CHECK_FALSE(make_chunk_scheduler({.reserve_share = std::numeric_limits<double>::quiet_NaN()}).ok());
  CHECK_FALSE(make_chunk_scheduler({.starve_us = -1}).ok());
  CHECK_FALSE(make_chunk_scheduler({.unexplained_before = 1.5}).ok());
  CHECK_FALSE(make_chunk_scheduler({.inflight_spread_max = -1}).ok());
  CHECK_FALSE(make_chunk_scheduler({.misses_max = 0}).ok());
}

TEST_CASE("chunk scheduler: a group that no instance can hold is refused with the numbers and adds nothing") {
  for (const std::string& policy : chunk_policy_names()) {
    CAPTURE(policy);
    Desk desk(policy);
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
  Desk desk("divided");
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
  Desk desk("divided", {.chunk_tokens = 100, .reserve_share = 0.1});
  desk.instance(0, 100).group({.prompt_tokens = 38});
  CHECK(desk.place_one().credit_blocks == 4);  // ceil((38 + 10) / 16) + 1
}

TEST_CASE("chunk scheduler: without chunks a response runs whole, with the reserve of at most 2048 tokens") {
  Desk desk("divided", {.chunk_tokens = 0, .reserve_share = 0.5});
  desk.instance(0, 1000).group({.prompt_tokens = 16, .max_tokens = 10'000});
  const Placement placement = desk.place_one();
  CHECK(placement.max_new_tokens == 10'000);
  CHECK(placement.credit_blocks == 1 + 1024 / 16 + 1);
}

TEST_CASE("chunk scheduler: the last chunk is what the limit leaves") {
  Desk desk("divided");
  desk.instance(0, 100).group({.max_tokens = 40});
  Placement placement = desk.place_one();
  CHECK(placement.max_new_tokens == 32);
  desk.end(placement, 32);
  CHECK(desk.place_one().max_new_tokens == 8);
}

TEST_CASE("chunk scheduler: an idle instance takes a request that its reserve would not fit, a busy one does not") {
  Desk desk("divided");
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
  Desk desk("divided");
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
  Desk desk("divided", {.chunk_tokens = 128, .reserve_share = 0});
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

TEST_CASE("chunk scheduler: requests that fit nowhere are passed by, up to misses_max of them") {
  for (const int32_t misses_max : {1, 2}) {
    CAPTURE(misses_max);
    Desk desk("divided", {.chunk_tokens = 32, .reserve_share = 1.0, .misses_max = misses_max});
    desk.instance(0, 12);
    desk.group({}).place_one();                                                      // 4 of 12 blocks
    desk.group({.id = 1, .prompt_tokens = 112, .max_tokens = 32}).group({.id = 2});  // 10 blocks, 4 blocks
    CHECK(requests_of(desk.place()) == (misses_max == 1 ? Order{} : Order{request(2, 0)}));
  }
}

TEST_CASE("chunk scheduler: an idle fleet looks past any number of requests that are too large for it") {
  Desk desk("las", {.chunk_tokens = 32, .reserve_share = 1.0, .misses_max = 1});
  desk.instance(0, 100);
  for (uint32_t id = 0; id < 5; ++id) desk.group({.id = id, .prompt_tokens = 1000});
  desk.group({.id = 9});
  desk.scheduler->remove_instance({0});
  desk.instance(1, 20);
  const Placement placement = desk.place_one();
  CHECK(placement.request == request(9, 0));
  CHECK(desk.scheduler->stalled().ok());
  desk.end(placement, 10, ChunkEnd::kFinished);
  CHECK(desk.place().empty());
  const Status stalled = desk.scheduler->stalled();
  REQUIRE_FALSE(stalled.ok());
  CHECK(stalled.error().code == Code::kFull);
  CHECK(stalled.error().detail ==
        "request 0.0 has 1000 prompt and 0 output tokens and may grow to 73 KV blocks; the largest instance left holds "
        "20");
}

TEST_CASE("chunk scheduler: waiting without any instance is reported and ends when one comes") {
  for (const std::string& policy : chunk_policy_names()) {
    CAPTURE(policy);
    Desk desk(policy);
    desk.group({.samples = 2, .known_tokens = {5, 5}});
    CHECK(desk.place().empty());
    REQUIRE_FALSE(desk.scheduler->stalled().ok());
    CHECK(desk.scheduler->stalled().error().code == Code::kUnavailable);
    desk.instance(0, 100);
    CHECK(desk.place().size() == 2);
    CHECK(desk.scheduler->stalled().ok());
  }
}

TEST_CASE("chunk scheduler: requests of a lost instance run elsewhere and go on where they were") {
  for (const std::string& policy : chunk_policy_names()) {
    CAPTURE(policy);
    Desk desk(policy);
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

TEST_CASE("verl: groups are dealt round robin over all instances, also those added after the groups") {
  Desk desk("verl");
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
  Desk desk("verl");
  desk.instance(0, 100, 1).instance(1, 100, 1);
  desk.group({.samples = 2});
  const Placement first = desk.place_one();
  CHECK(first.instance == InstanceId{0});
  desk.end(first, 160, ChunkEnd::kFinished);
  CHECK(desk.place_one().instance == InstanceId{0});
}

TEST_CASE("verl: admission looks at the KV held now, not at lengths, and is first come first served") {
  Desk desk("verl");
  desk.instance(0, 12).group({}).group({.id = 1, .prompt_tokens = 96, .max_tokens = 96});
  desk.group({.id = 2, .prompt_tokens = 80, .max_tokens = 80}).group({.id = 3});
  const auto placements = desk.place();  // 2 and 7 blocks; group 2 needs 6, and group 3 waits behind it
  REQUIRE(requests_of(placements) == Order{request(0, 0), request(1, 0)});
  desk.scheduler->progressed(request(0, 0), 49);  // 5 blocks held now
  desk.end(placements[1], 1, ChunkEnd::kFinished);
  CHECK_MESSAGE(requests_of(desk.place()) == Order{request(2, 0)}, "5 + 6 of 12 blocks leave none for group 3");
}

TEST_CASE("verl: the latest admitted gives way first and then stands at the front of the queue") {
  Desk desk("verl");
  desk.instance(0, 100, 2).group({.samples = 4});
  const auto placements = desk.place();
  REQUIRE(requests_of(placements) == Order{request(0, 0), request(0, 1)});
  CHECK(placements[1].yield_rank > placements[0].yield_rank);
  desk.now_us += kSecondUs;
  desk.end(placements[1], 50, ChunkEnd::kPreempted);
  CHECK(desk.place_one().request == request(0, 1));
}

TEST_CASE("verl: a preempted request comes back only where the watermark stays free beside it, of one hundredth or none") {
  for (const auto& [held, watermark_share] : {std::pair{93, 0.01}, {94, 0.01}, {95, 0.0}, {96, 0.0}}) {
    CAPTURE(held);
    ChunkSchedulerConfig config;
    config.watermark_share = watermark_share;
    Desk desk("verl", config);
    desk.instance(0, 200, 2).group({.prompt_tokens = 16, .max_tokens = 3000}).group({.id = 1, .max_tokens = 3000});
    const auto placements = desk.place();
    REQUIRE(placements.size() == 2);
    desk.end(placements[1], 104 * 16 - 17, ChunkEnd::kPreempted);  // needs 105 blocks
    desk.scheduler->progressed(request(0, 0), 16 * held - 16);     // of 200 blocks
    CHECK(desk.place().size() == (held == 93 || held == 95 ? 1 : 0));
  }
}

TEST_CASE("verl: groups of a lost instance are dealt anew, each to one instance") {
  Desk desk("verl");
  desk.instance(0, 100, 1).instance(1, 100, 4).instance(2, 100, 4);
  const Placement lost = desk.group({.samples = 3}).place_one();
  desk.scheduler->remove_instance({0});
  desk.end(lost, 10, ChunkEnd::kPreempted);
  const auto placements = desk.place();
  REQUIRE(placements.size() == 3);
  for (const Placement& placement : placements) CHECK(placement.instance == placements[0].instance);
}

TEST_CASE("divided: the longest waiting goes first, and a request that had a chunk goes to the back") {
  Desk desk("divided");
  desk.instance(0, 100, 1).group({.samples = 2}).group({.id = 1, .samples = 1});
  CHECK(desk.serve(5, 8) == Order{request(0, 0), request(0, 1), request(1, 0), request(0, 0), request(0, 1)});
}

TEST_CASE("divided: the latest started gives way first") {
  Desk desk("divided");
  desk.instance(0, 100).group({.samples = 3});
  const auto placements = desk.place();
  REQUIRE(placements.size() == 3);
  CHECK(placements[0].yield_rank < placements[1].yield_rank);
  CHECK(placements[1].yield_rank < placements[2].yield_rank);
}

TEST_CASE("las: the least generated goes first and the most generated gives way first") {
  Desk desk("las");
  desk.instance(0, 100, 1).group({.samples = 2});
  Placement placement = desk.place_one();
  desk.end(placement, 30);
  placement = desk.place_one();
  CHECK(placement.request == request(0, 1));
  desk.end(placement, 10);
  CHECK(desk.serve(2, 5) == Order{request(0, 1), request(0, 1)});
  desk.instance(1, 100);
  const auto placements = desk.place();
  REQUIRE(requests_of(placements) == Order{request(0, 1), request(0, 0)});
  CHECK(placements[1].yield_rank > placements[0].yield_rank);
}

TEST_CASE("seer: probes go first, the one with the least generated tokens before the others") {
  Desk desk("seer");
  desk.instance(0, 100, 1).group({.samples = 2}).group({.id = 1, .samples = 2, .max_tokens = 200});
  CHECK(desk.serve(4, 8) == Order{request(0, 0), request(1, 0), request(0, 0), request(1, 0)});
}

TEST_CASE("seer: after the probes the largest group estimate goes first") {
  Desk desk("seer");
  desk.instance(0, 100, 3);
  for (uint32_t id = 0; id < 3; ++id) desk.group({.id = id, .samples = 2});
  const auto probes = desk.place();
  REQUIRE(requests_of(probes) == Order{request(0, 0), request(1, 0), request(2, 0)});
  desk.end(probes[0], 30, ChunkEnd::kFinished);
  desk.scheduler->estimate_changed({0}, 30);
  CHECK_MESSAGE(desk.place_one().request == request(1, 1), "a group without a finished member counts as long");
  desk.end(probes[1], 50, ChunkEnd::kFinished);
  desk.scheduler->estimate_changed({1}, 50);
  CHECK(desk.place_one().request == request(2, 1));
  desk.scheduler->estimate_changed({0}, 80);
  desk.end(probes[2], 40, ChunkEnd::kFinished);
  CHECK(desk.place_one().request == request(0, 1));
}

TEST_CASE("seer: a request that outgrew its group's estimate counts as long as it is") {
  Desk desk("seer");
  desk.instance(0, 100, 1).group({.samples = 2}).group({.id = 1, .samples = 2});
  desk.end(desk.place_one(), 10, ChunkEnd::kFinished);
  desk.end(desk.place_one(), 10, ChunkEnd::kFinished);
  desk.scheduler->estimate_changed({0}, 20);
  desk.scheduler->estimate_changed({1}, 10);
  const Placement placement = desk.place_one();
  REQUIRE(placement.request == request(0, 1));
  desk.scheduler->estimate_changed({0}, 5);
  desk.end(placement, 12);
  CHECK(desk.place_one().request == request(0, 1));
}

TEST_CASE("seer: the smallest estimate gives way first and probes last") {
  Desk desk("seer");
  desk.instance(0, 100).group({.samples = 2, .max_tokens = 100}).group({.id = 1, .samples = 2, .max_tokens = 150});
  const auto placements = desk.place();
  REQUIRE(requests_of(placements) == Order{request(0, 0), request(1, 0), request(1, 1), request(0, 1)});
  CHECK(placements[0].yield_rank < placements[2].yield_rank);
  CHECK(placements[1].yield_rank < placements[2].yield_rank);
  CHECK(placements[2].yield_rank < placements[3].yield_rank);
}

TEST_CASE("seer: a starved request goes before a longer estimate, but only now and then") {
  Desk desk("seer", {.chunk_tokens = 32, .reserve_share = 1.0, .starve_us = 30 * kSecondUs});
  desk.instance(0, 100, 1).group({.samples = 3, .max_tokens = 100}).group({.id = 1, .samples = 3, .max_tokens = 1000});
  desk.end(desk.place_one(), 1, ChunkEnd::kFinished);
  desk.end(desk.place_one(), 1, ChunkEnd::kFinished);
  CHECK(desk.serve(1, 1) == Order{request(1, 1)});
  desk.now_us = 30 * kSecondUs;
  CHECK_MESSAGE(desk.serve(1, 1) == Order{request(1, 1)}, "waited no longer than the limit");
  desk.now_us = 31 * kSecondUs;
  CHECK(desk.serve(1, 1) == Order{request(0, 1)});
  const Order after = desk.serve(kStarvedEvery - 1, 1);
  CHECK(after == Order(kStarvedEvery - 1, request(1, 1)));
  CHECK_MESSAGE(desk.serve(1, 1) == Order{request(0, 2)}, "the next of those that starve");
}

TEST_CASE("oracle: the longest remaining goes first and the shortest remaining gives way first") {
  Desk desk("oracle");
  desk.instance(0, 100, 1).group({.samples = 3, .known_tokens = {40, 60, 50}});
  CHECK(desk.serve(4, 8) == Order{request(0, 1), request(0, 1), request(0, 2), request(0, 1)});
  desk.instance(1, 100);
  const auto placements = desk.place();
  REQUIRE(requests_of(placements) == Order{request(0, 2), request(0, 0), request(0, 1)});  // 42, 40, 36 remaining
  CHECK(placements[0].yield_rank < placements[1].yield_rank);
  CHECK(placements[1].yield_rank < placements[2].yield_rank);
}

TEST_CASE("oracle: a group without known lengths is refused") {
  Desk desk("oracle");
  desk.instance(0, 100);
  const Status refused = desk.scheduler->add_group(group_of({.samples = 2, .known_tokens = {40}}), 0);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == Code::kInvalidArgument);
  CHECK(refused.error().detail == "group 0 has 1 known lengths for 2 samples; the oracle policy needs one each");
}
