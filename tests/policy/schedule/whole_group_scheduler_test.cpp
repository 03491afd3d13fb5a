#include "actors/policy/schedule/whole_group_scheduler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

using namespace seer;

namespace {

/// Deals every group to the open instance with the smallest id that can hold it.
class FirstInstance final : public WholeGroupScheduler {
 public:
  using WholeGroupScheduler::homes;
  using WholeGroupScheduler::WholeGroupScheduler;

 private:
  std::vector<Home> deal(const std::vector<GroupId>& homeless) override {
    std::vector<Home> dealt;
    for (const GroupId group : homeless)
      for (const InstanceId instance : ledger_.picker().open_instances())
        if (ledger_.can_hold(instance, requests().group(group))) {
          dealt.push_back({group, instance});
          break;
        }
    return dealt;
  }
};

struct Desk {
  explicit Desk(double watermark_share = 0) : scheduler({.watermark_share = watermark_share}) {}
  Desk& instance(uint32_t id, int64_t kv_blocks, int32_t rows_max = 256) {
    REQUIRE(scheduler.add_instance({.id = {id}, .node = {id}, .kv_blocks = kv_blocks, .rows_max = rows_max}).ok());
    return *this;
  }
  Desk& group(uint32_t id, uint32_t samples, int64_t max_tokens = 64) {
    GroupSpec spec;
    spec.id = {id};
    spec.samples = samples;
    spec.prompt_ids.assign(16, 1);
    spec.sampling.max_tokens = max_tokens;
    REQUIRE(scheduler.add_group(spec, 0).ok());
    return *this;
  }
  std::vector<RequestId> place() {
    std::vector<RequestId> placed;
    while (const auto p = scheduler.next(0)) {
      CHECK_FALSE(p->keep_kv);
      placed.push_back(p->request);
    }
    return placed;
  }
  void end(uint32_t group_id, uint32_t sample, ChunkEnd how) {
    const RequestId id{GroupId{group_id}, sample};
    scheduler.chunk_ended(id, scheduler.requests().at(id).generated_tokens, how, 1);
  }
  FirstInstance scheduler;
};

RequestId id(uint32_t group, uint32_t sample) { return {GroupId{group}, sample}; }

}  // namespace

TEST_CASE("whole groups: a preempted request comes back only into blocks that are free on the device, too") {
  // The first holds 4 of 10 blocks, and the second needs 3 of its own and one more. Its group's prompt is there.
  for (const int64_t in_use : {4, 6, 7}) {
    CAPTURE(in_use);
    Desk d;
    d.instance(0, 10).group(0, 2, 100);
    REQUIRE(d.place().size() == 2);
    for (const uint32_t sample : {0u, 1u}) d.scheduler.progressed({GroupId{0}, sample}, 48);
    d.scheduler.kv_in_use({0}, in_use);
    d.end(0, 1, ChunkEnd::kPreempted);
    CHECK(d.place().size() == (in_use <= 6 ? 1 : 0));
  }
}

TEST_CASE("whole groups: all requests of a group run in its home, in order, as rows come free") {
  Desk d;
  d.instance(0, 100, 2).group(0, 3).group(1, 1);
  CHECK(d.place() == std::vector{id(0, 0), id(0, 1)});
  d.end(0, 0, ChunkEnd::kFinished);
  CHECK(d.place() == std::vector{id(0, 2)});
  d.end(0, 2, ChunkEnd::kFinished);
  CHECK(d.place() == std::vector{id(1, 0)});
}

TEST_CASE("whole groups: the front of the queue waits for room, and nobody overtakes it") {
  Desk d;
  d.instance(0, 3).group(0, 3, 32);
  // A block of the prompt, and for each request one to grow into: 1 + 1 + 1 = 3 blocks.
  CHECK(d.place() == std::vector{id(0, 0), id(0, 1)});
  CHECK(d.place().empty());
  d.end(0, 1, ChunkEnd::kFinished);
  CHECK(d.place() == std::vector{id(0, 2)});
}

