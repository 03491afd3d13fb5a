#include "actors/fleet.h"

#include <doctest/doctest.h>

#include <string>

#include "actors/cluster_checks.h"

using namespace seer;

namespace {

/// Returns an error from the n-th call on.
template <class Id>
std::function<Status(Id)> fails_from(int n, const std::string& sentence) {
  return [n, sentence, asked = 0](Id) mutable -> Status {
    if (++asked < n) return {};
    return fail(Code::kFull, sentence);
  };
}

const RolloutSummary& summary(const SimCluster& cluster) {
  REQUIRE(cluster.seen.summaries.size() == 1);
  return cluster.seen.summaries[0];
}

/// Runs until this number of responses has come.
void run_to(SimCluster& cluster, size_t responses) {
  cluster.world.run_until(600'000'000, [&] { return cluster.seen.responses.size() >= responses; });
  REQUIRE_FALSE(cluster.over());
}

FleetConfig two_nodes(const SimCluster& cluster) {
  FleetConfig config = cluster.fleet_config();
  config.nodes = 2;
  config.instances = 4;
  return config;
}

std::vector<uint32_t> instances_of(const FleetConfig& config, uint32_t node) {
  std::vector<uint32_t> ids;
  for (const InstanceConfig& instance : node_config(config, NodeId{node}).instances) ids.push_back(instance.id.value);
  return ids;
}

}  // namespace

TEST_CASE("fleet: each instance is on one node, dealt in turn or a fixed number to each") {
  CHECK(instances_of({.nodes = 2, .instances = 5}, 0) == std::vector<uint32_t>{0, 2, 4});
  CHECK(instances_of({.nodes = 2, .instances = 5}, 1) == std::vector<uint32_t>{1, 3});
  CHECK(instances_of({.nodes = 2, .instances = 5, .instances_per_node = 3}, 0) == std::vector<uint32_t>{0, 1, 2});
  CHECK(instances_of({.nodes = 2, .instances = 5, .instances_per_node = 3}, 1) == std::vector<uint32_t>{3, 4});
  FleetConfig config{.nodes = 3};
  config.node.draft_server = DraftServerConfig{};
  const NodeConfig node = node_config(config, NodeId{2});
  CHECK(node.node == NodeId{2});
  CHECK(node.kv_node.node == NodeId{2});
  CHECK(node.draft_server->node == NodeId{2});
}

TEST_CASE("fleet: an error of a maker at the start is returned, and nothing is started") {
  SimCluster cluster({});
  Fleet fleet(cluster.world.system);
  const int engines = cluster.engines_now;
  SUBCASE("an engine, after others were made") {
    cluster.options.engine_fault = fails_from<InstanceId>(4, "no memory for the last engine");
    const Status refused = fleet.start_nodes(two_nodes(cluster), cluster.makers);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().detail == "no memory for the last engine");
  }
  SUBCASE("an arena") {
    cluster.options.arena_fault = fails_from<NodeId>(2, "no memory for the second pool");
    const Status refused = fleet.start_nodes(two_nodes(cluster), cluster.makers);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().detail == "no memory for the second pool");
  }
  cluster.run_for(0);
  CHECK(fleet.node(NodeId{0}) == nullptr);
  CHECK(fleet.node(NodeId{1}) == nullptr);
  CHECK(cluster.engines_now == engines);
}

TEST_CASE("fleet: if an engine cannot be made again, the rollout goes on with the others and says so") {
  for (int tries = 1; tries <= 3; ++tries) {
    CAPTURE(tries);
    SimCluster cluster({.instances = 3});
    cluster.start();
    cluster.options.engine_fault = fails_from<InstanceId>(tries, "the device is gone");
    for (int i = 0; i < tries; ++i) {
      run_to(cluster, cluster.seen.responses.size() + 2);
      cluster.kill_instance(InstanceId{1});
    }
    cluster.finish();
    check_exact(cluster);
    CHECK(summary(cluster).instances_lost == tries);
    CHECK(summary(cluster).instances.size() == 2);
    CHECK(summary(cluster).parts_lost ==
          std::vector<std::string>{"instance 1 on node 0 could not be started again: the device is gone"});
  }
}

TEST_CASE("fleet: with the last instance lost for good, the rollout ends at once with the reason") {
  SimCluster cluster({.nodes = 2});
  cluster.start();
  run_to(cluster, 3);
  cluster.options.engine_fault = fails_from<InstanceId>(1, "the device is gone");
  const int64_t before_us = cluster.world.now_us();
  cluster.kill_instance(InstanceId{1});
  cluster.kill_instance(InstanceId{0});
  cluster.finish();
  CHECK_FALSE(summary(cluster).complete);
  CHECK(summary(cluster).error.ends_with(" could not be started again: the device is gone"));
  CHECK(summary(cluster).parts_lost.size() == 2);
  CHECK(summary(cluster).finished == static_cast<int64_t>(cluster.seen.responses.size()));
  CHECK(cluster.world.now_us() - before_us < 1'000'000);  // it does not wait for one to come back
}

