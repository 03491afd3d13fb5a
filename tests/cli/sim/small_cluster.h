// A cluster for tests of simulated rollouts.
#pragma once
#include "cli/sim/sim_rollout.h"

namespace seer {

/// Two machines of two instances; steps like those of a small GPU.
inline ClusterModel small_cluster() {
  ClusterModel cluster;
  cluster.instances = 4;
  cluster.instances_per_machine = 2;
  cluster.kv_tokens = 40'960;
  cluster.kv_bytes_per_token = 1000;
  cluster.rows_max = 64;
  cluster.prefill_tokens = 2048;
  cluster.dram_bytes = int64_t{1} << 30;
  cluster.step_ns = [](const StepShape& s) { return 5'000'000 + 20'000 * s.rows + 100 * s.kv_tokens; };
  return cluster;
}

}  // namespace seer
