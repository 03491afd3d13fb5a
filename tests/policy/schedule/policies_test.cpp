#include "actors/policy/schedule/policies.h"

#include <doctest/doctest.h>

#include <set>

#include "policy/schedule/fleet_sim.h"

using namespace seer;

namespace {

GroupSpec group_with(std::vector<int64_t> known_tokens) {
  GroupSpec spec;
  spec.id = {0};
  spec.prompt_ids.assign(16, 1);
  spec.samples = 2;
  spec.sampling.max_tokens = 160;
  spec.known_tokens = std::move(known_tokens);
  return spec;
}

/// The first placement of a group of two on one instance of 64 blocks.
Placement first_placement(const ChunkSchedulerConfig& config) {
  auto scheduler = std::move(make_chunk_scheduler(config)).value();
  REQUIRE(scheduler->add_instance({.id = {0}, .node = {0}, .kv_blocks = 64, .rows_max = 4}).ok());
  REQUIRE(scheduler->add_group(group_with({50, 60}), 0).ok());
  const auto placement = scheduler->next(0);
  REQUIRE(placement);
  return *placement;
}

}  // namespace

TEST_CASE("policies: every row has a different name and a line of help, and is found by its name") {
  std::set<std::string> names;
  for (const SchedulingPolicy& policy : scheduling_policies()) {
    CAPTURE(std::string(policy.name));
    CHECK(names.insert(policy.name).second);
    const std::string what = policy.what;
    CHECK_FALSE(what.empty());
    CHECK(what.size() <= 90);  // a line of --help, after the name
    CHECK(what.find('\n') == std::string::npos);
    CHECK(find_policy(policy.name) == &policy);
  }
  CHECK(find_policy("fastest") == nullptr);
  CHECK(find_policy("") == nullptr);
  for (const char* named : {kVerlPolicy, kSeerPolicy, kSeerPlusPolicy}) CHECK(names.contains(named));
}

TEST_CASE("policies: every row makes a scheduler that finishes a rollout") {
  for (const SchedulingPolicy& policy : scheduling_policies()) {
    CAPTURE(std::string(policy.name));
    FleetSetup setup;
    setup.config.policy = policy.name;
    setup.config.chunk_tokens = 50;
    const FleetResult result = FleetSim(setup).run();  // checks whole_groups: homes and KV that is dropped
    if (policy.whole_groups) CHECK(result.migrations == 0);
    if (!policy.whole_groups) CHECK(result.preemptions == 0);
  }
}

TEST_CASE("policies: a row needs lengths exactly if its scheduler refuses a group without them") {
  for (const SchedulingPolicy& policy : scheduling_policies()) {
    CAPTURE(std::string(policy.name));
    auto scheduler = std::move(make_chunk_scheduler({.policy = policy.name})).value();
    REQUIRE(scheduler->add_instance({.id = {0}, .node = {0}, .kv_blocks = 64, .rows_max = 4}).ok());
    const Status added = scheduler->add_group(group_with({}), 0);
    CHECK(added.ok() == !policy.needs_lengths);
    if (!added.ok()) CHECK(added.error().detail.find(policy.name) != std::string::npos);
  }
}

TEST_CASE("policies: a negative reserve is that of the row") {
  for (const SchedulingPolicy& policy : scheduling_policies()) {
    CAPTURE(std::string(policy.name));
    ChunkSchedulerConfig config{.policy = policy.name, .chunk_tokens = 128, .reserve_share = -1};
    const int64_t own = first_placement(config).credit_blocks;
    config.reserve_share = policy.reserve_share;
    CHECK(own == first_placement(config).credit_blocks);
    config.reserve_share = policy.reserve_share == 1 ? 0.1 : 1;
    if (!policy.whole_groups) CHECK(own != first_placement(config).credit_blocks);
  }
}

TEST_CASE("policies: an unknown policy is named with the known ones") {
  const auto made = make_chunk_scheduler({.policy = "fastest"});
  REQUIRE_FALSE(made.ok());
  CHECK(made.error().code == Code::kInvalidArgument);
  CHECK(made.error().detail == "unknown scheduling policy \"fastest\"; known: verl divided divided-rr las seer seer+ oracle streamrl-oracle");
}

TEST_CASE("policies: names can be chosen by fields of the rows, in the order of the table") {
  CHECK(chunk_policy_names([](const SchedulingPolicy& p) { return p.needs_lengths; }) ==
        std::vector<std::string>{"oracle", "streamrl-oracle"});
  CHECK(chunk_policy_names([](const SchedulingPolicy& p) { return p.whole_groups; }) ==
        std::vector<std::string>{"verl", "streamrl-oracle"});
  CHECK(chunk_policy_names().size() == scheduling_policies().size());
}
