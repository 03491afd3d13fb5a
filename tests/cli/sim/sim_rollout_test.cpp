#include "cli/sim/sim_rollout.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <numeric>

#include "cli/sim/sim_bound.h"
#include "cli/sim/workload.h"
#include "small_cluster.h"

using namespace seer;

namespace {

SimWork small_work(uint64_t seed) {
  Workload workload;
  workload.groups = 24;
  workload.group_size = 4;
  workload.prompt_tokens = 100;
  workload.lengths = {.max_gen = 6000, .avg_gen = 1500, .sigma = 0.8, .icc = 0.7};
  return {.groups = draw_lengths(workload, seed), .max_gen = 6000};
}

SimRun simulate(const std::string& policy, const ClusterModel& cluster, const SimWork& work,
                int64_t chunk_tokens = 1024) {
  ChunkSchedulerConfig scheduler;
  scheduler.policy = policy;
  scheduler.chunk_tokens = chunk_tokens;
  Result<SimRun> run = simulate_rollout(cluster, work, scheduler);
  REQUIRE_MESSAGE(run.ok(), run.error().detail);
  return *std::move(run);
}

/// Of this process, so far.
int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

}  // namespace

TEST_CASE("sim rollout: every policy makes all tokens, never faster than the bound") {
  const ClusterModel cluster = small_cluster();
  const SimWork work = small_work(1);
  int64_t tokens = 0;
  for (const GroupLengths& group : work.groups)
    tokens = std::accumulate(group.output_tokens.begin(), group.output_tokens.end(), tokens);
  const double bound_s = work_bound_s(cluster, work);
  CHECK(bound_s > 0);
  for (const std::string& policy : chunk_policy_names()) {
    CAPTURE(policy);
    const SimRun run = simulate(policy, cluster, work);
    CHECK(run.requests == 96);
    CHECK(run.output_tokens == tokens);
    CHECK(run.completions_s.size() == 96);
    CHECK(run.total_s >= bound_s);
    CHECK(run.total_s < 5 * bound_s);
    CHECK(run.idle_share >= 0);
    CHECK(run.idle_share < 1);
    CHECK(run.instances.size() == 4);
    for (const InstanceTimeline& timeline : run.instances) CHECK(timeline.size() > 10);
    const bool whole_groups = find_policy(policy)->whole_groups;
    if (whole_groups) CHECK(run.migrations == 0);
    if (!whole_groups) CHECK(run.preemptions == 0);
  }
}

TEST_CASE("sim rollout: the same lengths give the same events, others do not") {
  const ClusterModel cluster = small_cluster();
  const SimRun first = simulate("seer", cluster, small_work(1)), again = simulate("seer", cluster, small_work(1));
  CHECK(first.events_hash == again.events_hash);
  CHECK(first.total_s == again.total_s);
  CHECK(first.completions_s == again.completions_s);
  CHECK(simulate("seer", cluster, small_work(2)).events_hash != first.events_hash);
  CHECK(simulate("divided", cluster, small_work(1)).events_hash != first.events_hash);
}

TEST_CASE("sim rollout: steps that are done at once are those done one by one") {
  ClusterModel cluster = small_cluster();
  cluster.kv_tokens = 16384;  // short: requests give way
  cluster.instances_per_machine = 2;
  const SimWork work = small_work(4);
  int64_t gave_way = 0;
  for (std::string policy : chunk_policy_names())
    for (const bool drafts : {false, true}) {
      CAPTURE(policy);
      CAPTURE(drafts);
      ChunkSchedulerConfig scheduler;
      scheduler.policy = policy;
      scheduler.chunk_tokens = 1024;
      std::optional<SimDrafting> drafting;
      if (drafts) drafting = {.acceptance = *DraftAcceptance::published("linear"), .budget = {.rows_max = {8, 0}}};
      const auto run = [&](int64_t steps_at_once) {
        cluster.steps_at_once = steps_at_once;
        Result<SimRun> result = simulate_rollout(cluster, work, scheduler, drafting);
        REQUIRE_MESSAGE(result.ok(), result.error().detail);
        return *std::move(result);
      };
      const SimRun single = run(1), many = run(512);
      CHECK(many.completions_s == single.completions_s);
      CHECK(many.total_s == single.total_s);
      CHECK(many.preemptions == single.preemptions);
      CHECK(many.yields == single.yields);
      CHECK(many.migrations == single.migrations);
      gave_way += many.preemptions + many.yields;
      CHECK(many.events_hash != single.events_hash);  // it counts the events
      if (drafts) CHECK(many.acceptance_length == single.acceptance_length);
      CHECK(many.idle_share == doctest::Approx(single.idle_share).epsilon(1e-4));
    }
  CHECK(gave_way > 20);
}

