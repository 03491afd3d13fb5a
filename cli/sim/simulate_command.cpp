#include "cli/sim/simulate_command.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "actors/instance/instance_actor.h"
#include "cli/machine_memory.h"
#include "cli/output_writer.h"
#include "cli/sim/sim_bound.h"
#include "cli/sim/sim_drafting.h"
#include "cli/sim/sim_fault_command.h"
#include "cli/sim/sim_gap.h"
#include "cli/sim/sim_html.h"
#include "cli/sim/sim_iteration.h"
#include "cli/sim/sim_partial.h"
#include "cli/sim/sim_policy.h"
#include "cli/sim/sim_report.h"
#include "cli/sim/sim_rollout.h"
#include "cli/sim/sim_sweep.h"
#include "cli/sim/workload.h"
#include "gpu/step_profile.h"

namespace seer {
namespace {

constexpr int64_t kProfiledPrefillTokens = 512;          // what `seer rollout` does by default
constexpr int64_t kGpuPrefillTokens = 8192;
// Of what a device reads and writes by itself, RocksDB's share with blocks of 8 MiB (tests/bench/storage/bench_cold.cpp on a virtual
// disk, medians of three runs).
constexpr double kRocksdbReadShare = 0.86, kRocksdbWriteShare = 0.96;
constexpr int64_t kFineBlocksMaxGen = 65536;  // longer responses get larger KV blocks, for fewer events

/// Machines that one instance spans; their pools count as one.
int64_t machines_of(const HardwareSetup& setup) {
  return (setup.gpus_per_instance + setup.gpu.gpus_per_node - 1) / setup.gpu.gpus_per_node;
}

/// The cluster for a workload that names its GPUs.
Result<ClusterModel> cluster_of(const Workload& workload, const SimulateOptions& options) {
  SEER_ASSIGN_OR_RETURN(const HardwareModel model, HardwareModel::create(*workload.hardware));
  const HardwareSetup& setup = model.setup();
  ClusterModel cluster;
  cluster.instances_per_machine = std::max<int64_t>(1, setup.gpu.gpus_per_node / setup.gpus_per_instance);
  cluster.gpus_per_instance = setup.gpus_per_instance;
  cluster.kv_tokens = model.kv_capacity_tokens();
  cluster.kv_bytes_per_token = model.kv_bytes_per_token();
  if (workload.lengths.max_gen > kFineBlocksMaxGen) cluster.block_tokens *= 2;
  cluster.rows_max = options.max_batch * setup.dp;
  cluster.prefill_tokens = kGpuPrefillTokens * setup.dp;
  cluster.nic_bytes_per_s = std::llround(setup.gpu.nic_gb_per_s * 1e9) * std::max(setup.gpu.gpus_per_node, setup.gpus_per_instance);
  cluster.step_ns = HardwareStepTimes(model);
  return cluster;
}

/// The cluster for measured step times.
Result<ClusterModel> cluster_of(const StepProfile& profile, const SimulateOptions& options) {
  if (options.kv_tokens == 0)
    return fail(Code::kInvalidArgument, "--kv-tokens is missing: a profile does not say how much KV an instance holds");
  const bool counts_bytes = options.dram_bytes != SimulateOptions{}.dram_bytes || options.cold_bytes > 0;
  if (counts_bytes && options.kv_bytes_per_token == 0)
    return fail(Code::kInvalidArgument, "--kv-bytes-per-token is missing: a profile does not say how much KV --dram-bytes and --cold-bytes hold");
  ClusterModel cluster;
  cluster.instances_per_machine = 1 << 20;  // one machine
  cluster.kv_bytes_per_token = std::max<int64_t>(1, options.kv_bytes_per_token);
  cluster.block_tokens = profile.block_tokens;
  cluster.offer_blocks = InstanceConfig{}.offer_blocks;  // as seer rollout does
  cluster.report_steps = InstanceConfig{}.report_steps;
  cluster.rows_max = options.max_batch;
  cluster.prefill_tokens = kProfiledPrefillTokens;
  cluster.step_ns = [cost = profile.cost, gap_us = options.step_gap_us](const StepShape& shape) {
    return std::max<int64_t>(1, std::llround(1000 * cost.predict_us(shape)) + 1000 * gap_us);
  };
  return cluster;
}

Result<ClusterModel> make_cluster(const Workload& workload, const SimulateOptions& options) {
  ClusterModel cluster;
  if (!options.profile.empty()) {
    SEER_ASSIGN_OR_RETURN(const StepProfile profile, read_step_profile(options.profile));
    SEER_ASSIGN_OR_RETURN(cluster, cluster_of(profile, options));
  } else if (options.step_gap_us > 0) {
    return fail(Code::kInvalidArgument, "--step-gap-us ", options.step_gap_us,
                ": expected --profile beside it; a hardware model has its own gap between steps");
  } else if (workload.hardware) {
    SEER_ASSIGN_OR_RETURN(cluster, cluster_of(workload, options));
  } else {
    return fail(Code::kInvalidArgument, "--profile is missing: ", options.workload,
                " names no GPU and model, so it does not say how long a step takes");
  }
  cluster.instances = options.instances > 0 ? options.instances : workload.instances;
  if (cluster.instances == 0)
    return fail(Code::kInvalidArgument, "--instances is missing: ", options.workload,
                " does not say how many there are");
  if (options.kv_tokens > 0) cluster.kv_tokens = options.kv_tokens;
  if (options.block_tokens > 0) cluster.block_tokens = options.block_tokens;
  const int64_t machines = workload.hardware ? machines_of(*workload.hardware) : 1;
  for (const auto& [flag, bytes] : {std::pair{"--dram-bytes", options.dram_bytes}, {"--cold-bytes", options.cold_bytes}})
    if (bytes > std::numeric_limits<int64_t>::max() / machines)
      return fail(Code::kInvalidArgument, flag, " is ", bytes, ": expected at most what ", machines, " machines can add up");
  cluster.dram_bytes = options.dram_bytes * machines;
  cluster.cold_bytes = options.cold_bytes * machines;
  cluster.cold_read_bytes_per_s = std::llround(options.ssd_read_gb_per_s * 1e9 * kRocksdbReadShare);
  cluster.cold_write_bytes_per_s = std::llround(options.ssd_write_gb_per_s * 1e9 * kRocksdbWriteShare);
  return cluster;
}

// Measured memory of a simulation: for each KV block of a device (used or not), for an instance without its blocks, and for a
// request with all its events. DRAM blocks take memory only when used.
constexpr int64_t kDeviceBlockBytes = 86, kInstanceBytes = 52'000, kRequestBytes = 2100;

/// `issue`: how many requests are simulated for each one of the workload.
Status check_memory_of(const ClusterModel& cluster, const Workload& workload, double issue) {
  const int64_t blocks = cluster.kv_tokens / std::max<int64_t>(1, cluster.block_tokens);
  const int64_t instance_bytes = bytes_of(blocks, kDeviceBlockBytes);
  const int64_t with_blocks = instance_bytes + std::min(kInstanceBytes, std::numeric_limits<int64_t>::max() - instance_bytes);
  const auto requests = static_cast<int64_t>(std::ceil(issue * static_cast<double>(requests_of(workload))));
  const int64_t request_bytes = bytes_of(requests, kRequestBytes);
  const int64_t all_instances = bytes_of(cluster.instances, with_blocks);
  return check_memory({{cat("simulating ", cluster.instances, " instances with KV of ", cluster.kv_tokens, " tokens each"),
                        all_instances, all_instances},
                       {cat("simulating ", requests, " requests"), request_bytes, request_bytes}},
                      find_memory());
}

/// Keeps the first groups that have at most `requests` requests together, but at least one group. 0: keeps all.
void keep_requests(Workload& workload, int64_t requests) {
  if (requests == 0) return;
  if (workload.trace.empty()) {
    workload.groups = std::clamp<int64_t>(requests / workload.group_size, 1, workload.groups);
    return;
  }
  size_t kept = 1;
  for (int64_t left = requests - std::ssize(workload.trace[0].output_tokens); kept < workload.trace.size(); ++kept) {
    left -= std::ssize(workload.trace[kept].output_tokens);
    if (left < 0) break;
  }
  workload.trace.resize(kept);
  workload.groups = std::ssize(workload.trace);
}

/// The limit of responses that a trace's run had.
Status set_limit(Workload& workload, int64_t max_tokens) {
  if (max_tokens == 0) return {};
  if (workload.trace.empty()) return fail(Code::kInvalidArgument, "--max-tokens is ", max_tokens, ": expected a trace; other workloads say their own, max-gen");
  int64_t longest = 0;
  for (const GroupLengths& group : workload.trace) longest = std::max(longest, std::ranges::max(group.output_tokens));
  if (longest > max_tokens)
    return fail(Code::kInvalidArgument, "--max-tokens is ", max_tokens, ": a response of ", workload.name, " has ", longest, " tokens");
  workload.lengths.max_gen = max_tokens;
  return {};
}

Status write_file(std::optional<OutputWriter>& file, const std::string& text) {
  if (!file) return {};
  SEER_RETURN_IF_ERROR(file->append(text));
  return file->finish();
}

/// What a run costs, and the whole iteration around it.
void add_costs(SimRun& run, const ClusterModel& cluster, const IterationTimes& times) {
  if (times.is_given()) run.iteration_s = iteration_s(run.total_s, run.completions_s, times);
  const double held_s = times.is_given() ? run.iteration_s : run.total_s;
  if (cluster.gpus_per_instance > 0)
    run.gpu_hours = static_cast<double>(cluster.instances * cluster.gpus_per_instance) * held_s / 3600;
}

/// All policies and seeds on one cluster. `runs` gets them, under the workload's name.
Status simulate_all(const Workload& workload, const SimulateOptions& options, const EventLog& log, const std::atomic<bool>& stop,
                    std::vector<SimRun>& runs) {
  SEER_ASSIGN_OR_RETURN(const ClusterModel cluster, make_cluster(workload, options));
  ClusterModel baseline_cluster = cluster;
  if (workload.hardware && options.profile.empty()) {
    Workload bound = workload;
    bound.hardware->rank_skew = workload.verl_rank_skew;
    SEER_ASSIGN_OR_RETURN(baseline_cluster, make_cluster(bound, options));
  }
  if (workload.verl_block_tokens > 0 && options.block_tokens == 0 && options.profile.empty())
    baseline_cluster.block_tokens = workload.verl_block_tokens;
  const bool any_partial = std::ranges::any_of(options.policies, [](const std::string& name) { return sim_policy(name).is_partial; });
  for (const ClusterModel* simulated : {&cluster, &std::as_const(baseline_cluster)})
    SEER_RETURN_IF_ERROR(check_memory_of(*simulated, workload, any_partial ? options.over_issue : 1));

  for (int64_t i = 0; i < seeds_of(workload, options); ++i) {
    const uint64_t seed = options.seed + static_cast<uint64_t>(i);
    const SimWork work{.groups = draw_lengths(workload, seed), .max_gen = workload.lengths.max_gen, .stop = &stop};
    if (options.faults) {
      SEER_RETURN_IF_ERROR(run_fault_seed(cluster, work, options, workload.name, seed, log, stop));
      continue;
    }
    SEER_RETURN_IF_ERROR(check_kv(cluster, work));
    const SimBounds bounds = lower_bounds(cluster, work);
    for (const std::string& name : options.policies) {
      if (stop.load()) return fail(Code::kCancelled, "stopped on request");
      ChunkSchedulerConfig scheduler = options.scheduler;
      const SimPolicy policy = sim_policy(name);
      scheduler.policy = policy.scheduling;
      scheduler.watermark_share = workload.watermark_share;
      SEER_ASSIGN_OR_RETURN(const std::optional<SimDrafting> drafting, sim_drafting(policy, options, workload));
      const ClusterModel& used = policy.whole_groups ? baseline_cluster : cluster;
      log.info(0, "simulation_started", {{"workload", workload.name}, {"policy", name}, {"seed", seed}});
      const auto began = std::chrono::steady_clock::now();
      SEER_ASSIGN_OR_RETURN(SimRun run, policy.is_partial
                                            ? simulate_partial(used, workload, seed, options.over_issue, scheduler, drafting, log, &stop)
                                            : simulate_rollout(used, work, scheduler, drafting, nullptr, log));
      const double took_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
      run.workload = workload.name;
      run.policy = name;
      run.seed = seed;
      if (run.is_synchronous && !drafting) {  // drafts can beat them
        run.bound_total_s = bounds.tight_s;
        run.work_bound_total_s = bounds.work_s;
        run.gap = gap_of(run, bounds.prices, used);
      }
      run.responses = {};
      run.steps = {};
      add_costs(run, cluster, options.iteration);
      std::cerr << "  " << workload.name << " " << name << " seed " << seed << ": " << std::llround(run.total_s)
                << " s in " << took_s << " s\n";
      if (i > 0 || !options.sweep.empty()) run.instances.clear();  // only the first seed's timelines are drawn
      runs.push_back(std::move(run));
    }
  }
  return {};
}

/// Where figures go, besides the terminal.
struct SimFiles {
  std::optional<OutputWriter> report, csv, html;

