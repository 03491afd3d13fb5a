// Several rollouts on the same instances, KV pool and draft servers, with the same group numbers and prompts: none may change a
// response of another, or keep it waiting.
#include <doctest/doctest.h>

#include <set>

#include "actors/cluster_checks.h"

using namespace seer;

namespace {

/// Another rollout on a cluster, with groups like the cluster's own but other responses.
struct OtherRollout {
  OtherRollout(SimCluster& cluster_in, RolloutId id) : cluster(cluster_in), groups(cluster_in.groups) {
    for (GroupSpec& group : groups) {
      group.id.rollout = id;
      for (uint32_t s = 0; s < group.samples; ++s) {
        const uint64_t seed = sample_seed(SimCluster::kRunSeed + id.value, group.id.index, s);
        group.seeds[s] = seed;
        group.known_tokens[s] = 1 + static_cast<int64_t>(mix64(seed) % static_cast<uint64_t>(cluster.options.length_max));
        cluster.shapes[seed] = {std::ssize(group.prompt_ids), group.known_tokens[s], group.id.index};
      }
    }
    events = collect_events(cluster.world, seen, true);
    RolloutConfig config{.id = id, .scheduler = cluster.options.scheduler};
    config.instances_expected = cluster.options.instances;
    config.draft_ttl_us = SimCluster::kDraftTtlUs;
    rollout = cluster.fleet.start_rollout(config, {groups}, events);
  }
  bool over() const { return !seen.summaries.empty(); }
  void finish() {
    cluster.world.run_until(600'000'000, [this] { return over() && cluster.over(); });
  }
  void check_exact() const {
    REQUIRE(over());
    CHECK_MESSAGE(seen.summaries[0].complete, seen.summaries[0].error);
    std::set<RequestId> answered;
    for (const Response& r : seen.responses) {
      CAPTURE(r.request);
      CHECK(answered.insert(r.request).second);
      const OutputTokens right = cluster.answer(groups.at(r.request.group.index), r.request.sample);
      CHECK(r.output.ids == right.ids);
      CHECK(r.output.logprobs == right.logprobs);
    }
    CHECK(answered.size() == cluster.requests);
  }

  SimCluster& cluster;
  std::vector<GroupSpec> groups;
  SimEvents seen;
  RolloutEvents events;
  RolloutHandle rollout;
};

/// Short of device KV, over two machines; everything that rollouts could mix up is in use.
SimClusterOptions shared_cluster(const std::string& policy) {
  SimClusterOptions o;
  o.scheduler.policy = policy;
  o.nodes = 2;
  o.device_blocks = 60;
  o.draft_tokens_max = 4;
  o.draft_from_group = o.draft_servers = true;
  o.alike_share = 0.9;
  return o;
}

/// An open rollout of groups with one response each.
struct OpenRollout {
  OpenRollout(SimCluster& cluster_in, RolloutId id_in) : cluster(cluster_in), id(id_in) {
    events = collect_events(cluster.world, seen, true);
    RolloutConfig config{.id = id, .scheduler = cluster.options.scheduler};
    config.instances_expected = cluster.options.instances;
    config.open = config.cuts_lengths = true;
    rollout = cluster.fleet.start_rollout(config, {}, events);
  }
  void add(uint32_t count, int64_t prompt_tokens, int64_t output_tokens) {
    AddGroups add;
    for (uint32_t i = 0; i < count; ++i, ++groups) {
      const uint64_t seed = sample_seed(SimCluster::kRunSeed + id.value, groups, 0);
      GroupSpec group{.id = {groups, id}, .samples = 1, .sampling = {.max_tokens = output_tokens}, .seeds = {seed}, .known_tokens = {output_tokens}};
      for (int64_t t = 0; t < prompt_tokens; ++t) group.prompt_ids.push_back(2 + static_cast<int32_t>(hash_pair(seed, static_cast<uint64_t>(t)) % (SimCluster::kVocab - 2)));
      cluster.shapes[seed] = {prompt_tokens, output_tokens, groups};
      add.groups.push_back(std::move(group));
    }
    rt::post(rollout, std::move(add));
  }
  bool over() const { return seen.completed.size() == groups; }

  SimCluster& cluster;
  const RolloutId id;
  uint32_t groups = 0;
  SimEvents seen;
  RolloutEvents events;
  RolloutHandle rollout;
};

constexpr int64_t kSettleUs = 1'000'000;  // for what is still under way after the end

}  // namespace

TEST_CASE("two rollouts: one after the other, with the same group numbers, each answers as if alone") {
  for (const std::string& policy : chunk_policy_names()) {
    CAPTURE(policy);
    SimCluster cluster(shared_cluster(policy));
    cluster.run();
    OtherRollout second(cluster, RolloutId{1});
    second.finish();
    check_exact(cluster);
    second.check_exact();
    cluster.run_for(kSettleUs);
    check_drained(cluster);
  }
}

