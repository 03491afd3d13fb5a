#include "cli/sim/sim_fault_command.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include "actors/sim/sim_faults.h"
#include "cli/figure_text.h"
#include "cli/sim/sim_bound.h"
#include "cli/sim/sim_policy.h"

namespace seer {
namespace {

constexpr int64_t kInstancesMax = 4;  // if --instances is not given
constexpr int64_t kInstancesPerMachine = 2;
constexpr uint32_t kBlockTokens = 16;
constexpr int64_t kStrikes = 20;  // per run, about
constexpr double kLimitS = 1e6;   // added to 100 times the bound, because waiting for silent instances takes long

/// Memory for two of the longest requests on each instance, for one in DRAM, and for eight on disk.
Result<SimClusterOptions> fault_cluster(const ClusterModel& cluster, const SimWork& work, const SimulateOptions& options) {
  SimClusterOptions o;
  o.length_max = 0;
  int64_t prompt_tokens_max = 0;
  for (const GroupLengths& group : work.groups) {
    o.work.push_back({group.prompt_tokens, group.output_tokens});
    o.length_max = std::max(o.length_max, *std::ranges::max_element(group.output_tokens));
    prompt_tokens_max = std::max(prompt_tokens_max, group.prompt_tokens);
  }
  const int64_t longest = prompt_tokens_max + o.length_max;
  const int64_t kv_tokens = options.kv_tokens > 0 ? options.kv_tokens : std::min(cluster.kv_tokens, 2 * longest + kBlockTokens);
  if (kv_tokens < longest + kBlockTokens)
    return fail(Code::kInvalidArgument, "an instance holds KV of ", kv_tokens, " tokens, and the longest request may need ", longest,
                " and a block more: expected --kv-tokens ", longest + kBlockTokens, " at least");
  o.instances = static_cast<uint32_t>(options.instances > 0 ? options.instances : std::min(cluster.instances, kInstancesMax));
  o.nodes = static_cast<uint32_t>((o.instances + kInstancesPerMachine - 1) / kInstancesPerMachine);
  o.block_tokens = kBlockTokens;
  o.device_blocks = static_cast<int32_t>(kv_tokens / kBlockTokens);
  o.dram_blocks = longest / kBlockTokens + 1;
  o.cold_blocks = 8 * o.dram_blocks;
  o.rows_max = static_cast<int32_t>(cluster.rows_max);
  o.prefill_tokens_max = static_cast<int32_t>(cluster.prefill_tokens);
  o.report_steps = InstanceConfig{}.report_steps;
  o.scheduler = options.scheduler;
  o.step_ns = cluster.step_ns;
  return o;
}

}  // namespace

Status run_fault_seed(const ClusterModel& cluster, const SimWork& work, const SimulateOptions& options,
                      const std::string& workload, uint64_t seed, const EventLog& log, const std::atomic<bool>& stop) {
  SEER_ASSIGN_OR_RETURN(SimClusterOptions o, fault_cluster(cluster, work, options));
  if (log.is_on(LogLevel::kInfo)) o.log = log;  // else no warnings, because the user asked for these faults
  o.seed = seed;
  ClusterModel small = cluster;
  small.instances = o.instances;
  small.kv_tokens = static_cast<int64_t>(o.device_blocks) * kBlockTokens;
  const double bound_s = work_bound_s(small, work);
  const auto bound_us = static_cast<int64_t>(bound_s * 1e6);
  const SimFaultConfig faults{.seed = seed,
                              .until_us = bound_us,
                              .gap_us = std::max<int64_t>(1, bound_us / kStrikes),
                              .limit_us = static_cast<int64_t>((100 * bound_s + kLimitS) * 1e6)};
  for (const std::string& policy : options.policies) {
    if (stop.load()) return fail(Code::kCancelled, "stopped on request");
    o.scheduler.policy = sim_policy(policy).scheduling;
    log.info(0, "simulation_started", {{"workload", workload}, {"policy", policy}, {"seed", seed}});
    o.draft_tokens_max = sim_policy(policy).drafts ? options.draft_tokens_max : 0;
    const SimFaultRun run = run_with_faults(o, faults);
    if (!run.verdict.ok())
      return fail(Code::kCorrupt, workload, ", policy ", policy, ", seed ", seed, ": ", run.verdict.error().detail, " (after ",
                  run.counts_text(), ")");
    std::cout << workload << " " << policy << " seed " << seed << ": " << run.requests << " requests exact in "
              << std::llround(run.total_s) << " s, events " << formatted("%016llx", static_cast<unsigned long long>(run.events_hash))
              << ", after " << run.counts_text() << "\n"
              << std::flush;
  }
  return {};
}

}  // namespace seer
