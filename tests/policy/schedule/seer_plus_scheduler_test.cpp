#include "actors/policy/schedule/seer_plus_scheduler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "actors/policy/schedule/policies.h"

using namespace seer;

namespace {

using Order = std::vector<RequestId>;
RequestId request(uint32_t group, uint32_t sample) { return {{group}, sample}; }

/// A scheduler with chunks of 32 tokens, of which a tenth is promised: a request with p prompt and g output tokens
/// needs ceil((p + g + 4) / 16) + 1 blocks.
struct Desk {
  SeerPlusScheduler scheduler;
  int64_t now_us = 0;

  explicit Desk(double unexplained_before = 1, std::vector<std::string> without = {}, bool is_open = false)
      : scheduler({.policy = "seer+",
                   .chunk_tokens = 32,
                   .reserve_share = find_policy(kSeerPlusPolicy)->reserve_share,
                   .is_open = is_open,
                   .starve_us = 1'000'000,
                   .unexplained_before = unexplained_before,
                   .without = std::move(without)}) {}
  Desk& instance(uint32_t id, int64_t kv_blocks, int32_t rows_max = 256) {
    REQUIRE(scheduler.add_instance({.id = {id}, .node = {id}, .kv_blocks = kv_blocks, .rows_max = rows_max}).ok());
    return *this;
  }
  Desk& group(uint32_t id, uint32_t samples, int64_t max_tokens = 160) {
    GroupSpec spec;
    spec.id = {id};
    spec.prompt_ids.assign(16, 1);
    spec.samples = samples;
    spec.sampling.max_tokens = max_tokens;
    REQUIRE(scheduler.add_group(spec, now_us).ok());
    return *this;
  }
  std::vector<Placement> place() {
    std::vector<Placement> placements;
    while (auto placement = scheduler.next(now_us)) placements.push_back(*placement);
    return placements;
  }
  Placement place_one() {
    const auto placements = place();
    REQUIRE(placements.size() == 1);
    return placements[0];
  }
  void end(RequestId id, int64_t generated, ChunkEnd end = ChunkEnd::kChunkFull) {
    scheduler.chunk_ended(id, generated, end, ++now_us);
  }
  Order serve(int turns, int64_t tokens) {
    Order order;
    for (int turn = 0; turn < turns; ++turn) {
      order.push_back(place_one().request);
      end(order.back(), scheduler.requests().at(order.back()).generated_tokens + tokens);
    }
    return order;
  }
};

}  // namespace

TEST_CASE("seer+: where lengths are predicted, probes go first until a member has finished") {
  Desk desk(0.001);
  desk.instance(0, 100, 1).group(0, 2).group(1, 2);
  CHECK(desk.serve(4, 8) == Order{request(0, 0), request(1, 0), request(0, 0), request(1, 0)});
  desk.end(desk.place_one().request, 20, ChunkEnd::kFinished);  // request 0.0
  const Order next = desk.serve(2, 20);
  CHECK_MESSAGE(next == Order(2, request(1, 0)), "group 1 has no finished member");
  desk.end(desk.place_one().request, 60, ChunkEnd::kFinished);
  CHECK_MESSAGE(desk.serve(2, 8) == Order(2, request(1, 1)), "the longer group");
}

TEST_CASE("seer+: with unequal limits the request that could still need more goes first") {
  Desk desk;
  desk.instance(0, 100, 2).group(0, 1, 100).group(1, 1, 150);
  const auto placements = desk.place();
  REQUIRE(placements.size() == 2);
  CHECK(placements[0].request == request(1, 0));
  CHECK_MESSAGE(placements[0].yield_rank < placements[1].yield_rank, "and it yields later");
}

TEST_CASE("seer+: memory is filled with requests, promised a tenth of a chunk each") {
  Desk desk;
  desk.instance(0, 13).group(0, 8);
  const auto placements = desk.place();  // one block for the prompt, then two each
  CHECK(placements.size() == 6);
  CHECK(placements[0].credit_blocks == 3);
}

TEST_CASE("seer+: without a reserve_share it promises a tenth of a chunk, other policies all of it") {
  for (const auto& [policy, credit_blocks] : {std::pair{"seer+", 3}, std::pair{"seer", 4}}) {
    CAPTURE(policy);
    auto scheduler = std::move(make_chunk_scheduler({.policy = policy, .chunk_tokens = 32})).value();
    REQUIRE(scheduler->add_instance({.id = {0}, .node = {0}, .kv_blocks = 100}).ok());
    GroupSpec spec;
    spec.prompt_ids.assign(16, 1);
    spec.samples = 1;
    spec.sampling.max_tokens = 160;
    REQUIRE(scheduler->add_group(spec, 0).ok());
    CHECK(scheduler->next(0)->credit_blocks == credit_blocks);
  }
}

TEST_CASE("seer+: once fewer requests wait than there are instances, one goes to where the fewest run") {
  Desk desk;
  desk.instance(0, 100).instance(1, 100).group(0, 3, 600);
  const auto placements = desk.place();
  REQUIRE(placements.size() == 3);
  REQUIRE(placements[1].instance == InstanceId{1});
  REQUIRE(placements[2].instance == InstanceId{0});
  desk.scheduler.progressed(placements[1].request, 500);  // instance 1 runs one request and is the fuller one
  CHECK(desk.group(1, 1).place_one().instance == InstanceId{1});
  CHECK_MESSAGE(desk.group(2, 8).place()[0].instance == InstanceId{0}, "while many wait, room decides");
}

