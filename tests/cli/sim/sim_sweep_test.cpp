#include "cli/sim/sim_sweep.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace seer;

namespace {

std::string error_of(std::vector<std::string> texts) {
  const auto axes = parse_sweep(texts);
  return axes.ok() ? "" : axes.error().detail;
}

std::vector<SweepAxis> axes_of(std::vector<std::string> texts) {
  auto axes = parse_sweep(texts);
  REQUIRE_MESSAGE(axes.ok(), axes.error().detail);
  return *std::move(axes);
}

SimRun run_of(const std::string& workload, const std::string& policy, double total_s, double gpu_hours) {
  SimRun run{.workload = workload, .policy = policy, .seed = 1};
  run.total_s = total_s;
  run.tokens_per_s = 1000 / total_s;
  run.gpu_hours = gpu_hours;
  run.iteration_s = total_s + 100;
  return run;
}

}  // namespace

TEST_CASE("sim sweep: the points are all combinations, the last key changing fastest") {
  const auto axes = axes_of({"instances=16,32", "dram=1TiB,2TiB,512GiB"});
  std::string names;
  for (const SweepPoint& point : sweep_points(axes)) names += point_name(point) + "; ";
  CHECK(names == "16 1TiB; 16 2TiB; 16 512GiB; 32 1TiB; 32 2TiB; 32 512GiB; ");
}

TEST_CASE("sim sweep: a wrong key or value is named, with what was expected") {
  CHECK(error_of({"instance=16"}) ==
        "--sweep instance=16: unknown key instance: expected one of instances, tp, dram, cold, group-size, max-batch, chunk-tokens");
  CHECK(error_of({"tp"}).starts_with("--sweep tp: expected KEY=VALUE,VALUE with a key of instances, "));
  CHECK(error_of({"tp=4,x"}) == "--sweep tp=4,x: tp is \"x\": expected a whole number from 1 to 16777216");
  CHECK(error_of({"tp="}) == "--sweep tp=: tp is \"\": expected a whole number from 1 to 16777216");
  CHECK(error_of({"tp=4,,8"}).find("tp is \"\"") != std::string::npos);
  CHECK(error_of({"instances=0"}).find("instances is \"0\"") != std::string::npos);
  CHECK(error_of({"dram=1TX"}) == "--sweep dram=1TX: dram is \"1TX\": expected a size such as 1TiB");
  CHECK(error_of({"dram=1 TiB"}) == "--sweep dram=1 TiB: dram is \"1 TiB\": expected a size such as 1TiB");
  CHECK(error_of({"instances=100001"}).ends_with("expected a whole number from 1 to 100000"));
  CHECK(error_of({"max-batch=65537"}).ends_with("expected a whole number from 1 to 65536"));
  CHECK(axes_of({"cold=0,1TiB", "chunk-tokens=0,8192"}).size() == 2);  // without and with
  CHECK(error_of({"tp=4,8,4"}) == "--sweep tp=4,8,4: 4 is given twice");
  CHECK(error_of({"tp=4", "tp=8"}) == "--sweep names tp twice: expected all its values in one list");
}

TEST_CASE("sim sweep: a point sets the cluster, and keeps the number of requests") {
  const auto loaded = load_workload("qwen2-vl-72b");
  REQUIRE(loaded.ok());
  const auto axes = axes_of({"instances=8", "tp=4", "dram=2TiB", "cold=4TiB", "group-size=8", "max-batch=64", "chunk-tokens=2048"});
  Workload workload = *loaded;
  SimulateOptions options;
  REQUIRE(apply_point(axes, sweep_points(axes)[0], workload, options).ok());
  CHECK(options.instances == 8);
  CHECK(workload.hardware->tp == 4);
  CHECK(workload.hardware->gpus_per_instance == 4);
  CHECK(options.dram_bytes == int64_t{2} << 40);
  CHECK(options.cold_bytes == int64_t{4} << 40);
  CHECK(workload.group_size == 8);
  CHECK(requests_of(workload) == requests_of(*loaded));
  CHECK(options.max_batch == 64);
  CHECK(options.scheduler.chunk_tokens == 2048);

  Workload trace = *loaded;
  trace.hardware.reset();
  trace.trace.push_back({.prompt_tokens = 1, .output_tokens = {5}});
  const auto tp = axes_of({"tp=4"}), size = axes_of({"group-size=4"});
  CHECK(apply_point(tp, {"4"}, trace, options).error().detail ==
        "--sweep tp: the step times are measured, not from a model of GPUs");
  const auto uneven = axes_of({"group-size=7"});
  Workload whole = *loaded;
  CHECK(apply_point(uneven, {"7"}, whole, options).error().detail == cat("--sweep group-size: 7: expected a divisor of the ", requests_of(*loaded), " requests"));
  CHECK(apply_point(size, {"4"}, trace, options).error().detail == "--sweep group-size: the groups are those of a trace");
}