TEST_CASE("two rollouts: overlapping ones answer as if each were alone, whichever begins first") {
  for (const std::string& policy : chunk_policy_names()) {
    for (const int64_t later_us : {0, 3'000, 20'000, 60'000}) {
      CAPTURE(policy);
      CAPTURE(later_us);
      SimCluster cluster(shared_cluster(policy));
      cluster.start();
      cluster.run_for(later_us);
      OtherRollout second(cluster, RolloutId{1}), third(cluster, RolloutId{2});
      second.finish();
      third.finish();
      check_exact(cluster);
      second.check_exact();
      third.check_exact();
      cluster.run_for(kSettleUs);
      check_drained(cluster);
    }
  }
}

TEST_CASE("two rollouts: one that is stopped drops its own chunks only, also where many steps are done at once") {
  for (const bool many_steps : {false, true}) {
    CAPTURE(many_steps);
    auto o = shared_cluster("divided");
    if (many_steps) {
      o.has_kv = false;
      o.draft_tokens_max = 0;
      o.draft_from_group = o.draft_servers = false;
      o.steps_max = 64;
    }
    SimCluster cluster(o);
    cluster.start();
    OtherRollout second(cluster, RolloutId{1});
    cluster.run_for(5'000);
    REQUIRE_FALSE(second.over());
    rt::post(second.rollout, StopRollout{});
    second.finish();
    CHECK(second.seen.summaries.at(0).error == "stopped");
    REQUIRE(cluster.over());
    CHECK(cluster.seen.summaries[0].complete);
    for (const Response& r : cluster.seen.responses) CHECK(r.output.ids == cluster.answer(r.request).ids);
    cluster.run_for(kSettleUs);
    check_drained(cluster);
  }
}

TEST_CASE("two rollouts: a machine that comes back is announced to both") {
  SimCluster cluster(shared_cluster("seer"));
  cluster.start();
  OtherRollout second(cluster, RolloutId{1});
  cluster.run_for(5'000);
  cluster.kill_instance(InstanceId{0});
  second.finish();
  check_exact(cluster);
  second.check_exact();
  CHECK(rt::look<RolloutActor>(second.rollout).instances.up().size() == cluster.options.instances);
  CHECK(rt::look<RolloutActor>(cluster.fleet.rollout()).instances.up().size() == cluster.options.instances);
}

TEST_CASE("several rollouts: one that comes later gets its share of the prefill, whichever has the lower number") {
  for (const uint32_t number : {1, 3}) {
    CAPTURE(number);
    SimClusterOptions o;
    o.instances = 1;
    o.device_blocks = 4096;
    SimCluster cluster(o);
    OpenRollout busy(cluster, RolloutId{2}), later(cluster, RolloutId{number});
    busy.add(400, 200, 8);
    cluster.run_for(50'000);
    REQUIRE_FALSE(busy.over());
    later.add(4, 40, 8);
    const int64_t begin_us = cluster.world.now_us();
    cluster.world.run_until(600'000'000, [&] { return later.over(); });
    const int64_t took_us = cluster.world.now_us() - begin_us;
    cluster.world.run_until(600'000'000, [&] { return busy.over(); });
    CHECK(took_us * 10 < cluster.world.now_us() - begin_us);  // it did not wait until the other was over
  }
}

TEST_CASE("several rollouts: a request that needs much KV starts although another rollout's small ones never cease to come") {
  for (const std::string policy : {"divided", "seer", "seer+"}) {
    CAPTURE(policy);
    SimClusterOptions o;
    o.instances = 1;
    o.block_tokens = 16;
    o.device_blocks = 500;
    o.dram_blocks = 20'000;
    o.rows_max = 64;
    o.prefill_tokens_max = 512;
    o.scheduler = {.policy = policy, .chunk_tokens = 256, .reserve_share = policy == "seer+" ? 0.1 : 1.0, .starve_us = 1'000'000};
    SimCluster cluster(o);
    OpenRollout small(cluster, RolloutId{1}), large(cluster, RolloutId{2});
    small.add(200, 50, 100);
    cluster.run_for(30'000);
    large.add(1, 50, 5000);  // 316 blocks
    size_t ended = 0;
    while (!large.over() && cluster.world.now_us() < 60'000'000) {
      cluster.run_for(2'000);
      const size_t before = std::exchange(ended, small.seen.completed.size());
      small.add(static_cast<uint32_t>(ended - before), 50, 50 + static_cast<int64_t>(ended) * 7 % 100);
    }
    CHECK(large.over());
    CHECK(ended > 200);
  }
}