TEST_CASE("fleet: a rollout with an instance lost before it started runs on those that came up") {
  SimCluster cluster({.instances = 3});
  cluster.run_for(0);
  cluster.options.engine_fault = fails_from<InstanceId>(1, "the device is gone");
  cluster.kill_instance(InstanceId{2});
  cluster.run_for(0);
  cluster.start();
  cluster.finish();
  check_exact(cluster);
  CHECK(summary(cluster).parts_lost.size() == 1);
  CHECK(summary(cluster).wall_us < 10'000'000);  // it did not wait for the lost one
}

TEST_CASE("fleet: if its KV pool cannot be made again, the machine goes on without one") {
  SimCluster cluster({.device_blocks = 48});
  cluster.start();
  run_to(cluster, 3);
  cluster.options.arena_fault = fails_from<NodeId>(1, "the memory is taken");
  cluster.kill_kv_node();
  cluster.finish();
  check_exact(cluster);
  CHECK(summary(cluster).parts_lost ==
        std::vector<std::string>{"the KV pool of node 0 could not be started again: the memory is taken"});
  CHECK(cluster.kv_node() == nullptr);
  CHECK(cluster.engines_now == 2);
}

TEST_CASE("fleet: a machine that gives up is named when nothing is left") {
  SimCluster cluster({.restarts_max = 0});
  cluster.start();
  run_to(cluster, 1);
  cluster.kill_instance(InstanceId{1});
  cluster.run_for(0);
  cluster.kill_instance(InstanceId{0});
  cluster.finish();
  CHECK(summary(cluster).error == "node 0 gave up when instance 0 died after 0 restarts");
}

TEST_CASE("fleet: a part whose machine is gone by the time it is made is dropped") {
  SimCluster cluster({.instances = 2, .nodes = 2, .remake_us = 50'000});
  cluster.start();
  run_to(cluster, 2);
  cluster.kill_instance(InstanceId{0});
  cluster.run_for(10'000);
  cluster.crash_node(0, 10'000);
  cluster.finish();
  check_exact(cluster);
  cluster.run_for(60'000'000);
  check_drained(cluster);
  CHECK(cluster.engines_now == 2);
}

TEST_CASE("fleet: a second node of a name is refused until the first is gone") {
  SimCluster cluster({});
  const NodeConfig config = node_config(cluster.fleet_config(), NodeId{0});
  const std::string sentence = "two nodes have the name 0: each node of a fleet needs its own";
  const int engines = cluster.engines_now;
  const Status started = cluster.fleet.start_node(config, cluster.makers);
  REQUIRE_FALSE(started.ok());
  CHECK(started.error().detail == sentence);
  CHECK(cluster.engines_now == engines);
  const Status added = cluster.fleet.add_node(NodeId{0}, cluster.node());
  REQUIRE_FALSE(added.ok());
  CHECK(added.error().detail == sentence);

  rt::stop(cluster.node());
  cluster.run_for(0);
  cluster.fleet.remove_node(NodeId{0});
  check_ok(cluster.fleet.start_node(config, cluster.makers));
  cluster.run();
  check_exact(cluster);
}

TEST_CASE("fleet: nodes that are started apart from the controller join its rollout, also while it runs") {
  SimCluster cluster({.instances = 4});
  SimEvents& events = cluster.seen;
  Fleet controller(cluster.world.system);
  RolloutConfig config{.scheduler = cluster.options.scheduler, .instances_expected = 2};
  controller.start_rollout(config, {cluster.groups}, collect_events(cluster.world, events, true));
  cluster.run_for(1'000'000);
  CHECK(events.responses.empty());

  std::vector<NodeHandle> nodes;
  for (uint32_t n = 0; n < 2; ++n) {
    auto node = start_node(cluster.world.system, node_config(two_nodes(cluster), NodeId{n}), cluster.makers, controller.directory());
    REQUIRE(node.ok());
    nodes.push_back(*node);
    check_ok(controller.add_node(NodeId{n}, nodes.back()));
    if (n == 0) run_to(cluster, 3);
  }
  cluster.finish();
  check_exact(cluster);
  REQUIRE(summary(cluster).instances.size() == 4);
  for (const InstanceReport& instance : summary(cluster).instances) CHECK(instance.output_tokens > 0);
}
