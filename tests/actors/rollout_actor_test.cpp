#include <doctest/doctest.h>

#include <random>
#include <set>

#include "actors/cluster_checks.h"
#include "sim/lost_engine.h"
#include "sim/not_finite_engine.h"

using namespace seer;

namespace {

SimClusterOptions options_for(const std::string& policy) {
  SimClusterOptions o;
  o.scheduler.policy = policy;
  return o;
}

}  // namespace

TEST_CASE("rollout: every policy answers every request exactly, with room to spare") {
  for (const std::string& policy : chunk_policy_names()) {
    CAPTURE(policy);
    auto o = options_for(policy);
    o.device_blocks = 1024;
    SimCluster cluster(o);
    cluster.run();
    check_exact(cluster);
    CHECK(cluster.seen.summaries[0].reprefill_tokens == 0);
    CHECK(cluster.seen.summaries[0].preemptions + cluster.seen.summaries[0].yields == 0);
  }
}

TEST_CASE("rollout: short of KV, every policy still answers exactly; chunked ones recompute nothing") {
  int64_t yields = 0;  // of chunked ones
  for (const std::string& policy : chunk_policy_names()) {
    for (int64_t chunk : {0, 7, 40}) {
      CAPTURE(policy);
      CAPTURE(chunk);
      auto o = options_for(policy);
      o.scheduler.chunk_tokens = chunk;
      o.device_blocks = 60;  // two requests of 110 tokens fill it
      SimCluster cluster(o);
      cluster.run();
      check_exact(cluster);
      const RolloutSummary& s = cluster.seen.summaries[0];
      if (find_policy(policy)->whole_groups) {
        if (policy == "verl") CHECK(s.preemptions > 0);
        CHECK(s.migrations == 0);
      } else {
        CHECK(s.reprefill_tokens == 0);
        CHECK(s.preemptions == 0);
        yields += s.yields;
      }
    }
  }
  CHECK(yields > 0);  // KV was short
}

TEST_CASE("rollout: with a limit no instance runs more at a time, under any policy") {
  for (const std::string& policy : chunk_policy_names()) {
    CAPTURE(policy);
    auto o = options_for(policy);
    o.device_blocks = 1024;
    o.scheduler.running_max = 3;
    SimCluster cluster(o);
    cluster.start();
    int64_t running_most = 0;
    cluster.world.run_until(600'000'000, [&] {
      std::map<InstanceId, int64_t> running;
      for (const auto& [id, chunk] : rt::look<RolloutActor>(cluster.fleet.rollout()).open_chunks)
        running_most = std::max(running_most, ++running[chunk.instance]);
      return cluster.over();
    });
    CHECK(running_most == 3);
    check_exact(cluster);
  }
}

TEST_CASE("rollout: drafts change no token and no KV, only the number of steps") {
  for (const std::string& policy : chunk_policy_names()) {
    for (const int32_t blocks : {60, 256}) {
      CAPTURE(policy);
      CAPTURE(blocks);
      auto o = options_for(policy);
      o.device_blocks = blocks;
      o.draft_trees = blocks == 60;
      int64_t plain_steps = 0;
      for (const int64_t drafts : {0, 1, 4, 9}) {
        o.draft_tokens_max = drafts;
        SimCluster cluster(o);
        cluster.run();
        check_exact(cluster);
        int64_t steps = 0, verifies = 0, drafted = 0, accepted = 0, trees = 0;
        for (const InstanceReport& i : cluster.seen.summaries[0].instances) {
          const DraftCounts all = i.drafting.all();
          steps += i.steps, verifies += all.verifies, drafted += all.drafted, accepted += all.accepted;
          trees += i.drafting.trees().verifies;
        }
        if (drafts == 0) {
          plain_steps = steps;
          CHECK(verifies == 0);
          continue;
        }
        CHECK(drafted > verifies / 2);
        CHECK(accepted > drafted / 5);
        CHECK(accepted < drafted);
        CHECK(steps < plain_steps);
        if (drafts > 1) CHECK((trees > 0) == o.draft_trees);
      }
    }
  }
}