TEST_CASE("sim rollout: stopped, it leaves the same behind however many steps are done at once") {
  ClusterModel cluster = small_cluster();
  cluster.kv_tokens = 16384;  // short: requests give way
  SimWork work = small_work(4);
  work.target_requests = 40;
  for (const std::string policy : {"verl", "divided", "seer+"})
    for (const bool drafts : {false, true}) {
      CAPTURE(policy);
      CAPTURE(drafts);
      std::optional<SimDrafting> drafting;
      if (drafts) drafting = {.acceptance = *DraftAcceptance::published("linear"), .budget = {.rows_max = {8, 0}}};
      const auto run = [&](int64_t steps_at_once, std::vector<StoppedRequest>& left) {
        cluster.steps_at_once = steps_at_once;
        ChunkSchedulerConfig scheduler;
        scheduler.policy = policy;
        scheduler.chunk_tokens = 1024;
        Result<SimRun> result = simulate_rollout(cluster, work, scheduler, drafting, &left);
        REQUIRE_MESSAGE(result.ok(), result.error().detail);
        return *std::move(result);
      };
      std::vector<StoppedRequest> left_by_single, left_by_many;
      const SimRun single = run(1, left_by_single), many = run(512, left_by_many);
      CHECK(many.completions_s == single.completions_s);
      CHECK(many.idle_share == doctest::Approx(single.idle_share).epsilon(1e-4));
      REQUIRE(left_by_many.size() == left_by_single.size());
      int64_t generated = 0;
      for (size_t i = 0; i < left_by_many.size(); ++i) {
        CHECK(left_by_many[i].group == left_by_single[i].group);
        CHECK(left_by_many[i].sample == left_by_single[i].sample);
        CHECK(left_by_many[i].generated_tokens == left_by_single[i].generated_tokens);
        generated += left_by_many[i].generated_tokens;
      }
      CHECK(generated > 1000);
    }
}

TEST_CASE("sim rollout: responses that begin alike take the same time however many steps are done at once") {
  ClusterModel cluster = small_cluster();
  cluster.kv_tokens = 12288;  // short: those that start again find blocks of others, by when these were filled
  for (const auto& [block_tokens, alike_max] : {std::pair<int64_t, int64_t>{16, 6000}, {256, 150}}) {
    cluster.block_tokens = block_tokens;
    SimWork work = small_work(4);
    for (GroupLengths& group : work.groups)
      for (uint32_t sample = 0; sample < group.output_tokens.size(); ++sample)
        group.shared.push_back({0, sample == 0 ? 0 : std::min({alike_max, group.output_tokens[0], group.output_tokens[sample]})});
    for (const std::string policy : {"verl", "divided", "seer", "seer+"}) {
      CAPTURE(block_tokens);
      CAPTURE(policy);
      cluster.steps_at_once = 1;
      const SimRun single = simulate(policy, cluster, work, 256);
      cluster.steps_at_once = 512;
      const SimRun many = simulate(policy, cluster, work, 256);
      CHECK(many.completions_s == single.completions_s);
      CHECK(many.preemptions == single.preemptions);
      CHECK(many.reprefill_tokens == single.reprefill_tokens);
      // Prompts of 100 and beginnings of 150 tokens end before a block of 256 does: nobody finds them.
      CHECK((many.events_hash == single.events_hash) == (block_tokens == 16));
    }
  }
}

