#include "actors/sim/sim_cluster.h"

#include <doctest/doctest.h>

#include <functional>
#include <string>

using namespace seer;

namespace {

/// The result of exact() after `edit` changed the responses of a good run.
std::string said_after(const std::function<void(SimEvents& seen)>& edit) {
  SimCluster cluster({.groups = 2, .samples = 2, .length_max = 20});
  cluster.run();
  REQUIRE(cluster.exact().ok());
  edit(cluster.seen);
  const Status status = cluster.exact();
  return status.ok() ? "" : status.error().detail;
}

}  // namespace

TEST_CASE("sim cluster: a good rollout is exact, and leaves nothing behind once it has settled") {
  for (const uint32_t nodes : {1, 2}) {
    CAPTURE(nodes);
    SimCluster cluster({.nodes = nodes, .cold_blocks = 100});
    cluster.run();
    CHECK(cluster.exact().ok());
    cluster.run_for(60'000'000);
    CHECK(cluster.drained().ok());
    CHECK(cluster.seen.responses.size() == cluster.requests);
  }
}

TEST_CASE("sim cluster: for each fault of a response, the verdict names the request and the fault") {
  CHECK(said_after([](SimEvents& seen) { seen.responses.push_back(seen.responses[0]); }).ends_with("was answered twice"));
  CHECK(said_after([](SimEvents& seen) { seen.responses.pop_back(); }) == "1 of 4 requests were not answered");
  CHECK(said_after([](SimEvents& seen) { seen.responses[0].output.ids[0] ^= 1; }).ends_with("has wrong tokens"));
  CHECK(said_after([](SimEvents& seen) { seen.responses[0].output.ids.pop_back(); }).ends_with("has wrong tokens"));
  CHECK(said_after([](SimEvents& seen) { seen.responses[0].output.logprobs[0] += 1; })
            .ends_with("has wrong log-probabilities: its KV was not right"));
  CHECK(said_after([](SimEvents& seen) { seen.responses[0].finish = FinishReason::kError; }).ends_with("ended by error"));
  CHECK(said_after([](SimEvents& seen) { seen.summaries.push_back(seen.summaries[0]); }) == "the rollout ended twice");
  CHECK(said_after([](SimEvents& seen) { seen.summaries[0].complete = false; }).starts_with("the rollout ended early"));
  CHECK(said_after([](SimEvents& seen) { seen.summaries.clear(); }) == "the rollout did not end");
  CHECK(said_after([](SimEvents& seen) { std::swap(seen.responses[0].request, seen.responses[1].request); }) != "");
}

TEST_CASE("sim cluster: while requests run, something is held") {
  SimCluster cluster({.samples = 4, .length_max = 100});
  cluster.start();
  cluster.run_for(2'000);
  REQUIRE_FALSE(cluster.over());
  const Status held = cluster.drained();
  REQUIRE_FALSE(held.ok());
  CHECK(held.error().code == Code::kFull);
}

TEST_CASE("sim cluster: a response ends with the end token at the length that was given, and its group's are as alike as asked for") {
  for (const double alike_share : {0.0, 0.5, 1.0}) {
    CAPTURE(alike_share);
    const SimCluster cluster({.work = {{.prompt_tokens = 5, .output_tokens = {300, 200, 1}}}, .alike_share = alike_share});
    const auto first = cluster.answer({GroupId{0}, 0}), second = cluster.answer({GroupId{0}, 1});
    REQUIRE(first.ids.size() == 300);
    REQUIRE(second.ids.size() == 200);
    CHECK(cluster.answer({GroupId{0}, 2}).ids == std::vector<int32_t>{SimCluster::kEos});
    CHECK(first.ids.back() == SimCluster::kEos);
    int alike = 0;
    for (size_t i = 0; i < 199; ++i) {
      CHECK(first.ids[i] > SimCluster::kEos);
      CHECK(first.ids[i] < SimCluster::kVocab);
      alike += first.ids[i] == second.ids[i];
    }
    // Each of two responses has the group's token with this probability.
    CHECK(alike >= (alike_share == 1 ? 199 : alike_share == 0.5 ? 30 : 0));
    CHECK(alike <= (alike_share == 1 ? 199 : alike_share == 0.5 ? 70 : 5));
  }
}

TEST_CASE("sim cluster: the same options give the same events, one slower instance others, with the same responses") {
  const auto events_hash = [](uint64_t seed, int64_t slowness) {
    SimCluster cluster({.seed = seed});
    cluster.slowness[1] = slowness;
    cluster.run();
    CHECK(cluster.exact().ok());
    return cluster.events_hash();
  };
  for (const uint64_t seed : {0, 1, 2}) {
    CAPTURE(seed);
    CHECK(events_hash(seed, 1) == events_hash(seed, 1));
    CHECK(events_hash(seed, 2) != events_hash(seed, 1));
  }
}

TEST_CASE("sim cluster: a machine that crashes is away for down_us, comes back empty, and the rollout is exact") {
  SimCluster cluster({.nodes = 2});
  cluster.start();
  cluster.run_for(2'000);
  cluster.crash_node(1, 50'000);
  cluster.run_for(49'000);
  CHECK_FALSE(cluster.is_up(1));
  CHECK(cluster.is_up(0));
  cluster.run_for(2'000);
  CHECK(cluster.is_up(1));
  cluster.finish();
  CHECK(cluster.exact().ok());
}

TEST_CASE("sim cluster: a directory that crashes is filled again, KV still moves between machines, and nothing stays behind") {
  SimCluster cluster({.scheduler = {.policy = "las", .chunk_tokens = 9, .inflight_spread_max = 0}, .instances = 3, .nodes = 3});
  cluster.start();
  cluster.world.run_until(60'000'000, [&] { return cluster.seen.responses.size() >= 4; });
  REQUIRE_FALSE(cluster.over());
  cluster.crash_directory(5'000);
  cluster.run_for(4'000);
  CHECK_FALSE(cluster.directory_is_up);
  cluster.run_for(2'000);
  const KvDirectoryActor& directory = rt::look<KvDirectoryActor>(cluster.directory());
  CHECK(directory.nodes.size() == 3);
  CHECK(directory.holders.size() > 4);  // requests that run, and their groups
  const int64_t fetched_before = cluster.fetched_blocks();
  cluster.finish();
  CHECK(cluster.exact().ok());
  CHECK(cluster.fetched_blocks() > fetched_before);
  cluster.run_for(60'000'000);
  CHECK(cluster.drained().ok());
}

TEST_CASE("sim cluster: an instance slowed by a factor takes that many times as long") {
  const auto wall_us = [](int64_t slowness) {
    SimCluster cluster({.instances = 1, .groups = 1, .samples = 1});
    cluster.slowness[0] = slowness;
    cluster.run();
    CHECK(cluster.exact().ok());
    return cluster.seen.summaries[0].wall_us;
  };
  CHECK(wall_us(10) > 8 * wall_us(1));
}
