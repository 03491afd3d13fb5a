#include "cli/cluster_status.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

using namespace seer;
using Json = nlohmann::json;

namespace {

ClusterStatus some_status() {
  ClusterNodeReport first{.at = {NodeId{0}, "10.0.0.1", 7000}, .handle = {}, .instances = 2, .identity = {.model = "qwen", .version = WeightVersion{3}},
                          .roles = {NodeRole::kController, NodeRole::kInstances, NodeRole::kKv}};
  ClusterNodeReport second = first;
  second.roles = {NodeRole::kInstances};
  second.at = {NodeId{12}, "10.0.0.2", 7001};
  second.draining = true;
  const InstanceReport instance{.output_tokens = 1'000'000, .kv_blocks_total = 64, .kv_blocks_used = 16, .kv_block_bytes = 1 << 20, .chunks = 7};
  const KvNodeReport pool{.dram_capacity_bytes = 1 << 30, .dram_used_bytes = 1 << 28, .fetched_bytes = 3 << 19, .moved_bytes = 1 << 20, .guest_bytes = 5 << 20, .kept_requests = 5, .peers = {"node 12: network (tcp)"}};
  return {.address = "10.0.0.1:7000",
          .nodes = {{first, NodeReport{.node = NodeId{0}, .restarts = 2, .instances = {instance, instance}, .pool = {pool}}},
                    {second, NodeReport{.node = NodeId{12}, .draining = true, .instances = {instance}}}},
          .rollouts = {{RolloutId{4}, RolloutSummary{.requests = 96, .finished = 34, .output_tokens = 12'345, .wall_us = 1'500'000, .instances_lost = 1}},
                       {RolloutId{5}, std::nullopt}}};
}

}  // namespace

TEST_CASE("cluster status: each machine with its state, work and memory, then the rollouts") {
  CHECK(status_text(some_status()) ==
        "cluster at 10.0.0.1:7000: 2 nodes, 2 rollouts\n"
        "node  address               state     instances  chunks  output tokens\n"
        "0     10.0.0.1:7000         up                2      14      2 000 000\n"
        "      controller, instances, kv\n"
        "      KV 32.0 MiB of 128.0 MiB, DRAM 256.0 MiB of 1.0 GiB, cold - of 5 requests\n"
        "      1.5 MiB came from other nodes\n"
        "      1.0 MiB went to other nodes for lack of room\n"
        "      5.0 MiB came from nodes without room\n"
        "      from node 12: network (tcp)\n"
        "      2 restarts of its parts\n"
        "12    10.0.0.2:7001         draining          1       7      1 000 000\n"
        "      instances\n"
        "      KV 16.0 MiB of 64.0 MiB, DRAM -, cold - of 0 requests\n"
        "rollout 4  34 of 96 requests, 12 345 tokens of those done, 1.5 s, 1 instances lost\n"
        "rollout 5  silent\n");
}

TEST_CASE("cluster status: a machine that does not answer is shown as silent, with nothing else") {
  ClusterStatus status = some_status();
  status.nodes.erase(status.nodes.begin());
  status.nodes[0].report.reset();
  status.rollouts.clear();
  CHECK(status_text(status) ==
        "cluster at 10.0.0.1:7000: 1 node, 0 rollouts\n"
        "node  address               state     instances  chunks  output tokens\n"
        "12    10.0.0.2:7001         silent   \n"
        "      instances\n");
  const Json json = Json::parse(status_json(status));
  CHECK(json["nodes"][0]["state"] == "silent");
  CHECK_FALSE(json["nodes"][0].contains("chunks"));
}

TEST_CASE("cluster status: JSON has the same figures, in one line") {
  const std::string text = status_json(some_status());
  CHECK(text.find('\n') == text.size() - 1);
  const Json json = Json::parse(text);
  CHECK(json["cluster"] == "10.0.0.1:7000");
  CHECK(json["nodes"][0]["node"] == 0);
  CHECK(json["nodes"][0]["roles"] == Json{"controller", "instances", "kv"});
  CHECK(json["nodes"][0]["moved_bytes"] == 1 << 20);
  CHECK(json["nodes"][0]["guest_bytes"] == 5 << 20);
  CHECK(json["nodes"][0]["model"] == "qwen");
  CHECK(json["nodes"][0]["weight_version"] == 3);
  CHECK(json["nodes"][0]["chunks"] == 14);
  CHECK(json["nodes"][0]["kv_used_bytes"] == 32 << 20);
  CHECK(json["nodes"][0]["kept_requests"] == 5);
  CHECK(json["nodes"][0]["peers"] == Json{"node 12: network (tcp)"});
  CHECK(json["nodes"][1]["state"] == "draining");
  CHECK(json["rollouts"][0]["finished"] == 34);
  CHECK(json["rollouts"][0]["wall_s"] == 1.5);
  CHECK(json["rollouts"][1] == Json{{"rollout", 5}});
}