TEST_CASE("rollout: a request moves between instances with its KV, and nothing is prefilled twice") {
  auto o = options_for("las");
  o.scheduler.chunk_tokens = 9;
  o.scheduler.inflight_spread_max = 0;
  o.instances = 3;
  SimCluster cluster(o);
  cluster.run();
  check_exact(cluster);
  CHECK(cluster.seen.summaries[0].migrations > 0);
  CHECK(cluster.seen.summaries[0].reprefill_tokens == 0);
}

TEST_CASE("rollout: between machines too, a request takes its KV along") {
  auto o = options_for("las");
  o.scheduler.chunk_tokens = 9;
  o.scheduler.inflight_spread_max = 0;
  o.instances = 3;
  o.nodes = 3;
  SimCluster cluster(o);
  cluster.run();
  check_exact(cluster);
  CHECK(cluster.seen.summaries[0].migrations > 0);
  CHECK(cluster.seen.summaries[0].reprefill_tokens == 0);
  CHECK(cluster.fetched_blocks() > 0);
}

TEST_CASE("rollout: a machine whose KV node dies while others fetch from it costs time only") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    auto o = options_for("las");
    o.seed = seed;
    o.scheduler.chunk_tokens = 9;
    o.scheduler.inflight_spread_max = 0;
    o.nodes = 2;
    SimCluster cluster(o);
    cluster.start();
    cluster.world.run_until(20'000 + static_cast<int64_t>(seed) * 500);
    cluster.kill_kv_node(static_cast<uint32_t>(seed % 2));
    cluster.finish();
    check_exact(cluster);
  }
}

TEST_CASE("rollout: with little DRAM, parked chains go to the cold tier and come back") {
  auto o = options_for("divided");
  o.scheduler.chunk_tokens = 16;
  o.device_blocks = 60;
  o.dram_blocks = 80;
  o.cold_blocks = 4096;
  SimCluster cluster(o);
  cluster.run();
  check_exact(cluster);
  CHECK(cluster.cold->stats().written_bytes > 0);
  CHECK(cluster.cold->stats().read_bytes > 0);
}

TEST_CASE("rollout: with little DRAM and no cold tier, KV is dropped and recomputed, exactly") {
  auto o = options_for("divided");
  o.scheduler.chunk_tokens = 16;
  o.device_blocks = 60;
  o.dram_blocks = 20;
  SimCluster cluster(o);
  cluster.run();
  check_exact(cluster);
  CHECK(cluster.seen.summaries[0].reprefill_tokens > 0);
}

TEST_CASE("rollout: an instance that dies costs time only") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    auto o = options_for(seed % 2 == 0 ? "seer" : "verl");
    o.seed = seed;
    o.device_blocks = 60;
    SimCluster cluster(o);
    cluster.start();
    cluster.world.run_until(20'000 + static_cast<int64_t>(seed) * 1'000);
    REQUIRE(cluster.seen.summaries.empty());
    cluster.kill_instance(InstanceId{static_cast<uint32_t>(seed % 2)});
    cluster.finish();
    check_exact(cluster);
  }
}

TEST_CASE("rollout: an instance whose engine is lost ends; its node starts another, and the responses are the same") {
  for (const int64_t results_before : {0, 1, 7, 30, 31, 32, 33, 34, 35, 60}) {
    CAPTURE(results_before);
    auto o = options_for(results_before % 2 == 0 ? "seer" : "verl");
    o.device_blocks = 60;
    int engines = 0;
    o.wrap_engine = [&](std::shared_ptr<Engine> engine) -> std::shared_ptr<Engine> {
      if (++engines > 1) return engine;
      return std::make_shared<LostEngine>(std::move(engine), results_before);
    };
    SimCluster cluster(o);
    cluster.run();
    CHECK(engines == 3);
    check_exact(cluster);
    REQUIRE(cluster.seen.summaries.size() == 1);
    CHECK(cluster.seen.summaries[0].instances_lost == 1);
  }
}

