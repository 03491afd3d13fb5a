#include <doctest/doctest.h>

#include <random>
#include <sstream>

#include "actors/cluster_checks.h"
#include "actors/context_actor.h"
#include "actors/recorder.h"
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
      }
    }
  }
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
      for (const auto& [id, chunk] : rt::look<RolloutActor>(cluster.fleet.rollout()).open)
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

TEST_CASE("rollout: a KV node that dies costs time only") {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    auto o = options_for("las");
    o.seed = seed;
    o.device_blocks = 60;
    SimCluster cluster(o);
    cluster.start();
    cluster.world.run_until(20'000 + static_cast<int64_t>(seed) * 1'000);
    cluster.kill_kv_node();
    cluster.finish();
    check_exact(cluster);
  }
}

TEST_CASE("rollout: the same seed gives the same run, another seed another order and the same responses") {
  auto run = [](uint64_t seed) {
    auto o = options_for("seer");
    o.seed = seed;
    o.device_blocks = 60;
    SimCluster cluster(o);
    cluster.run();
    check_exact(cluster);
    std::vector<RequestId> order;
    for (const Response& r : cluster.seen.responses) order.push_back(r.request);
    return std::pair{order, cluster.seen.summaries[0].wall_us};
  };
  CHECK(run(3) == run(3));
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

namespace {

/// An instance played by the test: it notes its chunks and answers only when the test says so.
struct FakeInstance {
  using handle = InstanceHandle;
  static constexpr const char* kActorName = "fake_instance";
  struct Seen {
    std::vector<RunChunk> chunks;
    std::vector<ChunkId> cancelled;
    int drops = 0;
  };
  FakeInstance(rt::self_ptr<FakeInstance>, Seen* seen_in) : seen(seen_in) {}
  handle::behavior_type make_behavior() {
    return {[this](const RunChunk& chunk) { seen->chunks.push_back(chunk); },
            [this](const CancelChunk& cancel) { seen->cancelled.push_back(cancel.chunk); },
            [this](const DropChunks&) { ++seen->drops; },
            [](const YieldChunks&) {},
            [](const UpdateInstance&) {},
            [](const WorkReady&) {},
            [](const KvReserved&) {},
            [](const KvOpened&) {},
            [](const DraftServers&) {},
            [](const CstFetched&) {},
            [](const GetReport&) { return InstanceReport{}; }};
  }
  Seen* seen;
};

/// A rollout of one group, with instances played by the test.
struct Stage {
  explicit Stage(uint32_t samples = 1, size_t instances_expected = 1, EventLog log = {}, std::vector<ResumedRequest> resumed = {})
      : events(world) {
    std::vector<GroupSpec> groups;
    if (samples > 0) {
      groups.push_back({.id = GroupId{0}, .prompt_ids = {5, 6, 7}, .samples = samples, .sampling = {}, .seeds = {}, .known_tokens = {}});
      groups[0].sampling.max_tokens = 20;
      groups[0].seeds.resize(samples, 9);
    }
    auto context = world.spawn<ContextActor>();
    rollout = world.spawn<RolloutActor>(RolloutConfig{.scheduler = {.policy = "divided", .chunk_tokens = 8},
                                                      .instances_expected = instances_expected,
                                                      .chunk_silence_us = 10'000'000,
                                                      .no_instance_us = 3'000'000,
                                                      .tells_commits = true},
                                        RolloutParts{groups, context, {}, events.handle(), {}, log, std::move(resumed)});
  }
  void run_for(int64_t us) { world.run_until(world.now_us() + us); }
  InstanceHandle add_instance(uint32_t id, const ClusterIdentity& identity = {}) {
    auto instance = world.spawn<FakeInstance>(&seen[id]);
    rt::post(rollout, InstanceUp{InstanceId{id}, NodeId{0}, 100, 4, 8, instance, identity});
    run_for(1000);
    return instance;
  }
  void progress(ChunkId chunk, std::vector<int32_t> tokens) {
    const int64_t first = output_tokens(chunk);
    written[chunk] += std::ssize(tokens);
    send_progress(chunk, first, std::move(tokens));
  }
  void send_progress(ChunkId chunk, int64_t first_index, std::vector<int32_t> tokens) {
    std::vector<float> logprobs(tokens.size(), -1.0f);
    rt::post(rollout, ChunkProgress{InstanceId{0}, {{chunk, first_index, std::move(tokens), std::move(logprobs)}}, 0});
    run_for(1000);
  }
  void done(ChunkId chunk, ChunkEnd end) {
    rt::post(rollout, ChunkDone{.chunk = chunk,
                                .end = end,
                                .finish = end == ChunkEnd::kFinished ? FinishReason::kStop
                                          : end == ChunkEnd::kFailed ? FinishReason::kError
                                                                     : FinishReason::kNone,
                                .last = {chunk, output_tokens(chunk), {}, {}}});
    run_for(1000);
  }
  /// Tokens of the response, up to those of the chunk.
  int64_t output_tokens(ChunkId chunk) {
    int64_t tokens = written[chunk];
    for (const FakeInstance::Seen& instance : seen)
      for (const RunChunk& c : instance.chunks)
        if (c.chunk == chunk) tokens += c.log.output_tokens();
    return tokens;
  }
  std::vector<Response> responses() const { return events.all<Response>(); }
  std::vector<RolloutSummary> summaries() const { return events.all<RolloutSummary>(); }

  FakeInstance::Seen seen[3];
  std::map<ChunkId, int64_t> written;  // tokens by each chunk
  SimWorld world;
  Recorder<RolloutEvents, Response, RolloutProgress, RolloutCommits, RolloutSummary> events;
  RolloutHandle rollout;
};

}  // namespace

TEST_CASE("rollout: late and repeated answers of chunks no longer open change nothing") {
  Stage s;
  s.add_instance(0);
  REQUIRE(s.seen[0].chunks.size() == 1);
  const ChunkId first = s.seen[0].chunks[0].chunk;
  s.progress(first, {11, 12});
  s.done(first, ChunkEnd::kChunkFull);
  REQUIRE(s.seen[0].chunks.size() == 2);
  const RunChunk second = s.seen[0].chunks[1];
  CHECK(second.log.tokens() == std::vector<int32_t>{5, 6, 7, 11, 12});
  s.progress(first, {11, 12});
  s.done(first, ChunkEnd::kChunkFull);
  s.done(first, ChunkEnd::kFinished);
  s.done(ChunkId{77}, ChunkEnd::kFinished);
  CHECK(s.seen[0].chunks.size() == 2);
  CHECK(s.responses().empty());
  s.progress(second.chunk, {13});
  s.done(second.chunk, ChunkEnd::kFinished);
  s.done(second.chunk, ChunkEnd::kFinished);
  s.run_for(1'000'000);
  REQUIRE(s.responses().size() == 1);
  CHECK(s.responses()[0].output_ids == std::vector<int32_t>{11, 12, 13});
  CHECK(s.responses()[0].chunks == 2);
  REQUIRE(s.summaries().size() == 1);
  CHECK(s.summaries()[0].complete);
}

TEST_CASE("rollout: the chunks of a silent instance are placed again elsewhere, from what it had reported") {
  std::ostringstream lines;
  Stage s(2, 2, EventLog::to(lines, LogLevel::kWarn, LogClock::kVirtual));
  s.add_instance(0);
  s.add_instance(1);
  REQUIRE(s.seen[0].chunks.size() == 1);
  REQUIRE(s.seen[1].chunks.size() == 1);
  s.progress(s.seen[0].chunks[0].chunk, {11});
  for (int i = 0; i < 12; ++i) {  // only the other one goes on
    s.run_for(1'000'000);
    s.progress(s.seen[1].chunks[0].chunk, {20 + i});
  }
  REQUIRE(s.seen[1].chunks.size() == 2);
  CHECK(s.seen[1].chunks[1].request == s.seen[0].chunks[0].request);
  CHECK(s.seen[1].chunks[1].log.tokens() == std::vector<int32_t>{5, 6, 7, 11});
  CHECK(lines.str().find(" warn instance_silent rollout=0 instance=0 silent_s=10\n") != std::string::npos);
  CHECK(lines.str().find(" warn instance_lost rollout=0 instance=0 chunks=1 instances_left=1\n") != std::string::npos);
  s.done(s.seen[0].chunks[0].chunk, ChunkEnd::kFinished);  // too late
  CHECK(s.responses().empty());
}

TEST_CASE("rollout: when a report is missing, the instance is restarted and its chunks are placed again") {
  for (const bool last : {false, true}) {  // of the chunk: only its end shows that it is missing
    Stage s(2, 2);
    const InstanceHandle first = s.add_instance(0);
    s.add_instance(1);
    REQUIRE(s.seen[0].chunks.size() == 1);
    const RunChunk chunk = s.seen[0].chunks[0];
    s.progress(chunk.chunk, {11, 12});
    s.written[chunk.chunk] += 2;  // which are lost
    if (last)
      s.done(chunk.chunk, ChunkEnd::kFinished);
    else
      s.progress(chunk.chunk, {15});
    REQUIRE(s.seen[1].chunks.size() == 2);
    CHECK(s.seen[1].chunks[1].request == chunk.request);
    CHECK(s.seen[1].chunks[1].log.tokens() == std::vector<int32_t>{5, 6, 7, 11, 12});
    CHECK(s.responses().empty());
    rt::post(first, RunChunk{});
    s.run_for(1000);
    CHECK(s.seen[0].chunks.size() == 1);  // it was ended
  }
}

TEST_CASE("rollout: a report that comes twice counts once") {
  Stage s;
  s.add_instance(0);
  const ChunkId chunk = s.seen[0].chunks[0].chunk;
  s.progress(chunk, {11, 12});
  s.send_progress(chunk, 0, {11, 12});
  s.progress(chunk, {13});
  s.done(chunk, ChunkEnd::kFinished);
  REQUIRE(s.responses().size() == 1);
  CHECK(s.responses()[0].output_ids == std::vector<int32_t>{11, 12, 13});
}

TEST_CASE("rollout: with no instance left for no_instance_us it ends and says so; one that comes back in time goes on") {
  Stage s;
  rt::kill(s.add_instance(0));
  s.run_for(2'000'000);
  CHECK(s.summaries().empty());
  rt::kill(s.add_instance(1));
  CHECK(s.seen[1].chunks.size() == 1);
  s.run_for(5'000'000);
  REQUIRE(s.summaries().size() == 1);
  CHECK_FALSE(s.summaries()[0].complete);
  CHECK(s.summaries()[0].error == "no instance is left to run on");
}

TEST_CASE("rollout: if an expected instance never comes, it starts with the others") {
  Stage s(1, 2);
  s.add_instance(0);
  s.run_for(1'000'000);
  CHECK(s.seen[0].chunks.empty());
  s.run_for(3'000'000);
  CHECK(s.seen[0].chunks.size() == 1);
}

TEST_CASE("rollout: with nothing to do it ends at once") {
  Stage s(0);
  s.run_for(1'000'000);
  REQUIRE(s.summaries().size() == 1);
  CHECK(s.summaries()[0].complete);
  CHECK(s.summaries()[0].requests == 0);
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
      tokens += std::ssize(r.output_ids);
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
          const SimCluster::Answer whole = cluster.answer(r.request);
          const int64_t at = fails_at_token(cluster, r.seed);
          const auto tokens = static_cast<ptrdiff_t>(std::min<int64_t>(at, std::ssize(whole.output_ids)));
          CHECK(r.output_ids == std::vector(whole.output_ids.begin(), whole.output_ids.begin() + tokens));
          CHECK(r.logprobs == std::vector(whole.logprobs.begin(), whole.logprobs.begin() + tokens));
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

TEST_CASE("rollout: the length of a failed request is not learned") {
  Stage s(3);
  s.add_instance(0);
  REQUIRE(s.seen[0].chunks.size() == 3);
  s.progress(s.seen[0].chunks[0].chunk, {11, 12});
  s.done(s.seen[0].chunks[0].chunk, ChunkEnd::kFailed);
  for (const size_t i : {1, 2}) {
    s.progress(s.seen[0].chunks[i].chunk, {13});
    s.done(s.seen[0].chunks[i].chunk, ChunkEnd::kFinished);
  }
  s.run_for(1'000'000);
  REQUIRE(s.responses().size() == 3);
  CHECK(s.responses()[0].finish == FinishReason::kError);
  CHECK(s.responses()[0].output_ids == std::vector<int32_t>{11, 12});
  REQUIRE(s.summaries().size() == 1);
  CHECK(s.summaries()[0].complete);
  CHECK(s.summaries()[0].finished == 3);
  CHECK(s.summaries()[0].failed == 1);
  CHECK(s.summaries()[0].estimate_error == 0);  // 2 tokens were no prediction of 1
}

TEST_CASE("rollout: an instance of another model or layout gets no work, and the error says why when no other is left") {
  Stage s;
  const ClusterIdentity good{.model = "moonlight", .layout = 7};
  ClusterIdentity model = good, layout = good;
  model.model = "qwen";
  layout.layout = 8;
  const InstanceHandle first = s.add_instance(0, good);
  s.add_instance(1, model);
  s.add_instance(2, layout);
  CHECK(rt::look<RolloutActor>(s.rollout).instances.size() == 1);
  rt::kill(first);
  s.run_for(5'000'000);
  CHECK(s.seen[1].chunks.empty());
  CHECK(s.seen[2].chunks.empty());
  REQUIRE(s.summaries().size() == 1);
  CHECK(s.summaries()[0].error ==
        "no instance is left to run on: instance 2 is refused: its KV layout is 0000000000000008, expected 0000000000000007");
}

TEST_CASE("rollout: an instance whose weights are not the rollout's is refused, and one that takes any weights is not") {
  Stage s;
  ClusterIdentity any, other;
  other.version = {9};
  s.add_instance(0, other);
  CHECK(rt::look<RolloutActor>(s.rollout).instances.empty());
  CHECK(rt::look<RolloutActor>(s.rollout).last_refusal == "instance 0 is refused: its weight version is 9, expected 1");
  s.add_instance(1, any);
  CHECK(s.seen[1].chunks.size() == 1);
}

TEST_CASE("rollout: drained instances get nothing more, and chunks that come back from them go on elsewhere") {
  Stage s(2, 2);
  const InstanceHandle leaving = s.add_instance(0);
  s.add_instance(1);
  REQUIRE(s.seen[0].chunks.size() == 1);
  const RunChunk chunk = s.seen[0].chunks[0];
  rt::post(s.rollout, InstancesDraining{NodeId{0}, {InstanceId{0}}});
  s.progress(chunk.chunk, {11, 12});
  s.done(chunk.chunk, ChunkEnd::kYielded);
  REQUIRE(s.seen[1].chunks.size() == 2);
  CHECK(s.seen[1].chunks[1].request == chunk.request);
  CHECK(s.seen[1].chunks[1].log.tokens() == std::vector<int32_t>{5, 6, 7, 11, 12});
  s.done(s.seen[1].chunks[0].chunk, ChunkEnd::kChunkFull);
  CHECK(s.seen[0].chunks.size() == 1);
  rt::stop(leaving);
  rt::post(s.rollout, PartLost{NodeId{0}, {InstanceId{0}}, ""});
  s.run_for(1000);
  for (const size_t i : {1u, 2u}) s.done(s.seen[1].chunks.at(i).chunk, ChunkEnd::kFinished);
  s.run_for(1'000'000);
  REQUIRE(s.summaries().size() == 1);
  CHECK(s.summaries()[0].complete);
  CHECK(s.summaries()[0].instances_lost == 0);
  CHECK(s.summaries()[0].parts_lost.empty());
}

TEST_CASE("rollout: chunks of an instance that ends before it has given them back are placed again from what it had reported") {
  Stage s(2, 2);
  const InstanceHandle leaving = s.add_instance(0);
  s.add_instance(1);
  const RunChunk chunk = s.seen[0].chunks.at(0);
  s.progress(chunk.chunk, {11});
  rt::post(s.rollout, InstancesDraining{NodeId{0}, {InstanceId{0}}});
  rt::kill(leaving);
  s.run_for(1000);
  REQUIRE(s.seen[1].chunks.size() == 2);
  CHECK(s.seen[1].chunks[1].request == chunk.request);
  CHECK(s.seen[1].chunks[1].log.tokens() == std::vector<int32_t>{5, 6, 7, 11});
}

TEST_CASE("rollout: tokens added to the log are sent once, before their response") {
  Stage s;
  s.add_instance(0);
  const ChunkId chunk = s.seen[0].chunks.at(0).chunk;
  s.progress(chunk, {11, 12});
  s.send_progress(chunk, 0, {11, 12});  // again
  s.progress(chunk, {13});
  s.done(chunk, ChunkEnd::kFinished);
  std::vector<int32_t> told;
  for (const auto& message : s.events.log()) {
    if (const auto* commits = std::get_if<RolloutCommits>(&message))
      for (const CommittedTokens& part : commits->parts) {
        CHECK(part.request == RequestId{GroupId{0}, 0});
        CHECK(part.first_index == std::ssize(told));
        CHECK(part.logprobs.size() == part.tokens.size());
        told.insert(told.end(), part.tokens.begin(), part.tokens.end());
      }
    if (std::holds_alternative<Response>(message)) CHECK(told == std::vector<int32_t>{11, 12, 13});
  }
  CHECK(told.size() == 3);
}

TEST_CASE("rollout: when resumed it leaves out answered requests, and continues the others from their tokens") {
  const RequestId answered{GroupId{0}, 0}, begun{GroupId{0}, 1};
  Stage s(3, 1, {}, {{answered, {21, 22}, {}, true}, {begun, {31, 32}, {-0.5f, -0.25f}}});
  s.add_instance(0);
  REQUIRE(s.seen[0].chunks.size() == 2);
  for (const RunChunk& chunk : s.seen[0].chunks) {
    CHECK(chunk.request != answered);
    if (chunk.request == begun) {
      CHECK(chunk.log.tokens() == std::vector<int32_t>{5, 6, 7, 31});  // 32 might be its end
      CHECK(chunk.computed_tokens == 4);
    } else {
      CHECK(chunk.log.tokens() == std::vector<int32_t>{5, 6, 7});
    }
    s.written[chunk.chunk] = 0;
    s.progress(chunk.chunk, {40});
    s.done(chunk.chunk, ChunkEnd::kFinished);
  }
  s.run_for(1'000'000);
  REQUIRE(s.responses().size() == 2);
  for (const Response& r : s.responses()) {
    if (r.request != begun) continue;
    CHECK(r.output_ids == std::vector<int32_t>{31, 40});
    CHECK(r.logprobs == std::vector<float>{-0.5f, -1.0f});
  }
  REQUIRE(s.summaries().size() == 1);
  CHECK(s.summaries()[0].complete);
  CHECK(s.summaries()[0].requests == 2);
}

TEST_CASE("rollout: when resumed with all requests answered it is over at once") {
  Stage s(1, 1, {}, {{{GroupId{0}, 0}, {21}, {}, true}});
  s.add_instance(0);
  s.run_for(1'000'000);
  CHECK(s.seen[0].chunks.empty());
  CHECK(s.responses().empty());
  REQUIRE(s.summaries().size() == 1);
  CHECK(s.summaries()[0].complete);
}

TEST_CASE("rollout: a request answered before is not answered again, even if its group fits on no instance now") {
  const RequestId answered{GroupId{0}, 0};
  Stage s(2, 1, {}, {{answered, {21, 22}, {}, true}});
  const auto small = s.world.spawn<FakeInstance>(&s.seen[0]);
  rt::post(s.rollout, InstanceUp{InstanceId{0}, NodeId{0}, 2, 4, 8, small});  // 8 tokens; the group needs 23
  s.run_for(1'000'000);
  REQUIRE(s.responses().size() == 1);
  CHECK(s.responses()[0].request != answered);
  CHECK(s.responses()[0].finish == FinishReason::kError);
  REQUIRE(s.summaries().size() == 1);
  CHECK(s.summaries()[0].complete);
}