  Status write(std::span<const SimFigures> figures, const std::function<std::string()>& page) {
    SEER_RETURN_IF_ERROR(write_file(report, sim_report_json(figures)));
    SEER_RETURN_IF_ERROR(write_file(csv, sim_csv(figures)));
    return html ? write_file(html, page()) : Status();
  }
};

/// The points of a sweep, one after the other.
Status simulate_sweep(const Workload& workload, const SimulateOptions& options, const EventLog& log, const std::atomic<bool>& stop,
                      SimFiles& files) {
  SEER_ASSIGN_OR_RETURN(const std::vector<SweepAxis> axes, parse_sweep(options.sweep));
  SEER_RETURN_IF_ERROR(check_runs(axes, workload, options));
  std::vector<std::pair<Workload, SimulateOptions>> clusters;
  for (const SweepPoint& point : sweep_points(axes)) {  // all are checked before the first runs
    auto& [of_point, options_of_point] = clusters.emplace_back(workload, options);
    of_point.name = point_name(point);
    SEER_RETURN_IF_ERROR(apply_point(axes, point, of_point, options_of_point));
    if (const Result<ClusterModel> cluster = make_cluster(of_point, options_of_point); !cluster.ok())
      return fail(cluster.error().code, "--sweep, point ", of_point.name, ": ", cluster.error().detail);
  }
  std::vector<SimRun> runs;
  for (const auto& [of_point, options_of_point] : clusters)
    SEER_RETURN_IF_ERROR(simulate_all(of_point, options_of_point, log, stop, runs));
  const std::vector<SimFigures> figures = sim_figures(runs);
  std::vector<std::string> titles;
  for (const SweepAxis& axis : axes) titles.push_back(axis.key);
  std::cout << workload.name << '\n' << sim_joint_table(figures, titles);
  return files.write(figures, [&] { return sweep_html(figures, axes, workload.name, options.command_line); });
}

}  // namespace

Status simulate_command(const SimulateOptions& options, const std::atomic<bool>& stop) {
  SimFiles files;
  for (const auto& [path, file] : {std::pair{&options.report, &files.report}, {&options.csv, &files.csv}, {&options.html, &files.html}}) {
    if (path->empty()) continue;
    SEER_ASSIGN_OR_RETURN(OutputWriter opened, OutputWriter::open(*path));
    file->emplace(std::move(opened));
  }
  SEER_ASSIGN_OR_RETURN(const EventLog log, EventLog::open(options.log));
  SEER_ASSIGN_OR_RETURN(Workload workload, load_workload(options.workload));
  SEER_RETURN_IF_ERROR(set_limit(workload, options.max_tokens));
  if (workload.left_out > 0)
    std::cerr << "seer: warning: " << workload.left_out << " responses of the trace failed or were aborted; they are left out\n";
  keep_requests(workload, options.requests == 0 && options.faults ? kFaultRequests : options.requests);
  if (const std::string many = many_requests_text(requests_of(workload), kRequestBytes); !many.empty())
    std::cerr << "seer: warning: " << many << "\n";
  if (!options.sweep.empty()) return simulate_sweep(workload, options, log, stop, files);

  std::vector<SimRun> runs;
  SEER_RETURN_IF_ERROR(simulate_all(workload, options, log, stop, runs));
  if (options.faults) return {};
  if (options.max_tokens == 0 && options.workload.ends_with(".jsonl"))
    std::cerr << "seer: warning: the longest response, of " << workload.lengths.max_gen << " tokens, was taken for the limit: --max-tokens says the real one\n";
  const std::vector<SimFigures> figures = sim_figures(runs);
  std::cout << sim_table(figures);
  return files.write(figures, [&] { return sim_html(runs, options.command_line); });
}

}  // namespace seer