TEST_CASE("sim sweep: too many runs are refused, with how many and what they would take") {
  const auto workload = load_workload("moonlight");
  REQUIRE(workload.ok());
  const auto axes = axes_of({"instances=8,16,24,32", "dram=1TiB,2TiB", "max-batch=32,64"});
  SimulateOptions options;
  options.policies = {"seer", "seer+"};
  options.seeds = 10;
  options.sweep_runs_max = 319;
  const Status refused = check_runs(axes, *workload, options);
  REQUIRE(!refused.ok());
  // 320 runs x 3200 responses x (22386 / 256 + 1) blocks x 12 us
  CHECK(refused.error().detail ==
        "--sweep has 16 points x 2 policies x 10 seeds = 320 runs, which would take about 18 min: expected at most 319, or a larger "
        "--sweep-runs-max");
  options.sweep_runs_max = 320;
  CHECK(check_runs(axes, *workload, options).ok());
  Workload trace = *workload;  // simulated once, whatever --seeds is
  trace.trace = draw_lengths(trace, 1);
  options.sweep_runs_max = 32;
  CHECK(check_runs(axes, trace, options).ok());
  options.sweep_runs_max = 31;
  CHECK(check_runs(axes, trace, options).error().detail.starts_with("--sweep has 16 points x 2 policies x 1 seeds = 32 runs"));
  std::string many = "group-size=1";
  for (int i = 2; i < 3000; ++i) many += cat(",", i);
  const auto huge = axes_of({many, "instances" + many.substr(many.find('=')), "max-batch" + many.substr(many.find('='))});
  CHECK(check_runs(huge, trace, options).error().detail.starts_with("--sweep has 1000000000 points x 2 policies"));
  CHECK(run_estimate_s(*workload, options, "seer+sd") > run_estimate_s(*workload, options, "seer+"));
}

TEST_CASE("sim sweep: one table and one page for all points, with the best of them named") {
  const auto axes = axes_of({"instances=16,32", "dram=1TiB"});
  const std::vector<SimRun> runs{run_of("16 1TiB", "seer+", 200, 7), run_of("32 1TiB", "seer+", 120, 9), run_of("32 1TiB", "<b>", 150, 10)};
  const std::vector<SimFigures> figures = sim_figures(runs);
  CHECK('\n' + sim_joint_table(figures, std::vector<std::string>{"instances", "dram"}) == R"(
  instances  dram  policy  total, s  tokens/s  iteration, s  GPU hours  seeds
  16         1TiB  seer+        200         5           300          7      1
  32         1TiB  seer+        120      8.33           220          9      1
  32         1TiB  <b>          150      6.67           250         10      1
)");
  const std::string page = sweep_html(figures, axes, "moonlight", "seer simulate");
  CHECK(page.find("Fastest rollout that is strictly synchronous: <b>instances 32, dram 1TiB</b>, seer+, 120 s") != std::string::npos);
  CHECK(page.find("Fewest GPU hours: <b>instances 16, dram 1TiB</b>, seer+, 7.") != std::string::npos);
  CHECK(page.find("&lt;b&gt;") != std::string::npos);
  CHECK(page.find("<b>:") == std::string::npos);
}