TEST_CASE("sim rollout: if each row costs time, drafts that are not likely enough are not made") {
  ClusterModel cluster = small_cluster();
  cluster.step_ns = [](const StepShape& s) { return 1'000'000 + 1'000'000 * s.rows; };  // a full batch: nothing but rows
  const SimWork work = small_work(5);
  const SimRun plain = simulate("divided", cluster, work);
  const SimDrafting drafting{.acceptance = *DraftAcceptance::published("linear"), .grouped = false,
                             .budget = {.rows_max = {16, 0}}};
  for (const int64_t steps_at_once : {1, 512}) {
    cluster.steps_at_once = steps_at_once;
    const Result<SimRun> drafted = simulate_rollout(cluster, work, {.policy = "divided", .chunk_tokens = 1024}, drafting);
    REQUIRE_MESSAGE(drafted.ok(), drafted.error().detail);
    CHECK(drafted->total_s < 1.02 * plain.total_s);
  }
}

TEST_CASE("sim rollout: drafts do not make an instance without a pool preempt more") {
  ClusterModel cluster = small_cluster();
  cluster.kv_tokens = 8192;
  cluster.block_tokens = 64;
  const SimDrafting drafting{.acceptance = *DraftAcceptance::published("linear"), .grouped = false, .budget = {.rows_max = {16, 0}}};
  int64_t plain = 0, drafted = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const SimWork work = small_work(seed);
    plain += simulate("verl", cluster, work).preemptions;
    const Result<SimRun> run = simulate_rollout(cluster, work, {.policy = "verl", .watermark_share = 0}, drafting);
    REQUIRE_MESSAGE(run.ok(), run.error().detail);
    drafted += run->preemptions;
  }
  CAPTURE(plain);
  CAPTURE(drafted);
  CHECK(plain > 50);
  CHECK(drafted < 1.3 * static_cast<double>(plain));
}

TEST_CASE("sim rollout: neither single steps nor steps done at once wait for a slot after copies") {
  ClusterModel cluster = small_cluster();
  cluster.instances = 1;
  cluster.kv_tokens = 400'000;
  cluster.rows_max = 128;
  cluster.offer_blocks = 1;  // what 96 requests offer together are more copies than a real engine's queue takes
  cluster.steps_at_once = 1;
  const SimRun single = simulate("divided", cluster, small_work(4));
  cluster.steps_at_once = 512;
  CHECK(simulate("divided", cluster, small_work(4)).completions_s == single.completions_s);
}

TEST_CASE("sim rollout: a request takes its KV along to other machines") {
  const ChunkSchedulerConfig scheduler{.policy = "las", .chunk_tokens = 600, .inflight_spread_max = 0};
  const Result<SimRun> run = simulate_rollout(small_cluster(), small_work(4), scheduler);
  REQUIRE_MESSAGE(run.ok(), run.error().detail);
  CHECK(run->migrations > 10);
  CHECK(run->reprefill_tokens == 0);
}

TEST_CASE("sim rollout: responses that begin alike find each other's KV when they start again") {
  ClusterModel cluster = small_cluster();
  cluster.instances = 1;
  cluster.kv_tokens = 8192;
  cluster.block_tokens = 16;
  SimWork work{.groups = {}, .max_gen = 6000};
  for (const int64_t tokens : {300, 600, 900, 1200})
    work.groups.push_back({.prompt_tokens = 100, .output_tokens = std::vector<int64_t>(8, tokens)});
  const SimRun apart = simulate("verl", cluster, work);
  for (GroupLengths& group : work.groups)
    for (uint32_t sample = 0; sample < 8; ++sample) group.shared.push_back({0, sample == 0 ? 0 : group.output_tokens[0] - 10});
  const SimRun alike = simulate("verl", cluster, work);
  CHECK(apart.preemptions > alike.preemptions);
  CHECK(apart.reprefill_tokens > alike.reprefill_tokens);
  CHECK(apart.total_s > alike.total_s);
  CHECK(alike.output_tokens == apart.output_tokens);
}

