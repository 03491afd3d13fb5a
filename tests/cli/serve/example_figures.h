// A report of two machines with an instance each, as tests of what `seer serve` shows expect it.
#pragma once
#include "actors/gateway_actor.h"

namespace seer {

inline GatewayLoads example_loads() {
  GatewayLoads now;
  now.version = WeightVersion{3};
  now.waiting = 5;
  now.running = 9;
  now.on_instances = 6;
  now.oldest_us = 1'500'000;
  now.finished = 20;
  now.at_length = 8;
  now.aborted = 2;
  now.failed = 1;
  now.requests = 37;
  now.kv_use_share = 0.25;
  return now;
}
inline GatewayReport example_report() {
  GatewayReport report;
  InstanceReport first{.instance = InstanceId{0},
                       .busy_us = 2'500'000,
                       .steps = 11,
                       .output_tokens = 1000,
                       .prefill_tokens = 40,
                       .cached_tokens = 60,
                       .kv_blocks_total = 100,
                       .kv_blocks_used = 25,
                       .kv_block_bytes = 10,
                       .yields = 2,
                       .preemptions = 1,
                       .chunks = 3};
  first.drafting.other_paths = {.verifies = 4, .drafted = 10, .accepted = 6};
  InstanceReport second = first;
  second.instance = InstanceId{1024};
  report.nodes.push_back(
      {.node = NodeId{0},
       .restarts = 1,
       .instances = {first},
       .pool = {{.node = NodeId{0}, .dram_capacity_bytes = 500, .dram_used_bytes = 50, .spilled_bytes = 9}}});
  report.nodes.push_back({.node = NodeId{1}, .instances = {second}, .pool = {}});
  report.rollouts.push_back({.id = RolloutId{4},
                             .version = WeightVersion{3},
                             .is_over = true,
                             .responses = 10,
                             .ended = 10,
                             .output_tokens = 2000,
                             .busy_us = 4'000'000,
                             .tail_us = 1'000'000,
                             .error = "node 0 is \xff gone"});
  report.loads = example_loads();
  return report;
}

}  // namespace seer
