// A rollout whose instances are played by the test, message by message: lost, late and repeated answers, instances that come, leave
// and are refused, and resumed rollouts. rollout_actor_test.cpp has whole rollouts on simulated machines.
#include <doctest/doctest.h>

#include <functional>
#include <sstream>

#include "actors/context_actor.h"
#include "actors/recorder.h"
#include "actors/rollout_actor.h"
#include "actors/sim/sim_world.h"

using namespace seer;

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
            [](const UseInstance&) {},
            [](const UpdateInstance&) {},
            [](const WorkReady&) {},
            [](const Tick&) {},
            [](const KvReserved&) {},
            [](const KvOpened&) {},
            [](const DraftServers&) {},
            [](const CstFetched&) {},
            [](const GetReport&) { return InstanceReport{}; }};
  }
  Seen* seen;
};

/// A rollout of few groups, by default of one, with instances played by the test.
struct Stage {
  explicit Stage(uint32_t samples = 1, size_t instances_expected = 1, EventLog log = {}, std::vector<ResumedRequest> resumed = {},
                 bool machines_may_join = false, uint32_t group_count = 1, const std::function<void(RolloutConfig&)>& change = {})
      : events(world) {
    std::vector<GroupSpec> groups;
    for (uint32_t g = 0; g < group_count && samples > 0; ++g) {
      groups.push_back({.id = GroupId{g}, .prompt_ids = {5, 6, 7}, .samples = samples, .sampling = {}, .seeds = {}, .known_tokens = {}});
      groups[g].sampling.max_tokens = 20;
      groups[g].seeds.resize(samples, 9);
      groups[g].is_live = true;
    }
    auto context = world.spawn<ContextActor>();
    RolloutConfig config{.scheduler = {.policy = "divided", .chunk_tokens = 8},
                         .instances_expected = instances_expected,
                         .chunk_silence_us = 10'000'000,
                         .no_instance_us = 3'000'000,
                         .machines_may_join = machines_may_join,
                         .tells_commits = true};
    if (change) change(config);
    rollout = world.spawn<RolloutActor>(config, RolloutParts{groups, context, {}, events.handle(), {}, log, std::move(resumed)});
  }
  void run_for(int64_t us) { world.run_until(world.now_us() + us); }
  InstanceHandle add_instance(uint32_t id, const ClusterIdentity& identity = {}, int64_t kv_blocks = 100) {
    auto instance = world.spawn<FakeInstance>(&seen[id]);
    rt::post(rollout, InstanceUp{InstanceId{id}, NodeId{0}, kv_blocks, 4, 8, instance, identity});
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
    rt::post(rollout, ChunkProgress{InstanceId{0}, {{chunk, first_index, {std::move(tokens), std::move(logprobs)}}}, 0});
    run_for(1000);
  }
  void done(ChunkId chunk, ChunkEnd end) {
    rt::post(rollout, ChunkDone{.chunk = chunk,
                                .end = end,
                                .ending = {end == ChunkEnd::kFinished  ? FinishReason::kStop
                                           : end == ChunkEnd::kFailed  ? FinishReason::kError
                                           : end == ChunkEnd::kAborted ? FinishReason::kAborted
                                                                       : FinishReason::kNone,
                                           {},
                                           {}},
                                .last = {chunk, output_tokens(chunk)}});
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
  CHECK(second.is_live);
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
  CHECK(s.responses()[0].output.ids == std::vector<int32_t>{11, 12, 13});
  CHECK(s.responses()[0].chunks == 2);
  REQUIRE(s.summaries().size() == 1);
  CHECK(s.summaries()[0].complete);
}

TEST_CASE("rollout: tokens of other weights never enter a response, and who sent them is given up") {
  for (const bool at_end : {false, true}) {
    CAPTURE(at_end);
    Stage s(2, 2);
    s.add_instance(0);
    s.add_instance(1);
    REQUIRE(s.seen[0].chunks.size() == 1);
    const ChunkId chunk = s.seen[0].chunks[0].chunk;
    s.progress(chunk, {11});
    const ChunkTokens others{chunk, 1, {{12}, {-1.0f}}};
    if (at_end)
      rt::post(s.rollout, ChunkDone{.chunk = chunk,
                                    .end = ChunkEnd::kFinished,
                                    .ending = {FinishReason::kStop, {}, {}},
                                    .last = others,
                                    .version = WeightVersion{2}});
    else
      rt::post(s.rollout, ChunkProgress{InstanceId{0}, {others}, 0, WeightVersion{2}});
    s.run_for(1000);
    CHECK(s.responses().empty());
    REQUIRE(s.seen[1].chunks.size() == 2);
    CHECK(s.seen[1].chunks[1].log.tokens() == std::vector<int32_t>{5, 6, 7, 11});
  }
}

TEST_CASE("rollout: an instance learns with its next chunk which groups that ran on it are over") {
  Stage s(1, 2, {}, {}, false, 5);
  s.add_instance(0);
  s.add_instance(1);
  const auto chunk_of = [&](size_t instance, uint32_t group) {
    for (const RunChunk& chunk : s.seen[instance].chunks)
      if (chunk.request.group == GroupId{group}) return chunk.chunk;
    FAIL("group ", group, " did not run on instance ", instance);
    return ChunkId{};
  };
  REQUIRE(s.seen[0].chunks.size() + s.seen[1].chunks.size() == 5);
  for (const auto& instance : s.seen)
    for (const RunChunk& chunk : instance.chunks) CHECK(chunk.over.empty());
  const auto groups_of = [&](size_t instance) {
    std::vector<uint32_t> groups;
    for (const RunChunk& chunk : s.seen[instance].chunks) groups.push_back(chunk.request.group.index);
    return groups;
  };
  const std::vector<uint32_t> here = groups_of(0);
  const uint32_t there = groups_of(1).at(0);
  REQUIRE(here.size() >= 3);
  s.done(chunk_of(0, here[0]), ChunkEnd::kFinished);
  s.done(chunk_of(0, here[1]), ChunkEnd::kFinished);
  const auto next_chunk = [&](size_t instance, uint32_t group) {
    const size_t before = s.seen[instance].chunks.size();
    s.progress(chunk_of(instance, group), {11});
    s.done(chunk_of(instance, group), ChunkEnd::kChunkFull);
    REQUIRE(s.seen[instance].chunks.size() == before + 1);
    return s.seen[instance].chunks.back();
  };
  CHECK(next_chunk(1, there).over.empty());
  CHECK(next_chunk(0, here[2]).over == std::vector{GroupId{here[0]}, GroupId{here[1]}});
  s.done(s.seen[0].chunks.back().chunk, ChunkEnd::kChunkFull);
  CHECK(s.seen[0].chunks.back().over.empty());  // told once
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
  CHECK(s.seen[1].chunks[1].computed_tokens == 3);  // all but the last, which was sampled: they are computed again
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
  CHECK(s.responses()[0].output.ids == std::vector<int32_t>{11, 12, 13});
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

TEST_CASE("rollout: when the last machine has left, it ends at once, unless others may join: then it waits for one") {
  for (const bool may_join : {false, true}) {
    CAPTURE(may_join);
    Stage s(1, 1, {}, {}, may_join);
    const InstanceHandle only = s.add_instance(0);
    rt::post(s.rollout, PartLost{.node = NodeId{0}, .instances = {InstanceId{0}}, .reason = "node 0 is gone"});
    rt::kill(only);
    s.run_for(1'000'000);
    CHECK(s.summaries().size() == (may_join ? 0 : 1));
    if (!may_join) {
      CHECK(s.summaries()[0].error == "node 0 is gone");
      continue;
    }
    s.add_instance(1);
    CHECK(s.seen[1].chunks.size() == 1);
    s.done(s.seen[1].chunks[0].chunk, ChunkEnd::kFinished);
    REQUIRE(s.summaries().size() == 1);
    CHECK(s.summaries()[0].complete);
  }
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
  CHECK(s.responses()[0].output.ids == std::vector<int32_t>{11, 12});
  REQUIRE(s.summaries().size() == 1);
  CHECK(s.summaries()[0].complete);
  CHECK(s.summaries()[0].finished == 3);
  CHECK(s.summaries()[0].failed == 1);
  CHECK(s.summaries()[0].estimate_error == 0);  // 2 tokens were no prediction of 1
}

TEST_CASE("rollout: an instance of another model or layout gets no work, and the error says why when no other is left") {
  Stage s;
  const ClusterIdentity good{.model = "moonlight", .kv_layout = 7};
  ClusterIdentity model = good, layout = good;
  model.model = "qwen";
  layout.kv_layout = 8;
  const InstanceHandle first = s.add_instance(0, good);
  s.add_instance(1, model);
  s.add_instance(2, layout);
  CHECK(rt::look<RolloutActor>(s.rollout).instances.up().size() == 1);
  rt::kill(first);
  s.run_for(5'000'000);
  CHECK(s.seen[1].chunks.empty());
  CHECK(s.seen[2].chunks.empty());
  REQUIRE(s.summaries().size() == 1);
  CHECK(s.summaries()[0].error ==
        "no instance is left to run on: instance 2 is refused: its KV layout is 0000000000000008, expected 0000000000000007: --kv-dtype, --block-tokens, --device and, with GPUs, --tensor-parallel and their kind must be the same");
}

TEST_CASE("rollout: an instance whose weights are not the rollout's is refused, and one that takes any weights is not") {
  Stage s;
  ClusterIdentity any, other;
  other.version = {9};
  s.add_instance(0, other);
  CHECK(rt::look<RolloutActor>(s.rollout).instances.up().empty());
  CHECK(rt::look<RolloutActor>(s.rollout).instances.why_missing() == ": instance 0 is refused: its weight version is 9, expected 1");
  s.add_instance(1, any);
  CHECK(s.seen[1].chunks.size() == 1);
}

TEST_CASE("rollout: once one instance has said which weights it has, others must have the same, also if the first did not say") {
  Stage s;
  const auto with = [](uint64_t weights) { return ClusterIdentity{.weights = weights, .version = {1}}; };
  s.add_instance(0, with(0));
  s.add_instance(1, with(5));
  s.add_instance(2, with(7));
  CHECK(rt::look<RolloutActor>(s.rollout).instances.up().size() == 2);
  CHECK(rt::look<RolloutActor>(s.rollout).instances.why_missing() ==
        ": instance 2 is refused: its weights' checksum is 0000000000000007, expected 0000000000000005");
}

TEST_CASE("rollout: an instance with other weights than the rollout knows is refused, also where it comes first") {
  Stage s(1, 2, {}, {}, true, 1, [](RolloutConfig& config) { config.weights = 5; });
  s.add_instance(0, {.weights = 7, .version = {1}});
  CHECK(rt::look<RolloutActor>(s.rollout).instances.why_missing() ==
        ": instance 0 is refused: its weights' checksum is 0000000000000007, expected 0000000000000005");
  s.add_instance(1, {.weights = 5, .version = {1}});
  CHECK(s.seen[1].chunks.size() == 1);
}

TEST_CASE("rollout: it starts without instances that are refused for good, and waits 3 s for those that may get its weights") {
  const auto with = [](uint64_t layout, uint64_t version) { return ClusterIdentity{.kv_layout = layout, .version = {version}}; };
  for (const auto& [second, is_awaited] : {std::pair{with(8, 5), false}, {with(8, 4), false}, {with(7, 6), false}, {with(7, 4), true}}) {
    CAPTURE(second.kv_layout);
    CAPTURE(second.version);
    Stage s(1, 2, {}, {}, false, 1, [](RolloutConfig& config) { config.version = {5}, config.no_instance_us = 30'000'000; });
    s.add_instance(0, with(7, 5));
    s.add_instance(1, second);
    s.run_for(2'000'000);
    CHECK(s.seen[0].chunks.size() == (is_awaited ? 0 : 1));
    s.run_for(2'000'000);
    CHECK(s.seen[0].chunks.size() == 1);
    CHECK(s.seen[1].chunks.empty());
  }
}

TEST_CASE("rollout: what only one instance can hold waits while that is started again, and fails if it is not") {
  for (const bool returns : {true, false}) {
    CAPTURE(returns);
    Stage s(1, 2);
    const InstanceHandle large = s.add_instance(0);
    s.add_instance(1, {}, 2);  // 8 tokens
    REQUIRE(s.seen[0].chunks.size() == 1);
    const ChunkId first = s.seen[0].chunks[0].chunk;
    s.progress(first, {1, 2, 3, 4, 5, 6, 7, 8});
    s.done(first, ChunkEnd::kChunkFull);
    REQUIRE(s.seen[0].chunks.size() == 2);
    rt::kill(large);
    s.run_for(2'000'000);
    CHECK(s.responses().empty());
    if (returns) s.add_instance(0);
    s.run_for(2'000'000);
    CHECK(s.seen[0].chunks.size() == (returns ? 3 : 2));
    CHECK(s.seen[1].chunks.empty());
    REQUIRE(s.responses().size() == (returns ? 0 : 1));
    if (!returns) CHECK(s.responses()[0].error.find("may grow to 6 KV blocks; the largest instance left holds 2") != std::string::npos);
  }
}

TEST_CASE("rollout: a group that only a lost instance can hold waits for it, and fails if it does not return, whatever runs") {
  for (const bool returns : {true, false}) {
    CAPTURE(returns);
    Stage s(0, 1, {}, {}, false, 1, [](RolloutConfig& config) { config.open = true; });
    const InstanceHandle large = s.add_instance(0);
    s.add_instance(1, {}, 2);  // 8 tokens
    const auto add = [&](int64_t max_tokens) {
      GroupSpec group{.id = {}, .prompt_ids = {5, 6, 7}, .samples = 1, .sampling = {}, .seeds = {9}};
      group.sampling.max_tokens = max_tokens;
      rt::post(s.rollout, AddGroups{{group}});
      s.run_for(1000);
    };
    add(20);
    add(4);
    rt::kill(large);
    s.run_for(1000);
    add(20);
    rt::post(s.rollout, CancelRequest{RequestId{GroupId{3}, 0}});  // none
    s.run_for(2'000'000);
    CHECK(s.responses().empty());
    if (returns) s.add_instance(0);
    s.run_for(2'000'000);
    REQUIRE(s.seen[1].chunks.size() == 1);
    CHECK(s.seen[1].chunks[0].request == RequestId{GroupId{1}, 0});
    CHECK(s.seen[0].chunks.size() >= (returns ? 3 : 1));
    REQUIRE(s.responses().size() == (returns ? 0 : 2));
    if (returns) continue;
    CHECK(s.responses()[0].error.find("may grow to 6 KV blocks; the largest instance left holds 2") != std::string::npos);
    CHECK(s.responses()[1].error.find("needs 6 KV blocks; the largest instance holds 2 blocks") != std::string::npos);
  }
}

TEST_CASE("rollout: lengths that are cut get the room of the largest instance, beyond what was written before; else the group fails") {
  for (const int64_t largest : {4, 5}) {
    for (const int64_t begun : {0, 12, 14}) {
      CAPTURE(largest);
      CAPTURE(begun);
      std::vector<ResumedRequest> resumed;
      if (begun > 0) resumed.push_back({.request = {GroupId{0}, 0}, .output = {std::vector<int32_t>(static_cast<size_t>(begun), 11)}});
      Stage s(1, 2, {}, resumed, false, 1, [](RolloutConfig& config) { config.cuts_lengths = true; });
      s.add_instance(0, {}, 3);
      s.add_instance(1, {}, largest);
      const int64_t room = largest * 4 - 3;
      if (begun - 1 >= room) {  // the last token is computed again
        REQUIRE(s.responses().size() == 1);
        CHECK(s.responses()[0].error.find("needs 6 KV blocks; the largest instance holds 4 blocks") != std::string::npos);
      } else {
        CHECK(s.responses().empty());
        REQUIRE(s.seen[0].chunks.size() + s.seen[1].chunks.size() == 1);
        CHECK((s.seen[1].chunks.empty() ? s.seen[0] : s.seen[1]).chunks[0].sampling.max_tokens == room);
      }
    }
  }
}

TEST_CASE("rollout: lengths are cut to what lost instances hold too, so that no failure shortens a response; those that left do not count") {
  struct Case {
    bool is_known;   // from an earlier rollout; else it was up here
    bool leaves;     // in order; else it was lost
    bool returns;
  };
  for (const auto& [is_known, leaves, returns] : {Case{false, false, false}, {true, false, false}, {false, true, false}, {true, false, true}}) {
    CAPTURE(is_known);
    CAPTURE(leaves);
    CAPTURE(returns);
    Stage s(0, 1, {}, {}, true, 1, [&](RolloutConfig& config) {
      config.cuts_lengths = config.open = true;
      if (is_known) config.kv_tokens = {{InstanceId{0}, 20}};
    });
    s.add_instance(1, {}, 4);
    if (!is_known) {
      rt::kill(s.add_instance(0, {}, 5));
      rt::post(s.rollout, PartLost{.node = NodeId{0}, .instances = {InstanceId{0}}, .reason = leaves ? "" : "node 0 is gone"});
    }
    s.run_for(1'000'000);
    GroupSpec group{.id = {}, .prompt_ids = {5, 6, 7}, .samples = 1, .sampling = {}, .seeds = {9}};
    for (const int64_t max_tokens : {13, 100}) {
      if (leaves && max_tokens == 13) continue;  // it would take the room
      group.sampling.max_tokens = max_tokens;
      rt::post(s.rollout, AddGroups{{group}});
      s.run_for(1000);
    }
    CHECK(s.responses().empty());  // it may come back
    if (returns) s.add_instance(0, {}, 5);
    s.run_for(4'000'000);
    REQUIRE(s.seen[1].chunks.size() == 1);
    CHECK(s.seen[1].chunks[0].sampling.max_tokens == 13);
    if (returns) CHECK(s.seen[0].chunks.at(0).sampling.max_tokens == 17);
    REQUIRE(s.responses().size() == (leaves || returns ? 0 : 1));
    if (!leaves && !returns) CHECK(s.responses()[0].error.find("needs 5 KV blocks; the largest instance holds 4 blocks") != std::string::npos);
  }
}

TEST_CASE("rollout: only chunks that failed count towards fruitless_max, not those that were sent back") {
  Stage s;
  s.add_instance(0);
  rt::look<RolloutActor>(s.rollout).config.fruitless_max = 2;
  const auto end_next = [&](ChunkEnd end) {
    const ChunkId chunk = s.seen[0].chunks.back().chunk;
    rt::post(s.rollout, ChunkDone{.chunk = chunk, .end = end, .server_error = "no room", .last = {chunk}});
    s.run_for(1000);
  };
  for (const ChunkEnd end : {ChunkEnd::kServerFailed, ChunkEnd::kNotBegun, ChunkEnd::kPreempted, ChunkEnd::kYielded, ChunkEnd::kNotBegun}) end_next(end);
  CHECK(s.seen[0].chunks.size() == 6);
  end_next(ChunkEnd::kServerFailed);
  CHECK(s.responses().empty());
  end_next(ChunkEnd::kServerFailed);
  REQUIRE(s.responses().size() == 1);
  CHECK(s.responses()[0].finish == FinishReason::kError);
  CHECK(s.responses()[0].error.find("was begun 2 times without a token: no room") != std::string::npos);
}

TEST_CASE("rollout: an instance that changes its weights gets nothing more until it is up again") {
  Stage s;
  const InstanceHandle instance = s.add_instance(0);
  REQUIRE(s.seen[0].chunks.size() == 1);
  const ChunkId first = s.seen[0].chunks[0].chunk;
  rt::post(s.rollout, ChunkDone{.chunk = first, .end = ChunkEnd::kNotBegun, .last = {first}, .version = WeightVersion{2}});
  s.run_for(1'000'000);
  CHECK(s.seen[0].chunks.size() == 1);
  SUBCASE("it could not change") {
    rt::post(s.rollout, InstanceUp{InstanceId{0}, NodeId{0}, 100, 4, 8, instance});
    s.run_for(1000);
    REQUIRE(s.seen[0].chunks.size() == 2);
    s.done(s.seen[0].chunks[1].chunk, ChunkEnd::kFinished);
    REQUIRE(s.responses().size() == 1);
    CHECK(s.responses()[0].finish == FinishReason::kStop);
  }
  SUBCASE("it has changed") {
    rt::post(s.rollout, InstanceUp{InstanceId{0}, NodeId{0}, 100, 4, 8, instance, {.version = WeightVersion{2}}});
    s.run_for(1000);
    CHECK(s.seen[0].chunks.size() == 1);
    s.add_instance(1);
    REQUIRE(s.seen[1].chunks.size() == 1);
    CHECK(s.seen[1].chunks[0].version == WeightVersion{1});
  }
}

TEST_CASE("rollout: an instance that was announced again after a chunk began is not left for that chunk's answer") {
  Stage s;
  const InstanceHandle instance = s.add_instance(0);
  const ChunkId first = s.seen[0].chunks.at(0).chunk;
  rt::post(s.rollout, InstanceUp{InstanceId{0}, NodeId{0}, 100, 4, 8, instance});  // its update failed; this overtook the answer
  s.run_for(1000);
  rt::post(s.rollout, ChunkDone{.chunk = first, .end = ChunkEnd::kNotBegun, .last = {first}, .version = WeightVersion{2}});
  s.run_for(1000);
  CHECK(s.seen[0].chunks.size() == 2);
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

TEST_CASE("rollout: a request on a drained instance can be cancelled before it comes back") {
  Stage s(2, 2);
  s.add_instance(0);
  s.add_instance(1);
  const RunChunk chunk = s.seen[0].chunks.at(0), other = s.seen[1].chunks.at(0);
  rt::post(s.rollout, InstancesDraining{NodeId{0}, {InstanceId{0}}});
  rt::post(s.rollout, CancelRequest{chunk.request});
  s.run_for(1000);
  CHECK(s.seen[0].cancelled == std::vector<ChunkId>{chunk.chunk});
  s.done(chunk.chunk, ChunkEnd::kAborted);
  s.done(other.chunk, ChunkEnd::kFinished);
  s.run_for(1'000'000);
  REQUIRE(s.summaries().size() == 1);
  CHECK(s.summaries()[0].complete);
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
        CHECK(part.output.logprobs.size() == part.output.size());
        told.insert(told.end(), part.output.ids.begin(), part.output.ids.end());
      }
    if (std::holds_alternative<Response>(message)) CHECK(told == std::vector<int32_t>{11, 12, 13});
  }
  CHECK(told.size() == 3);
}

TEST_CASE("rollout: tokens of a report are sent before the response that it ends, also where the rest of it shows that one is missing") {
  Stage s(2);
  s.add_instance(0);
  REQUIRE(s.seen[0].chunks.size() == 2);
  const RunChunk whole = s.seen[0].chunks[0], gap = s.seen[0].chunks[1];
  rt::post(s.rollout, CancelRequest{whole.request});  // it ends once its instance is given up
  rt::post(s.rollout, ChunkProgress{InstanceId{0}, {{whole.chunk, 0, {{11, 12}, {-1, -1}}}, {gap.chunk, 1, {{13}, {-1}}}}, 0});
  s.run_for(1000);
  REQUIRE(s.responses().size() == 1);
  CHECK(s.responses()[0].output.ids == std::vector<int32_t>{11, 12});
  const auto& log = s.events.log();
  const auto told = std::ranges::find_if(log, [](const auto& message) { return std::holds_alternative<RolloutCommits>(message); });
  const auto answered = std::ranges::find_if(log, [](const auto& message) { return std::holds_alternative<Response>(message); });
  CHECK(told < answered);
}

TEST_CASE("rollout: when resumed it leaves out answered requests, and continues the others from their tokens") {
  const RequestId answered{GroupId{0}, 0}, begun{GroupId{0}, 1};
  Stage s(3, 1, {}, {{answered, {{21, 22}}, true}, {begun, {{31, 32}, {-0.5f, -0.25f}}}});
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
    CHECK(r.output.ids == std::vector<int32_t>{31, 40});
    CHECK(r.output.logprobs == std::vector<float>{-0.5f, -1.0f});
  }
  REQUIRE(s.summaries().size() == 1);
  CHECK(s.summaries()[0].complete);
  CHECK(s.summaries()[0].requests == 2);
}

TEST_CASE("rollout: when resumed with all requests answered it is over at once") {
  Stage s(1, 1, {}, {{{GroupId{0}, 0}, {{21}}, true}});
  s.add_instance(0);
  s.run_for(1'000'000);
  CHECK(s.seen[0].chunks.empty());
  CHECK(s.responses().empty());
  REQUIRE(s.summaries().size() == 1);
  CHECK(s.summaries()[0].complete);
}

TEST_CASE("rollout: a request answered before is not answered again, even if its group fits on no instance now") {
  const RequestId answered{GroupId{0}, 0};
  Stage s(2, 1, {}, {{answered, {{21, 22}}, true}});
  const auto small = s.world.spawn<FakeInstance>(&s.seen[0]);
  rt::post(s.rollout, InstanceUp{InstanceId{0}, NodeId{0}, 2, 4, 8, small});  // 8 tokens; the group needs 23
  s.run_for(1'000'000);
  REQUIRE(s.responses().size() == 1);
  CHECK(s.responses()[0].request != answered);
  CHECK(s.responses()[0].finish == FinishReason::kError);
  REQUIRE(s.summaries().size() == 1);
  CHECK(s.summaries()[0].complete);
}