TEST_CASE("whole groups: the watermark keeps a share of the KV free") {
  Desk none(0), half(0.5);
  none.instance(0, 8).group(0, 4);
  half.instance(0, 8).group(0, 4);
  CHECK(none.place().size() > half.place().size());
  CHECK(half.scheduler.requests().totals().running > 0);
}

TEST_CASE("whole groups: a preempted request goes to the front of its home's queue") {
  Desk d;
  d.instance(0, 100, 2).group(0, 4);
  CHECK(d.place() == std::vector{id(0, 0), id(0, 1)});
  d.end(0, 1, ChunkEnd::kPreempted);
  CHECK(d.place() == std::vector{id(0, 1)});
  d.end(0, 0, ChunkEnd::kFinished);
  CHECK(d.place() == std::vector{id(0, 2)});
}

TEST_CASE("whole groups: when an instance is gone its groups move, what waited at once and what ran when it is given up") {
  Desk d;
  d.instance(0, 100, 1).group(0, 2);
  CHECK(d.place() == std::vector{id(0, 0)});
  d.instance(1, 100, 4);
  CHECK(d.place().empty());  // a group moves only when its instance is gone
  d.scheduler.remove_instance(InstanceId{0});
  CHECK(d.place() == std::vector{id(0, 1)});
  CHECK(d.scheduler.homes().at(GroupId{0}) == InstanceId{1});
  d.end(0, 0, ChunkEnd::kLost);
  CHECK(d.place() == std::vector{id(0, 0)});
}

TEST_CASE("whole groups: a group that no instance can hold waits until one comes that can") {
  Desk d;
  d.group(0, 1, 320).instance(0, 10);
  CHECK(d.place().empty());
  CHECK_FALSE(d.scheduler.stalled().ok());
  d.instance(1, 30);
  CHECK(d.place() == std::vector{id(0, 0)});
}

TEST_CASE("whole groups: the latest admitted has the largest yield rank") {
  Desk d;
  d.instance(0, 100).group(0, 3);
  uint64_t last = 0;
  for (int i = 0; i < 3; ++i) {
    const auto placement = d.scheduler.next(0);
    REQUIRE(placement.has_value());
    CHECK(placement->yield_rank > last);
    last = placement->yield_rank;
  }
}

TEST_CASE("whole groups: whatever ends and whoever goes, every request finishes, and a running group is in one place") {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    Desk d;
    uint32_t instances = 2;
    for (uint32_t i = 0; i < instances; ++i) d.instance(i, 12, 3);
    for (uint32_t g = 0; g < 5; ++g) d.group(g, 1 + below(4));
    std::vector<RequestId> running;
    int steps = 0;
    while (d.scheduler.requests().totals().waiting > 0 || !running.empty()) {
      REQUIRE(++steps < 2000);
      for (const RequestId placed : d.place()) {
        CHECK(d.scheduler.requests().at(placed).instance == d.scheduler.homes().at(placed.group));
        running.push_back(placed);
      }
      if (below(20) == 0 && d.scheduler.homes().size() > 1) {  // a machine fails, and another comes
        const InstanceId gone = d.scheduler.homes().begin()->second;
        d.scheduler.remove_instance(gone);
        std::erase_if(running, [&](RequestId r) {
          if (d.scheduler.requests().at(r).instance != gone) return false;
          d.end(r.group.index, r.sample, ChunkEnd::kLost);
          return true;
        });
        d.instance(instances++, 12, 3);
        continue;
      }
      if (running.empty()) continue;
      const auto at = running.begin() + below(static_cast<uint32_t>(running.size()));
      const RequestId ended = *at;
      running.erase(at);
      d.end(ended.group.index, ended.sample, below(3) == 0 ? ChunkEnd::kPreempted : ChunkEnd::kFinished);
    }
    CHECK(d.scheduler.requests().totals().running == 0);
  }
}
