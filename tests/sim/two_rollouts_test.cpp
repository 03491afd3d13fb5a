// Two rollouts on the same instances, KV pool and draft servers, with the same group numbers and prompts: neither may change a
// response of the other, or keep it from ending.
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
