// How long a rollout iteration takes under each scheduling policy, on simulated engines (rollout_sim.h), over several
// draws of response lengths. All policies get the same draws. Prints a JSON line per policy with means and the half
// widths of 95 % intervals (Student's t) over the seeds.
//
// bench_policy [--workload moonlight|qwen2-vl-72b|kimi-k2] [--policies verl,divided,las,seer,seer+,oracle] [--seeds 8]
//              [--icc 0.6] [--sigma 1] [--runaway 0] [--chunk-tokens 2048] [--reserve -1]
//              [--unexplained 1]
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "rollout_sim.h"

namespace {

using namespace seer;
using namespace seer::bench;

struct Options {
  std::string workload = "qwen2-vl-72b";
  std::vector<std::string> policies = chunk_policy_names();
  int seeds = 8;
  LengthLaw law;
  ChunkSchedulerConfig scheduler;
};

[[noreturn]] void refuse(const std::string& what) {
  std::fprintf(stderr, "bench_policy: %s\n", what.c_str());
  std::exit(2);
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) refuse(flag + " needs a value");
    const std::string value = argv[i + 1];
    const double number = std::atof(value.c_str());
    if (flag == "--workload")
      options.workload = value;
    else if (flag == "--policies")
      options.policies = split(value);
    else if (flag == "--seeds")
      options.seeds = static_cast<int>(number);
    else if (flag == "--icc")
      options.law.icc = number;
    else if (flag == "--sigma")
      options.law.sigma = number;
    else if (flag == "--runaway")
      options.law.runaway_share = number;
    else if (flag == "--chunk-tokens")
      options.scheduler.chunk_tokens = static_cast<int64_t>(number);
    else if (flag == "--unexplained")
      options.scheduler.unexplained_before = number;
    else if (flag == "--reserve")
      options.scheduler.reserve_share = number;
    else
      refuse("unknown option " + flag);
  }
  if (options.seeds < 1) refuse("--seeds is less than 1");
  return options;
}

Workload find_workload(const std::string& name) {
  for (const Workload& workload : workloads())
    if (workload.name == name) return workload;
  refuse("unknown workload " + name + "; known: moonlight, qwen2-vl-72b, kimi-k2");
}

/// Of the mean of a normal sample: t(0.975, n - 1) * s / sqrt(n); 0 for a single value.
struct Summary {
  double mean = 0, half_width = 0;
};
Summary summarise(const std::vector<RolloutFigures>& runs, double RolloutFigures::*field) {
  static constexpr double kT[] = {0,    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23,
                                  2.20, 2.18,  2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09, 2.09};
  const auto n = static_cast<double>(runs.size());
  Summary summary;
  for (const RolloutFigures& run : runs) summary.mean += run.*field / n;
  if (runs.size() < 2) return summary;
  double squares = 0;
  for (const RolloutFigures& run : runs) squares += (run.*field - summary.mean) * (run.*field - summary.mean);
  const double t = runs.size() - 1 < std::size(kT) ? kT[runs.size() - 1] : 1.96;
  summary.half_width = t * std::sqrt(squares / (n - 1) / n);
  return summary;
}

double rounded(double value, double parts) { return std::round(value * parts) / parts; }

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const Workload workload = find_workload(options.workload);
  for (const std::string& policy : options.policies) {
    ChunkSchedulerConfig config = options.scheduler;
    config.policy = policy;
    if (const auto made = make_chunk_scheduler(config); !made.ok()) refuse(made.error().detail);
    std::vector<RolloutFigures> runs;
    for (int seed = 1; seed <= options.seeds; ++seed)
      runs.push_back(
          RolloutSim(workload, draw_lengths(workload, options.law, static_cast<uint64_t>(seed)), config).run());
    const auto mean = [&](double RolloutFigures::*field) { return summarise(runs, field).mean; };
    const Summary total = summarise(runs, &RolloutFigures::total_s), tail = summarise(runs, &RolloutFigures::tail_s);
    const nlohmann::ordered_json line = {
        {"bench", "policy"},
        {"workload", workload.name},
        {"policy", policy},
        {"icc", options.law.icc},
        {"sigma", options.law.sigma},
        {"runaway", options.law.runaway_share},
        {"seeds", options.seeds},
        {"total_s", rounded(total.mean, 10)},
        {"total_s_ci95", rounded(total.half_width, 10)},
        {"tail_s", rounded(tail.mean, 10)},
        {"tail_s_ci95", rounded(tail.half_width, 10)},
        {"kv_use", rounded(mean(&RolloutFigures::kv_use), 1000)},
        {"yields", std::llround(mean(&RolloutFigures::yields))},
        {"preemptions", std::llround(mean(&RolloutFigures::preemptions))},
        {"migrations", std::llround(mean(&RolloutFigures::migrations))},
        {"decisions_per_s", std::llround(mean(&RolloutFigures::decisions) / mean(&RolloutFigures::scheduler_s))}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
}
