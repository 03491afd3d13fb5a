// Runs every policy on many random rollouts; fleet_sim.h checks each promise.
#include "policy/schedule/fleet_sim.h"

#include <doctest/doctest.h>

#include <string>

using namespace seer;

namespace {

FleetSetup random_setup(const std::string& policy, uint64_t seed) {
  std::mt19937_64 rng(seed * 77);
  auto below = [&](uint64_t n) { return static_cast<int64_t>(rng() % n); };
  FleetSetup setup;
  setup.seed = seed;
  setup.config.policy = policy;
  setup.config.chunk_tokens = std::vector<int64_t>{0, 16, 50, 100, 1000}[static_cast<size_t>(below(5))];
  setup.config.reserve_share = std::vector<double>{0, 0.1, 0.5, 1}[static_cast<size_t>(below(4))];
  setup.config.starve_us = 100'000 * below(20);
  setup.config.unexplained_before = static_cast<double>(seed % 2);
  setup.config.inflight_spread_max = static_cast<int32_t>(below(8));
  setup.config.misses_max = static_cast<int32_t>(1 + below(8));
  setup.kv_blocks.clear();
  const int64_t instances = 1 + below(5);
  for (int64_t i = 0; i < instances; ++i) setup.kv_blocks.push_back(29 + below(60));  // 29 hold the longest alone
  setup.rows_max = static_cast<int32_t>(1 + below(24));
  setup.groups = static_cast<uint32_t>(1 + below(20));
  setup.samples = static_cast<uint32_t>(1 + below(6));
  setup.step_tokens_max = 1 + below(4);
  return setup;
}

std::string trace_of(const FleetResult& result) {
  std::string trace;
  for (const Placement& p : result.placements)
    trace += cat(p.request, "@", p.instance, "+", p.max_new_tokens, "/", p.credit_blocks, "/", p.yield_rank, " ");
  return trace;
}

}  // namespace

TEST_CASE("rollout: every policy finishes every request once and keeps every promise") {
  for (const std::string& policy : chunk_policy_names())
    for (uint64_t seed = 1; seed <= 150; ++seed) {
      CAPTURE(policy);
      CAPTURE(seed);
      FleetSim(random_setup(policy, seed)).run();
    }
}

TEST_CASE("rollout: instances that crash, drain and come back lose no request") {
  for (const std::string& policy : chunk_policy_names())
    for (uint64_t seed = 1; seed <= 150; ++seed) {
      CAPTURE(policy);
      CAPTURE(seed);
      FleetSetup setup = random_setup(policy, seed);
      setup.kv_blocks.push_back(29);
      setup.loss_probability = 0.02;
      FleetSim(setup).run();
    }
}

TEST_CASE("rollout: a large instance holds what the small ones cannot") {
  for (const std::string& policy : chunk_policy_names())
    for (uint64_t seed = 1; seed <= 50; ++seed) {
      CAPTURE(policy);
      CAPTURE(seed);
      FleetSetup setup = random_setup(policy, seed);
      setup.kv_blocks = {40, 5, 10};
      FleetSim(setup).run();
    }
}

TEST_CASE("rollout: the same input gives the same placements") {
  for (const std::string& policy : chunk_policy_names())
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(policy);
      CAPTURE(seed);
      FleetSetup setup = random_setup(policy, seed);
      setup.kv_blocks.push_back(40);
      setup.loss_probability = 0.01;
      CHECK(trace_of(FleetSim(setup).run()) == trace_of(FleetSim(setup).run()));
    }
}

TEST_CASE("rollout: a full reserve never yields and a small one never drops KV") {
  for (const std::string& policy : chunk_policy_names([](const SchedulingPolicy& p) { return !p.whole_groups; }))
    for (uint64_t seed = 1; seed <= 50; ++seed) {
      CAPTURE(policy);
      CAPTURE(seed);
      FleetSetup setup = random_setup(policy, seed);
      setup.config.chunk_tokens = 50;
      setup.config.reserve_share = 0.1;
      CHECK(FleetSim(setup).run().preemptions == 0);
      setup.config.reserve_share = 1;
      CHECK(FleetSim(setup).run().yields == 0);
    }
}

TEST_CASE("rollout: dividing beats fixed instances, knowing the context beats not knowing it") {
  std::map<std::string, int64_t> steps, preemptions;
  for (const std::string& policy : chunk_policy_names())
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      FleetSetup setup;
      setup.seed = seed;
      setup.config.policy = policy;
      setup.config.chunk_tokens = 50;
      setup.config.reserve_share = 0.1;
      setup.groups = 100;
      const FleetResult result = FleetSim(setup).run();
      steps[policy] += result.steps;
      preemptions[policy] += result.preemptions;
    }
  CHECK(steps["divided"] < steps["verl"]);
  CHECK(steps["seer"] < steps["divided"]);
  CHECK(steps["oracle"] < steps["seer"]);
  CHECK(steps["seer+"] < steps["divided"]);
  CHECK(preemptions["verl"] > 0);
}