TEST_CASE("sim rollout: one request alone takes the sum of its steps, which is the bound") {
  ClusterModel cluster = small_cluster();
  cluster.instances = 1;
  SimWork work{.groups = {{.prompt_tokens = 100, .output_tokens = {3000}}}, .max_gen = 6000};
  double expected_ns = 5'000'000 + 20'000 * 100 + 100 * 100;  // prefill, which samples the first token
  for (int64_t i = 1; i < 3000; ++i) expected_ns += static_cast<double>(5'000'000 + 20'000 + 100 * (100 + i));
  const SimRun run = simulate("divided", cluster, work, 0);
  CHECK(run.total_s == doctest::Approx(expected_ns / 1e9).epsilon(1e-4));
  CHECK(work_bound_s(cluster, work) == doctest::Approx(expected_ns / 1e9).epsilon(1e-3));
  CHECK(work_bound_s(cluster, work) <= run.total_s);
  CHECK(run.late_start_share == 0);
}

TEST_CASE("sim rollout: the late start is that of the last one to start of twenty requests") {
  ClusterModel cluster = small_cluster();
  cluster.instances = 1;
  cluster.rows_max = 10;
  SimWork work{.groups = {{.prompt_tokens = 100, .output_tokens = std::vector<int64_t>(10, 500)},
                          {.prompt_tokens = 100, .output_tokens = std::vector<int64_t>(10, 1500)}},
               .max_gen = 6000};
  const SimRun run = simulate("verl", cluster, work);  // the second group begins when the first is done
  std::vector<double> done_s = run.completions_s;
  std::ranges::sort(done_s);
  CHECK(run.late_start_share == doctest::Approx(done_s[9] / run.total_s).epsilon(0.01));
  CHECK(run.late_start_share > 0.1);
  CHECK(simulate("verl", small_cluster(), work).late_start_share < 0.01);  // room for all at once
}

TEST_CASE("sim rollout: without a pool, and with a response that can fit nowhere") {
  ClusterModel cluster = small_cluster();
  cluster.dram_bytes = 0;
  CHECK(simulate("divided", cluster, small_work(3)).requests == 96);
  cluster.kv_tokens = 6399;
  ChunkSchedulerConfig scheduler;
  const Result<SimRun> refused = simulate_rollout(cluster, small_work(3), scheduler);
  REQUIRE(!refused.ok());
  CHECK(refused.error().detail ==
        "an instance holds KV of 6399 tokens, and the longest request may need 6100 and a block more: expected --kv-tokens 6400 at least");
  cluster.kv_tokens = 6400;
  CHECK(simulate_rollout(cluster, small_work(3), scheduler).ok());
}

TEST_CASE("sim rollout: a pool far larger than the work takes no memory, and changes nothing") {
  ClusterModel cluster = small_cluster();
  cluster.kv_bytes_per_token = 100;
  cluster.dram_bytes = int64_t{1} << 30;
  const SimRun ample = simulate("seer", cluster, small_work(4));
  const int64_t before = peak_memory_bytes();
  cluster.dram_bytes = int64_t{1} << 40;  // 43 M blocks of 256 tokens, for each of which a machine would take 13 bytes
  const SimRun huge = simulate("seer", cluster, small_work(4));
  CHECK(peak_memory_bytes() - before < 64 << 20);
  CHECK(huge.events_hash == ample.events_hash);
}

TEST_CASE("sim rollout: a cold tier takes what DRAM has no room for, so that less is prefilled again") {
  ClusterModel cluster = small_cluster();
  cluster.kv_tokens = 16384;
  cluster.dram_bytes = 4 * cluster.block_tokens * cluster.kv_bytes_per_token;
  const SimWork work = small_work(4);
  const SimRun without = simulate("divided", cluster, work);
  cluster.cold_bytes = int64_t{1} << 40;
  cluster.cold_read_bytes_per_s = cluster.cold_write_bytes_per_s = 10'000'000'000;
  const SimRun with = simulate("divided", cluster, work);
  CHECK(without.reprefill_tokens > 0);
  CHECK(with.reprefill_tokens < without.reprefill_tokens);
  CHECK(with.output_tokens == without.output_tokens);
  // Blocks that take longer to read back than to compute are no help.
  cluster.cold_read_bytes_per_s = 1'000'000;
  CHECK(simulate("divided", cluster, work).total_s > with.total_s);
}

TEST_CASE("sim rollout: fetches of one machine wait for each other") {
  ClusterModel cluster = small_cluster();
  cluster.kv_tokens = 16384;
  cluster.instances_per_machine = 1;
  cluster.nic_bytes_per_s = 2'000'000;  // slow enough to matter
  const SimWork work = small_work(4);
  const SimRun shared = simulate("divided", cluster, work);
  cluster.shares_links = false;
  const SimRun alone = simulate("divided", cluster, work);
  CHECK(shared.migrations > 0);
  CHECK(shared.total_s > alone.total_s);
  CHECK(shared.output_tokens == alone.output_tokens);
}
