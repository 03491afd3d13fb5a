#include "cli/sim/sim_gap.h"

#include <doctest/doctest.h>

#include <cmath>

#include "cli/sim/sim_bound.h"
#include "small_cluster.h"

using namespace seer;

namespace {

double sum_of(const SimGap& gap) { return gap.idle + gap.waiting + gap.early + gap.prefill + gap.batch + gap.mix; }

}  // namespace

TEST_CASE("sim gap: each second has its price") {
  ClusterModel cluster = small_cluster();
  cluster.instances = 2;
  cluster.step_ns = [](const StepShape&) { return 400'000'000; };
  TimePrices prices{5, 0.3, {{100, 0.4}}, {}};
  SimRun run;
  run.total_s = 10;
  run.idle_share = 0.25;
  run.completions_s = {8, 2};
  run.responses = {{.decode_steps = 120, .batch_s = 5}, {.decode_steps = 99, .batch_s = 1}};
  run.steps = {{{4, 9, 4, 100, 100}, 10, 500e6}};
  CHECK(std::isnan(gap_of(SimRun{.total_s = 10}, prices, cluster).idle));
  prices.rows_worth_ns = [](int64_t sequences, int64_t kv_tokens, double step_ns) {
    CHECK(sequences == 4);
    CHECK(kv_tokens == 100);
    return 0.1 * step_ns;
  };
  const SimGap gap = gap_of(run, prices, cluster);
  CHECK(gap.idle == doctest::Approx(0.3 * 2 * 0.25));
  CHECK(gap.waiting == doctest::Approx(0.4 * (8 - 5) / 10));
  CHECK(gap.early == doctest::Approx(0.4 * (10 - 8) / 10));
  CHECK(gap.prefill == doctest::Approx(0.3 * 10 * (0.5 - 0.4) / 10));
  CHECK(gap.batch == doctest::Approx(10 * (0.3 - 0.1) * 0.4 / 10));
  CHECK(gap.mix == doctest::Approx(0.5 - 0.15 - 0.12 - 0.08 - 0.03 - 0.08));
}

TEST_CASE("sim gap: what a policy loses is found where it loses it") {
  ClusterModel cluster = small_cluster();
  cluster.instances = 2;
  cluster.rows_max = 16;
  cluster.step_ns = [](const StepShape& s) { return 1'000'000 * (10 + s.rows); };
  SimWork work{.groups = {}, .max_gen = 6000};
  for (int i = 0; i < 100; ++i) work.groups.push_back({.prompt_tokens = 1, .output_tokens = {21}});
  for (int i = 0; i < 2; ++i) work.groups.push_back({.prompt_tokens = 1, .output_tokens = {401}});
  const SimBounds bounds = lower_bounds(cluster, work);
  REQUIRE(bounds.prices.rows_worth_ns);
  const auto gap = [&](const char* policy) {
    ChunkSchedulerConfig scheduler;
    scheduler.policy = policy;
    scheduler.chunk_tokens = 64;
    Result<SimRun> run = simulate_rollout(cluster, work, scheduler);
    REQUIRE_MESSAGE(run.ok(), run.error().detail);
    const SimGap found = gap_of(*run, bounds.prices, cluster);
    CHECK(sum_of(found) == doctest::Approx(1 - bounds.tight_s / run->total_s));
    for (const double part : {found.idle, found.waiting, found.early, found.prefill, found.batch, found.mix}) CHECK(part > -1e-3);
    return found;
  };
  // The two long ones start at once, or wait until most short ones are done.
  const SimGap oracle = gap("oracle"), divided = gap("divided");
  MESSAGE("oracle: waiting ", oracle.waiting, ", batch ", oracle.batch, "; divided: ", divided.waiting, ", ", divided.batch);
  CHECK(oracle.waiting < 0.01);
  CHECK(divided.waiting > 0.1);
  CHECK(sum_of(divided) > sum_of(oracle));
}
