#include "cli/sim/sim_bound.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "small_cluster.h"

using namespace seer;

namespace {

/// Groups of one prompt token each.
SimWork work_of(std::vector<std::vector<int64_t>> output_tokens) {
  SimWork work{.groups = {}, .max_gen = 6000};
  for (auto& tokens : output_tokens) work.groups.push_back({.prompt_tokens = 1, .output_tokens = std::move(tokens)});
  return work;
}

/// One instance; a step costs `step`, and `row` per row, and `read` per token of KV, in ns.
ClusterModel linear_cluster(int64_t step, int64_t row, int64_t read) {
  ClusterModel cluster = small_cluster();
  cluster.instances = 1;
  cluster.step_ns = [=](const StepShape& s) { return step + row * s.rows + read * s.kv_tokens; };
  return cluster;
}

double fastest_s(const ClusterModel& cluster, const SimWork& work) {
  double fastest = 1e9;
  for (const std::string& policy : chunk_policy_names()) {
    const Result<SimRun> run = simulate_rollout(cluster, work, {.policy = policy, .chunk_tokens = 512});
    REQUIRE_MESSAGE(run.ok(), run.error().detail);
    fastest = std::min(fastest, run->total_s);
  }
  return fastest;
}

}  // namespace

TEST_CASE("sim bound: full batches of equal lengths, and a sum of single rows") {
  const SimWork work = work_of(std::vector(32, std::vector<int64_t>(8, 101)));  // 256 responses of 100 decode steps
  // The cost is that of the rows: 100 steps of 64 rows, four times, plus all KV that is read.
  const double read = 256 * (100 * 1 + 100 * 101 / 2);
  CHECK(work_bound_s(linear_cluster(5'000'000, 1000, 10), work) ==
        doctest::Approx((400 * (5e6 + 64e3) + 10 * read) / 1e9).epsilon(0.002));
  // Steps cost nothing but their rows.
  CHECK(work_bound_s(linear_cluster(0, 1000, 0), work) == doctest::Approx(25600 * 1000 / 1e9).epsilon(0.002));
  // More instances share it, and no share is less than one response alone.
  ClusterModel cluster = linear_cluster(5'000'000, 1000, 10);
  const double one = work_bound_s(cluster, work);
  cluster.instances = 2;
  CHECK(work_bound_s(cluster, work) == doctest::Approx(one / 2));
  cluster.instances = 1000;
  CHECK(work_bound_s(cluster, work) == doctest::Approx((100 * 5'001'000 + 10 * (100 + 5050)) / 1e9));
}

TEST_CASE("sim bound: if KV is scarce, it holds for batches of long and short contexts") {
  ClusterModel cluster = linear_cluster(5'000'000, 1000, 1);
  cluster.kv_tokens = 16384;
  cluster.block_tokens = 16;
  // 64 long ones, 16 at a time because KV is short; and as many short ones as there are rows beside them.
  std::vector<std::vector<int64_t>> tokens;
  for (int i = 0; i < 64; ++i) {
    tokens.push_back({2000});
    for (int j = 0; j < 100; ++j) tokens.push_back({60});
  }
  const SimWork work = work_of(std::move(tokens));
  const double bound_s = work_bound_s(cluster, work);
  const double fastest = fastest_s(cluster, work);
  CHECK(fastest >= bound_s);
  CHECK(fastest < 1.5 * bound_s);
  // KV held over all steps / the KV of an instance is the least number of steps. Running the long ones first and then
  // the short ones would take half as many again.
  const double steps = (64 * 2000.0 * 2000 / 2 + 6400 * 60.0 * 60 / 2) / 16384;
  CHECK(bound_s == doctest::Approx(steps * 5e6 / 1e9).epsilon(0.1));
}

TEST_CASE("sim bound: it holds if more KV costs more, few rows cost less, and responses begin alike") {
  ClusterModel cluster = small_cluster();
  cluster.instances = 1;
  cluster.rows_max = 32;
  cluster.kv_tokens = 6144;
  cluster.block_tokens = 16;
  cluster.step_ns = [](const StepShape& s) {
    return 40'000 * s.rows + 3000 * std::max<int64_t>(0, s.rows - 16) + 60 * s.kv_tokens +
           120 * std::max<int64_t>(0, s.kv_tokens - 4096);
  };
  SimWork work;
  work.max_gen = 1024;
  for (int64_t g = 0; g < 30; ++g) {
    GroupLengths group{.prompt_tokens = 10, .output_tokens = {}};
    for (uint32_t sample = 0; sample < 8; ++sample) {
      group.output_tokens.push_back(50 + (g * 37 + sample * 131) % 900);
      group.shared.push_back({0, sample == 0 ? 0 : std::min(group.output_tokens[0], group.output_tokens[sample]) / 2});
    }
    work.groups.push_back(std::move(group));
  }
  const double bound_s = work_bound_s(cluster, work), fastest = fastest_s(cluster, work);
  CHECK(fastest >= bound_s);
  CHECK(fastest < 1.15 * bound_s);
}

TEST_CASE("sim bound: responses of one token have no decode step") {
  CHECK(work_bound_s(small_cluster(), work_of({{1, 1}, {1}})) == 0);
}