namespace {
/// 1.0 just ended a chunk on instance 1. 2.0 is first in order, with its KV on instance 0; that of 3.0 is on instance 1.
Desk& kv_apart(Desk& desk) {
  desk.instance(0, 100, 1).instance(1, 100, 1);
  for (uint32_t id = 0; id < 4; ++id) desk.group(id, 1);
  for (const int64_t tokens : {10, 20})  // two at a time, one on each instance
    for (const Placement& placement : desk.place()) desk.end(placement.request, tokens + placement.instance.value);
  REQUIRE(desk.place().size() == 2);  // 0.0 and 1.0 again
  desk.end(request(1, 0), 30);
  return desk;
}
}  // namespace

TEST_CASE("seer+: a request with KV on the machine goes before one whose KV is elsewhere, a bounded number of times in a row") {
  Desk desk;
  kv_apart(desk);
  for (int times = 0; times < kPassedByMax; ++times) {
    const Placement placement = desk.place_one();
    REQUIRE(placement.instance == InstanceId{1});
    REQUIRE(placement.request == request(3, 0));
    desk.end(placement.request, 21);
  }
  CHECK(desk.place_one().request == request(2, 0));
}

TEST_CASE("seer+: without nearness the first in order goes first, wherever its KV is") {
  Desk desk(1, {"nearby"});
  CHECK(kv_apart(desk).place_one().request == request(2, 0));
}

TEST_CASE("seer+: if lengths were explained before, a member of a group with short others waits") {
  for (const double unexplained_before : {0.0, 1.0}) {
    CAPTURE(unexplained_before);
    Desk desk(unexplained_before);
    desk.instance(0, 100'000, 400);
    for (uint32_t id = 0; id < 100; ++id) desk.group(id, 4, 60'000);
    // Even groups are of about 300 tokens, odd ones of about 9 000.
    for (const Placement& placement : desk.place()) {
      const RequestId id = placement.request;
      const int64_t length = (id.group.index % 2 ? 9000 : 300) + 7 * id.sample + id.group.index;
      if (id != request(0, 3) && id != request(1, 3)) desk.end(id, length, ChunkEnd::kFinished);
    }
    REQUIRE(desk.scheduler.running_count() == 2);
    desk.end(request(0, 3), 100, ChunkEnd::kYielded);
    desk.end(request(1, 3), 4000, ChunkEnd::kYielded);
    const auto order = desk.place();
    REQUIRE(order.size() == 2);
    CHECK(order[0].request == (unexplained_before == 0 ? request(1, 3) : request(0, 3)));
  }
}

TEST_CASE("seer+: without its probes, or where lengths are not predicted, all members of a group are served alike") {
  for (Desk desk : {Desk(0.001, {"probes"}), Desk(1), Desk(0.02)}) {
    desk.instance(0, 100, 1).group(0, 2).group(1, 2);
    CHECK(desk.serve(5, 8) == Order{request(0, 0), request(0, 1), request(1, 0), request(1, 1), request(0, 0)});
  }
}

TEST_CASE("seer+: without the need, what waited longest is served") {
  Desk desk(1, {"need"});
  desk.instance(0, 100, 1).group(0, 2);
  desk.end(desk.place_one().request, 3);
  desk.end(desk.place_one().request, 30);
  CHECK(desk.serve(4, 8) == Order{request(0, 0), request(0, 1), request(0, 0), request(0, 1)});
}

TEST_CASE("seer+: without its yields, the latest started gives way") {
  for (const bool without : {false, true}) {
    CAPTURE(without);
    Desk desk(1, without ? std::vector<std::string>{"yield"} : std::vector<std::string>{});
    desk.instance(0, 100, 1).group(0, 1, 600);
    desk.end(desk.place_one().request, 100);
    const uint64_t first = desk.place_one().yield_rank;
    const uint64_t second = desk.instance(1, 100, 1).group(1, 1, 650).place_one().yield_rank;
    CHECK((second > first) == without);
  }
}

TEST_CASE("seer+: without the spread, room decides to the end") {
  Desk desk(1, {"spread"});
  desk.instance(0, 100).instance(1, 100).group(0, 3, 600);
  const auto placements = desk.place();
  REQUIRE(placements.size() == 3);
  desk.scheduler.progressed(placements[1].request, 500);
  CHECK(desk.group(1, 1).place_one().instance == InstanceId{0});
}

TEST_CASE("seer+: in an open rollout a request that has waited too long goes first, but only now and then") {
  for (const bool is_open : {false, true}) {
    CAPTURE(is_open);
    Desk desk(1, {}, is_open);
    desk.instance(0, 100, 1).group(0, 2, 64).group(1, 3, 1000);
    const Order longest = desk.serve(6, 1);
    CHECK(std::ranges::all_of(longest, [](RequestId id) { return id.group == GroupId{1}; }));
    desk.now_us = 2'000'000;
    const Order after = desk.serve(kStarvedEvery + 1, 1);
    for (size_t i = 0; i < after.size(); ++i) CHECK((after[i].group == GroupId{0}) == (is_open && i % kStarvedEvery == 0));
    if (is_open) CHECK(after.front() != after.back());
    desk.scheduler.cancel(request(0, 0), desk.now_us);
    desk.scheduler.cancel(request(0, 1), desk.now_us);
    desk.now_us += 2'000'000;
    const Order rest = desk.serve(2 * kStarvedEvery, 1);
    CHECK(std::ranges::all_of(rest, [](RequestId id) { return id.group == GroupId{1}; }));
  }
}
