#include "cli/sim/sim_partial.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "small_cluster.h"

using namespace seer;

namespace {

Workload small_workload() {
  Workload workload;
  workload.groups = 24;
  workload.group_size = 4;
  workload.prompt_tokens = 100;
  workload.lengths = {.max_gen = 6000, .avg_gen = 1500, .sigma = 0.8, .icc = 0.7};
  return workload;
}

SimRun partial(const Workload& workload, double over_issue, uint64_t seed = 1) {
  Result<SimRun> run = simulate_partial(small_cluster(), workload, seed, over_issue,
                                       {.policy = sim_policy(kPartialPolicy).scheduling});
  REQUIRE_MESSAGE(run.ok(), run.error().detail);
  return *std::move(run);
}

}  // namespace

TEST_CASE("sim partial: an iteration ends with the workload's number of requests, and is marked as not synchronous") {
  const SimRun run = partial(small_workload(), 2);
  CHECK(run.policy == "partial");
  CHECK_FALSE(run.is_synchronous);
  CHECK(run.requests >= 96);
  CHECK(run.requests <= 96 + 4);  // several may finish in the step that ends it
  CHECK(run.tokens_per_s == doctest::Approx(static_cast<double>(run.output_tokens) / run.total_s));
  CHECK(run.events_hash == partial(small_workload(), 2).events_hash);
  CHECK(run.events_hash != partial(small_workload(), 2, 2).events_hash);
}

TEST_CASE("sim partial: nothing that was generated is lost or counted twice") {
  Workload workload = small_workload();
  workload.trace = draw_lengths(workload, 1);
  for (GroupLengths& group : workload.trace) group.output_tokens.assign(4, 1000);
  // Responses of one length: whichever iteration generates the tokens, each finished one has 1000.
  const SimRun run = partial(workload, 1.5);
  CHECK(run.output_tokens == 1000 * run.requests);
}

TEST_CASE("sim partial: without over-issue it waits for every request, as verl does") {
  const Workload workload = small_workload();
  const SimRun run = partial(workload, 1);
  Workload more = workload;
  more.groups = workload.groups * kPartialIterations;
  const std::vector<GroupLengths> groups = draw_lengths(more, 1);
  SimWork last{.groups = {groups.end() - workload.groups, groups.end()}, .max_gen = workload.lengths.max_gen};
  ChunkSchedulerConfig scheduler;
  scheduler.policy = "verl";
  const SimRun verl = *simulate_rollout(small_cluster(), last, scheduler);
  CHECK(run.total_s == doctest::Approx(verl.total_s).epsilon(1e-6));
  CHECK(run.output_tokens == verl.output_tokens);
}

TEST_CASE("sim partial: a stop ends it") {
  const std::atomic<bool> stop = true;
  const Result<SimRun> run = simulate_partial(small_cluster(), small_workload(), 1, 2, {.policy = sim_policy(kPartialPolicy).scheduling}, {}, {}, &stop);
  REQUIRE(!run.ok());
  CHECK(run.error().code == Code::kCancelled);
}