TEST_CASE("rollout: an instance that prefills for longer than a silence may last is not taken for dead") {
  SimClusterOptions o;
  o.instances = 1;
  o.groups = 2;
  o.prompt_tokens = 640;
  o.device_blocks = 2000;
  o.report_steps = 32;
  o.length_max = 4;
  o.step_ns = [](const StepShape&) { return 10'000'000'000; };  // 32 prompt tokens in 10 s
  o.chunk_silence_us = 100'000'000;
  SimCluster cluster(o);
  cluster.start();
  cluster.finish(3'600'000'000);
  check_exact(cluster);
  CHECK(cluster.seen.summaries[0].instances_lost == 0);
  CHECK(cluster.seen.summaries[0].wall_us > 4 * o.chunk_silence_us);
}

TEST_CASE("rollout: a KV node that dies costs time only") {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    auto o = options_for("las");
    o.seed = seed;
    o.device_blocks = 60;
    SimCluster cluster(o);
    cluster.start();
    cluster.world.run_until(20'000 + static_cast<int64_t>(seed) * 1'000);
    REQUIRE_FALSE(cluster.over());
    cluster.kill_kv_node();
    cluster.finish();
    check_exact(cluster);
  }
}

TEST_CASE("rollout: the same seed gives the same run, other seeds other runs and the same responses") {
  auto run = [](uint64_t seed) {
    auto o = options_for("seer");
    o.seed = seed;
    o.device_blocks = 60;
    o.instances = 4;
    o.groups = 30;
    SimCluster cluster(o);
    cluster.run();
    check_exact(cluster);
    std::vector<RequestId> order;
    for (const Response& r : cluster.seen.responses) order.push_back(r.request);
    return std::pair{order, cluster.events_hash()};
  };
  std::set<decltype(run(0))> runs;
  for (uint64_t seed = 1; seed <= 8; ++seed) runs.insert(run(seed));
  CHECK(runs.size() > 1);
  CHECK_FALSE(runs.insert(run(3)).second);
}

TEST_CASE("rollout: when stopped it keeps finished responses and says that it is not complete") {
  SimCluster cluster(options_for("seer"));
  cluster.start();
  for (int64_t t = 1'000; cluster.seen.responses.size() < 3 && t < 1'000'000; t += 1'000) cluster.world.run_until(t);
  rt::post(cluster.fleet.rollout(), StopRollout{});
  cluster.finish();
  REQUIRE(cluster.seen.summaries.size() == 1);
  CHECK_FALSE(cluster.seen.summaries[0].complete);
  CHECK(cluster.seen.summaries[0].finished == static_cast<int64_t>(cluster.seen.responses.size()));
}

TEST_CASE("rollout: responses that can fit in no instance fail before any work") {
  auto o = options_for("seer");
  o.device_blocks = 10;  // 40 tokens; prompt + max_tokens is 110
  SimCluster cluster(o);
  cluster.run();
  REQUIRE(cluster.seen.summaries.size() == 1);
  CHECK(cluster.seen.summaries[0].failed == static_cast<int64_t>(cluster.requests));
  CHECK(cluster.seen.summaries[0].chunks == 0);
  REQUIRE(cluster.seen.responses.size() == cluster.requests);
  const std::string& error = cluster.seen.responses[0].error;
  CHECK_MESSAGE(error.find("needs 28 KV blocks") != std::string::npos, error);
}

TEST_CASE("rollout: after the end nothing is left in the pool") {
  auto o = options_for("divided");
  o.scheduler.chunk_tokens = 16;
  o.device_blocks = 60;
  o.dram_blocks = 80;
  o.cold_blocks = 4096;
  SimCluster cluster(o);
  cluster.run();
  cluster.world.run_until(cluster.world.now_us() + 1'000'000);
  CHECK(cluster.arena->taken_count() == 0);
  CHECK(cluster.cold->stats().used_bytes == 0);
}

TEST_CASE("rollout: machines short of DRAM fetch from each other's cold tiers without stalling") {
  auto o = options_for("las");
  o.scheduler.chunk_tokens = 9;
  o.scheduler.inflight_spread_max = 0;
  o.nodes = 2;
  o.device_blocks = 60;
  o.dram_blocks = 60;
  o.cold_blocks = 4096;
  SimCluster cluster(o);
  cluster.run();
  check_exact(cluster);
  CHECK(cluster.fetched_blocks() > 0);
  CHECK(cluster.seen.summaries[0].wall_us < 2'000'000);
}

TEST_CASE("rollout: the figures of the summary add up") {
  for (const std::string& policy : chunk_policy_names()) {
    CAPTURE(policy);
    auto o = options_for(policy);
    o.device_blocks = 60;
    SimCluster cluster(o);
    cluster.run();
    check_exact(cluster);
    const RolloutSummary& s = cluster.seen.summaries[0];
    int64_t tokens = 0, chunks = 0, migrations = 0, preemptions = 0, by_instances = 0, prefilled = 0;
    for (const Response& r : cluster.seen.responses) {
      tokens += std::ssize(r.output.ids);
      chunks += r.chunks, migrations += r.migrations, preemptions += r.preemptions;
    }
    for (const InstanceReport& i : s.instances) by_instances += i.output_tokens, prefilled += i.prefill_tokens;
    CHECK(s.output_tokens == tokens);
    CHECK(by_instances == tokens);
    CHECK(s.prefill_tokens == prefilled);
    CHECK(s.chunks == chunks);
    CHECK(s.migrations == migrations);
    CHECK(s.preemptions == preemptions);
    CHECK(s.requests == o.groups * o.samples);
    CHECK(s.finished == s.requests);
    CHECK(s.prompt_tokens == o.prompt_tokens * o.groups);  // of each group once
  }
}

TEST_CASE("rollout: an engine that does many steps at once gives what single steps give, at the same times") {
  int64_t longest = 0;
  const auto check_same = [&](SimClusterOptions o) {
    o.has_kv = false;
    SimCluster single(o);
    single.run();
    o.steps_max = 64;
    SimCluster many(o);
    many.run();
    REQUIRE(single.seen.summaries.size() == 1);
    REQUIRE(many.seen.summaries.size() == 1);
    const auto text = [](const auto& value) { return caf::deep_to_string(value); };
    CHECK(text(many.seen.summaries[0]) == text(single.seen.summaries[0]));
    REQUIRE(many.seen.responses.size() == single.seen.responses.size());
    for (size_t i = 0; i < many.seen.responses.size(); ++i)
      CHECK(text(many.seen.responses[i]) == text(single.seen.responses[i]));
    longest = std::max(longest, many.steps_at_once_peak);
  };
  for (const std::string& policy : chunk_policy_names()) {
    for (const auto& [chunk, blocks, cold, drafts] :
         {std::tuple{0, 60, 0, 0}, {7, 60, 0, 0}, {40, 60, 30, 0}, {40, 90, 0, 0}, {25, 1024, 0, 0}, {0, 60, 0, 3}, {40, 60, 30, 2},
          {40, 90, 0, 5}, {25, 1024, 0, 1}}) {
      auto o = options_for(policy);
      o.scheduler.chunk_tokens = chunk;
      o.device_blocks = blocks;
      o.cold_blocks = cold;
      if (cold > 0) o.dram_blocks = 40;
      o.instances = 3;
      o.nodes = chunk == 7 ? 3 : 1;
      o.draft_tokens_max = drafts;
      CAPTURE(drafts);
      CAPTURE(policy);
      CAPTURE(chunk);
      CAPTURE(blocks);
      check_same(o);
    }
  }
  std::mt19937_64 rng(7);
  for (int i = 0; i < 60; ++i) {
    CAPTURE(i);
    const auto from = [&](int32_t least, int32_t most) { return least + static_cast<int32_t>(rng() % (most - least + 1)); };
    auto o = options_for(chunk_policy_names()[rng() % chunk_policy_names().size()]);
    o.scheduler.chunk_tokens = from(0, 3) == 0 ? 0 : from(20, 150);
    o.scheduler.reserve_share = from(0, 1) * 0.1;
    o.groups = static_cast<uint32_t>(from(5, 12));
    o.length_max = from(60, 300);
    o.instances = static_cast<uint32_t>(from(1, 4));
    o.nodes = static_cast<uint32_t>(from(1, static_cast<int32_t>(o.instances)));
    o.device_blocks = from(90, 260);
    o.report_steps = from(3, 64);
    o.prefill_tokens_max = from(8, 64);
    if (from(0, 2) == 0) o.dram_blocks = from(100, 400);
    check_same(o);
  }
  CHECK(longest > 32);
}

TEST_CASE("rollout: a request whose logits are not finite fails alone, at the same token however it is run") {
  constexpr int64_t kNever = 1 << 30;
  // Of the output, from 0. Of the last group none gets a token.
  const auto fails_at_token = [](const SimCluster& cluster, uint64_t seed) -> int64_t {
    if (cluster.shapes.at(seed).group == cluster.options.groups - 1) return 0;
    const int64_t at = static_cast<int64_t>(mix64(seed ^ 5) % 60);
    return mix64(seed ^ 3) % 2 == 0 && at < cluster.shapes.at(seed).output_tokens ? at : kNever;
  };
  for (const std::string& policy : chunk_policy_names())
    for (const int32_t blocks : {60, 1024})
      for (const int64_t drafts : {0, 5}) {
        CAPTURE(policy);
        CAPTURE(blocks);
        CAPTURE(drafts);
        auto o = options_for(policy);
        o.device_blocks = blocks;
        o.scheduler.chunk_tokens = blocks == 60 ? 7 : 40;
        o.draft_tokens_max = drafts;
        o.draft_trees = blocks == 60;
        SimCluster* running = nullptr;
        o.wrap_engine = [&](std::shared_ptr<Engine> engine) {
          return std::make_shared<NotFiniteEngine>(std::move(engine), [&](uint64_t seed) {
            return running->shapes.at(seed).prompt_tokens + fails_at_token(*running, seed);
          });
        };
        SimCluster cluster(o);
        running = &cluster;
        cluster.run();
        REQUIRE(cluster.over());
        CHECK(cluster.seen.responses.size() == cluster.requests);
        int64_t failed = 0;
        for (const Response& r : cluster.seen.responses) {
          const OutputTokens whole = cluster.answer(r.request);
          const int64_t at = fails_at_token(cluster, r.seed);
          const auto tokens = static_cast<ptrdiff_t>(std::min<int64_t>(at, std::ssize(whole.ids)));
          CHECK(r.output.ids == std::vector(whole.ids.begin(), whole.ids.begin() + tokens));
          CHECK(r.output.logprobs == std::vector(whole.logprobs.begin(), whole.logprobs.begin() + tokens));
          CHECK((r.finish == FinishReason::kError) == (at != kNever));
          CHECK(r.error == (at == kNever ? "" : cat("the logits of output token ", at, " are not finite")));
          failed += at != kNever;
        }
        const RolloutSummary& summary = cluster.seen.summaries[0];
        CHECK(summary.complete);
        CHECK(summary.finished == static_cast<int64_t>(cluster.requests));
        CHECK(summary.failed == failed);
        CHECK(failed > cluster.options.samples);  // not only the last group
        CHECK(failed < static_cast<int64_t>(cluster.requests));
        cluster.run_for(1'000'000);
        check_drained(cluster);
      }
}
