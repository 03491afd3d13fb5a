#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <ranges>

#include "actors/cluster_checks.h"
#include "actors/policy/draft/group_drafter.h"
#include "actors/recorder.h"
#include "gpu/given_times.h"
#include "sim/lost_engine.h"

using namespace seer;

namespace {

/// The instances of one machine, with a pool, and a rollout played by the test.
struct Bench {
  explicit Bench(SimClusterOptions o) : cluster(std::move(o)), rollout(cluster.world) { cluster.run_for(0); }

  /// The first request of a group whose response has at least this many tokens.
  RequestId request_of_at_least(int64_t tokens, uint32_t group = 0) const {
    const GroupSpec spec = cluster.groups[group];
    for (uint32_t s = 0; s < spec.samples; ++s)
      if (spec.known_tokens[s] >= tokens) return {spec.id, s};
    FAIL("no response is that long");
    return {};
  }
  RunChunk chunk(uint64_t id, RequestId request, int64_t max_new_tokens, int64_t written_tokens = 0) const {
    const GroupSpec group = cluster.groups[request.group.index];
    TokenLog log(group.prompt_ids);
    log.append(cluster.answer(request).ids | std::views::take(written_tokens));
    return {.chunk = ChunkId{id},
            .request = request,
            .version = WeightVersion{1},
            .log = std::move(log),
            .computed_tokens = written_tokens > 0 ? cluster.options.prompt_tokens + written_tokens - 1 : 0,
            .max_new_tokens = max_new_tokens,
            .sampling = group.sampling,
            .seed = group.seeds[request.sample],
            .yield_rank = id,
            .keep_kv = true,
            .reply_to = rollout.handle()};
  }
  void send(uint32_t instance, RunChunk chunk) { rt::post(cluster.instance(instance), std::move(chunk)); }
  std::vector<ChunkDone> dones() const { return rollout.all<ChunkDone>(); }

  /// Tokens and log-probabilities that were reported for a chunk.
  OutputTokens reported(uint64_t chunk) const {
    OutputTokens a;
    const auto append = [&](const ChunkTokens& part) {
      if (part.chunk != ChunkId{chunk}) return;
      a.append(part.output);
    };
    for (const auto& message : rollout.log())
      if (const auto* progress = std::get_if<ChunkProgress>(&message))
        std::ranges::for_each(progress->chunks, append);
      else
        append(std::get<ChunkDone>(message).last);
    return a;
  }
  /// What a chunk must report that starts after `from` tokens of the response.
  OutputTokens expected(RequestId request, int64_t from, int64_t tokens) const {
    OutputTokens a = cluster.answer(request).from(static_cast<size_t>(from));
    a.cut(static_cast<size_t>(tokens));
    return a;
  }

  SimCluster cluster;
  Recorder<ChunkSink, ChunkProgress, ChunkDone> rollout;
};

constexpr int64_t kLong = 1'000'000;  // enough virtual time for anything here

/// What the draft server of the machine has of a request.
std::vector<int32_t> tokens_on_server(SimCluster& cluster, RequestId request) {
  CstFetched answer;
  cluster.draft_server_state().logs.fetch({request.group, {}}, 1 << 20, cluster.world.now_us(), answer);
  for (CstTokens& part : answer.parts)
    if (part.sample == request.sample) return std::move(part.tokens);
  return {};
}

}  // namespace

TEST_CASE("instance: when it ends, its engine goes before the arena that it may still copy to") {
  SimWorld world;
  auto arena = *HostArena::create({.dram_bytes = 64 * 64, .block_bytes = 64});
  bool is_gone = false, had_arena = false;
  std::shared_ptr<Engine> engine(new GivenTimes, [&, watched = std::weak_ptr(arena)](Engine* ended) {
    had_arena = !watched.expired();
    is_gone = true;
    delete ended;
  });
  InstanceParts parts;
  parts.engine = std::move(engine);
  parts.arena = std::move(arena);
  const InstanceHandle instance = world.spawn<InstanceActor>(InstanceConfig{}, std::move(parts));
  world.run_until(10);
  CHECK_FALSE(is_gone);
  rt::kill(instance);
  world.run_until(20);
  CHECK(is_gone);
  CHECK(had_arena);
}

TEST_CASE("instance: nothing is kept for drafts from a group that is over") {
  Bench b({.block_tokens = 4, .prompt_tokens = 10, .draft_tokens_max = 4, .draft_from_group = true});
  const auto& drafter = dynamic_cast<const GroupDrafter&>(*b.cluster.instance_state(0).parts.drafting.drafter);
  const RequestId first = b.request_of_at_least(30), second = b.request_of_at_least(30, 1);
  b.send(0, b.chunk(1, first, 9));
  b.cluster.run_for(kLong);
  CHECK(drafter.group_count() == 1);
  RunChunk chunk = b.chunk(2, second, 9);
  chunk.over = {first.group};
  b.send(0, std::move(chunk));
  b.cluster.run_for(kLong);
  CHECK(b.dones().size() == 2);
  CHECK(drafter.group_count() == 1);
  CHECK_FALSE(b.cluster.instance_state(0).parts.drafting.drafter->cursor(first.group));
}

TEST_CASE("instance: a full chunk is answered once its KV, the partial tail included, is in the pool") {
  Bench b({.block_tokens = 4, .prompt_tokens = 10});
  const RequestId request = b.request_of_at_least(30);
  b.send(0, b.chunk(1, request, 9));
  b.cluster.run_for(kLong);
  REQUIRE(b.dones().size() == 1);
  const ChunkDone done = b.dones()[0];
  CHECK(done.end == ChunkEnd::kChunkFull);
  CHECK(done.kv_tokens == 18);  // 10 of the prompt and 9 new ones, but the last was never fed
  CHECK(done.prefill_tokens == 9);
  CHECK(done.reprefill_tokens == 0);
  CHECK(done.cached_tokens == 0);
  CHECK(b.reported(1) == b.expected(request, 0, 9));
  CHECK(b.cluster.kv_node_state().tiers->stats().sealed == 5);  // 4 blocks of 4 tokens, and one of 2
  CHECK(b.cluster.arena->taken_count() == 5);
  CHECK(b.cluster.instance_state(0).devices.counts().in_use == 0);
}

TEST_CASE("instance: a parked chunk goes on elsewhere without any prefill") {
  Bench b({.block_tokens = 4, .prompt_tokens = 10});
  const RequestId request = b.request_of_at_least(30);
  b.send(0, b.chunk(1, request, 9));
  b.cluster.run_for(kLong);
  b.send(1, b.chunk(2, request, 12, 9));
  b.cluster.run_for(kLong);
  REQUIRE(b.dones().size() == 2);
  CHECK(b.dones()[1].cached_tokens == 18);
  CHECK(b.dones()[1].prefill_tokens == 0);
  CHECK(b.reported(2) == b.expected(request, 9, 12));
  CHECK(b.cluster.instance_state(1).kv.figures().imported_blocks == 5);
  // Back on the first one: it uses the blocks still on its device, and only the rest comes from the pool.
  b.send(0, b.chunk(3, request, 5, 21));
  b.cluster.run_for(kLong);
  REQUIRE(b.dones().size() == 3);
  CHECK(b.dones()[2].cached_tokens == 30);
  CHECK(b.dones()[2].reprefill_tokens == 0);
  CHECK(b.reported(3) == b.expected(request, 21, 5));
  CHECK(b.cluster.instance_state(0).report.cached_tokens == 30);
  CHECK(b.cluster.instance_state(1).report.cached_tokens == 18);
}

TEST_CASE("instance: a finished response leaves only its prompt on the device, and nothing under way") {
  Bench b({.block_tokens = 4, .prompt_tokens = 10});
  const RequestId request = b.request_of_at_least(30);
  b.send(0, b.chunk(1, request, 1000));
  b.cluster.run_for(kLong);
  REQUIRE(b.dones().size() == 1);
  CHECK(b.dones()[0].end == ChunkEnd::kFinished);
  CHECK(b.dones()[0].ending.reason != FinishReason::kNone);
  CHECK(b.reported(1) == b.cluster.answer(request));
  CHECK(b.cluster.instance_state(0).devices.counts().in_use == 0);
  CHECK(b.cluster.instance_state(0).devices.counts().cached == 2);  // 10 / 4
  rt::post(b.cluster.directory(), KvRelease{owner_of(request)});
  rt::post(b.cluster.directory(), KvRelease{owner_of(request.group)});
  b.cluster.run_for(kLong);
  check_drained(b.cluster);
}

TEST_CASE("instance: short of blocks, the chunk with the largest yield rank gives way first, and loses nothing") {
  Bench b({.device_blocks = 30, .groups = 3, .prompt_tokens = 10});
  std::vector<RequestId> requests;
  const uint64_t ranks[] = {5, 9, 7};
  for (uint32_t g = 0; g < 3; ++g) {
    requests.push_back(b.request_of_at_least(50, g));
    RunChunk chunk = b.chunk(g + 1, requests.back(), 1000);
    chunk.yield_rank = ranks[g];
    b.send(0, chunk);
  }
  b.cluster.run_for(kLong);
  const auto dones = b.dones();
  REQUIRE(dones.size() == 3);
  CHECK(dones[0].chunk == ChunkId{2});
  CHECK(dones[0].end == ChunkEnd::kYielded);
  for (const ChunkDone& done : dones) CHECK((done.end == ChunkEnd::kYielded || done.end == ChunkEnd::kFinished));
  CHECK(b.cluster.instance_state(0).report.preemptions == 0);
  // It goes on where it stopped.
  const auto written = static_cast<int64_t>(b.reported(2).ids.size());
  b.send(1, b.chunk(4, requests[1], 5, written));
  b.cluster.run_for(kLong);
  CHECK(b.dones().back().cached_tokens == dones[0].kv_tokens);
  CHECK(b.dones().back().reprefill_tokens == 0);
  CHECK(b.reported(4) == b.expected(requests[1], written, 5));
}

TEST_CASE("instance: a chunk with KV in the pool waits until those that run keep some room to grow") {
  Bench b({.device_blocks = 20, .block_tokens = 4, .groups = 2, .prompt_tokens = 10});
  const RequestId runs = b.request_of_at_least(50, 0), waits = b.request_of_at_least(30, 1);
  b.send(1, b.chunk(1, waits, 9));
  b.cluster.run_for(kLong);
  b.send(0, b.chunk(2, runs, 50));
  const InstanceActor& instance = b.cluster.instance_state(0);
  const auto runs_far_enough = [&] { return !instance.sequences.empty() && instance.sequences.begin()->second->kv_tokens >= 36; };
  for (int i = 0; i < 10'000 && !runs_far_enough(); ++i) b.cluster.run_for(10);
  REQUIRE(runs_far_enough());
  b.send(0, b.chunk(3, waits, 5, 9));
  b.cluster.run_for(200);
  CHECK(instance.devices.counts().available() >= 5);  // enough for what is in the pool
  REQUIRE(instance.kv.arrival_count() == 1);
  CHECK(instance.kv.first_arrival_blocks() == 5);
  b.cluster.run_for(kLong);
  REQUIRE(b.dones().size() == 3);
  CHECK(b.dones()[1].chunk == ChunkId{2});
  CHECK(b.dones()[2].reprefill_tokens == 0);
  CHECK(instance.report.yields == 0);
  CHECK(b.reported(3) == b.expected(waits, 9, 5));
}

TEST_CASE("instance: a chunk that does not keep its KV is preempted, and the pool never hears of it") {
  Bench b({.device_blocks = 30, .groups = 2, .prompt_tokens = 10});
  for (uint32_t g = 0; g < 2; ++g) {
    RunChunk chunk = b.chunk(g + 1, b.request_of_at_least(60, g), 1000);
    chunk.keep_kv = false;
    b.send(0, chunk);
  }
  b.cluster.run_for(kLong);
  const auto dones = b.dones();
  REQUIRE(dones.size() == 2);
  CHECK(dones[0].chunk == ChunkId{2});
  CHECK(dones[0].end == ChunkEnd::kPreempted);
  CHECK(dones[1].end == ChunkEnd::kFinished);
  CHECK(b.cluster.kv_node_state().tiers->stats().reserved == 0);
}

TEST_CASE("instance: a group's requests that start together compute their prompt once and share its blocks") {
  for (const bool keep_kv : {true, false}) {
    CAPTURE(keep_kv);
    Bench b({.block_tokens = 4, .groups = 1, .samples = 4, .prompt_tokens = 10});
    for (uint32_t s = 0; s < 4; ++s) {
      RunChunk chunk = b.chunk(1 + s, {GroupId{0}, s}, 1);
      chunk.keep_kv = keep_kv;
      b.send(0, std::move(chunk));
    }
    b.cluster.run_for(kLong);
    REQUIRE(b.dones().size() == 4);
    int64_t prefilled = 0;
    for (const ChunkDone& done : b.dones()) {
      prefilled += done.prefill_tokens;
      CHECK(done.prefill_tokens + done.cached_tokens == 9);
      CHECK(b.reported(done.chunk.number) == b.expected({GroupId{0}, static_cast<uint32_t>(done.chunk.number - 1)}, 0, 1));
    }
    CHECK(prefilled == 9 + 3);  // two whole blocks once, and each one's tail but for its last token, which is sampled from
    CHECK(b.cluster.instance_state(0).devices.counts().in_use_peak <= 2 + 4);  // of 4 x 3, each with its own copy
  }
}

TEST_CASE("instance: blocks that were damaged in the pool are recomputed and reported") {
  Bench b({.block_tokens = 4, .prompt_tokens = 10});
  const RequestId request = b.request_of_at_least(40);
  b.send(0, b.chunk(1, request, 20));
  b.cluster.run_for(kLong);
  TokenLog log(b.cluster.groups[0].prompt_ids);
  log.append(b.cluster.answer(request).ids | std::views::take(19));
  const PrefixHash prefix = extend_prefix({}, log.tokens(0, 16));  // in the KV of the token at its end
  uint32_t damaged = 0;  // the slot of block 3
  for (uint32_t slot = 0; slot < b.cluster.arena->slot_count(); ++slot) {
    PrefixHash last;
    std::memcpy(&last, b.cluster.arena->span(slot).data() + 3 * kSimTokenBytes, sizeof last);
    if (last == prefix) damaged = slot;
  }
  b.cluster.arena->span(damaged)[5] ^= std::byte{4};
  b.send(1, b.chunk(2, request, 10, 20));
  b.cluster.run_for(kLong);
  REQUIRE(b.dones().size() == 2);
  CHECK(b.dones()[1].cached_tokens == 12);
  CHECK(b.dones()[1].reprefill_tokens == 29 - 12);
  CHECK(b.reported(2) == b.expected(request, 20, 10));
  CHECK(b.cluster.instance_state(1).kv.figures().corrupt_blocks == 1);
  CHECK(b.cluster.kv_node_state().tiers->stats().corrupt_blocks == 1);
}

TEST_CASE("instance: new weights wait for the rollouts that run; chunks of another version are sent back untouched") {
  Bench b({.groups = 2, .prompt_tokens = 10});
  Recorder<InstanceWeightsSink, InstanceWeights> answers(b.cluster.world);
  const auto update = [&](uint64_t version) {
    rt::post(b.cluster.instance(0), UpdateInstance{{WeightVersion{version}, "folder"}, answers.handle()});
    b.cluster.run_for(kLong);
  };
  const RequestId request = b.request_of_at_least(30), other = b.request_of_at_least(30, 1);
  b.send(0, b.chunk(1, request, 9));
  update(2);
  REQUIRE(b.dones().size() == 1);  // it ended with the weights that it began with
  CHECK(b.reported(1) == b.expected(request, 0, 9));
  CHECK(b.dones()[0].version == WeightVersion{1});
  CHECK(answers.all<InstanceWeights>().empty());  // the rollout may come back
  b.send(0, b.chunk(2, request, 9, 9));
  update(3);
  REQUIRE(answers.all<InstanceWeights>().size() == 1);
  CHECK(answers.all<InstanceWeights>()[0].error == "instance 0 is changing to weight version 2 already");
  CHECK(b.dones().back().end == ChunkEnd::kChunkFull);

  rt::post(b.cluster.instance(0), DropChunks{});
  b.send(0, b.chunk(5, other, 9));  // while it switches
  b.cluster.run_for(kLong);
  CHECK(b.dones().back().chunk == ChunkId{5});
  CHECK(b.dones().back().end == ChunkEnd::kNotBegun);
  CHECK(b.dones().back().version == WeightVersion{2});
  REQUIRE(answers.all<InstanceWeights>().size() == 2);
  CHECK(answers.all<InstanceWeights>()[1].version == WeightVersion{2});
  CHECK(answers.all<InstanceWeights>()[1].error == "");
  CHECK(answers.all<InstanceWeights>()[1].kv_hash == b.cluster.instance_state(0).parts.engine->info().kv_hash);
  b.send(0, b.chunk(3, other, 9));
  b.cluster.run_for(kLong);
  CHECK(b.dones().back().chunk == ChunkId{3});
  CHECK(b.dones().back().end == ChunkEnd::kNotBegun);
  CHECK(b.dones().back().version == WeightVersion{2});
  CHECK(b.dones().back().last.output.empty());
  RunChunk newer = b.chunk(4, other, 9);
  newer.version = WeightVersion{2};
  b.send(0, newer);
  b.cluster.run_for(kLong);
  CHECK(b.dones().back().end == ChunkEnd::kChunkFull);
  CHECK(b.dones().back().version == WeightVersion{2});
  CHECK(b.dones().back().cached_tokens == 0);
}

TEST_CASE("instance: an engine that fails while it changes its weights is not used again") {
  SimClusterOptions options{.prompt_tokens = 10};
  bool is_first = true;
  options.wrap_engine = [&](std::shared_ptr<Engine> engine) -> std::shared_ptr<Engine> {
    constexpr int64_t kStaged = 1;  // the result before the one of the change
    return std::exchange(is_first, false) ? std::make_shared<LostEngine>(std::move(engine), kStaged) : engine;
  };
  Bench b(options);
  Recorder<InstanceWeightsSink, InstanceWeights> answers(b.cluster.world);
  const InstanceHandle before = b.cluster.instance(0);
  rt::post(before, UpdateInstance{{WeightVersion{2}, "folder"}, answers.handle()});
  b.cluster.run_for(kLong);
  CHECK(answers.all<InstanceWeights>().empty());
  CHECK(b.cluster.instance(0) != before);
}

TEST_CASE("instance: a rollout that dies without dropping its chunks leaves nothing behind, and does not hold up new weights") {
  Bench b({.device_blocks = 40, .groups = 4, .prompt_tokens = 10});
  Recorder<InstanceWeightsSink, InstanceWeights> answers(b.cluster.world);
  {
    Recorder<ChunkSink, ChunkProgress, ChunkDone> other(b.cluster.world);
    RunChunk chunk = b.chunk(1, b.request_of_at_least(30), 30);
    chunk.chunk.rollout = RolloutId{7};
    chunk.reply_to = other.handle();
    b.send(0, chunk);
    rt::post(b.cluster.instance(0), UpdateInstance{{WeightVersion{2}, "folder"}, answers.handle()});
    b.cluster.run_for(1000);
    CHECK(b.cluster.instance_state(0).devices.counts().in_use > 0);
    CHECK(answers.all<InstanceWeights>().empty());
    rt::stop(other.handle());
  }
  b.cluster.run_for(kLong);
  CHECK(b.cluster.instance_state(0).sequences.empty());
  CHECK(b.cluster.instance_state(0).devices.counts().in_use == 0);
  REQUIRE(answers.all<InstanceWeights>().size() == 1);
  CHECK(answers.all<InstanceWeights>()[0].version == WeightVersion{2});
}

TEST_CASE("instance: chunks dropped at any moment leave no block in use and nothing granted or leased") {
  for (int64_t at_us = 100; at_us < 30'000; at_us += 313) {
    CAPTURE(at_us);
    Bench b({.device_blocks = 40, .groups = 4, .prompt_tokens = 10});
    const RequestId moved = b.request_of_at_least(30, 3);
    b.send(1, b.chunk(99, moved, 12));
    b.cluster.run_for(kLong);
    b.send(0, b.chunk(9, moved, 40, 12));
    for (uint32_t g = 0; g < 3; ++g) b.send(0, b.chunk(g + 1, b.request_of_at_least(40, g), 11));
    b.cluster.run_for(at_us);
    const size_t answered = b.dones().size();
    rt::post(b.cluster.instance(0), DropChunks{});
    b.cluster.run_for(0);
    CHECK(b.cluster.instance_state(0).devices.counts().in_use == 0);
    const RequestId next = b.request_of_at_least(40, 1);
    b.send(0, b.chunk(101, next, 30));
    b.cluster.run_for(kLong);
    CHECK(b.dones().size() == answered + 1);
    CHECK(b.dones().back().chunk == ChunkId{101});
    CHECK(b.dones().back().end == ChunkEnd::kChunkFull);
    CHECK(b.reported(101) == b.expected(next, 0, 30));
    for (uint32_t g = 0; g < 4; ++g) {
      for (uint32_t s = 0; s < 4; ++s) rt::post(b.cluster.directory(), KvRelease{owner_of(RequestId{GroupId{g}, s})});
      rt::post(b.cluster.directory(), KvRelease{owner_of(GroupId{g})});
    }
    b.cluster.run_for(kLong);
    check_drained(b.cluster);
  }
}

TEST_CASE("instance: more chunks than rows_max fail at once, with a sentence") {
  Bench b({.rows_max = 3});
  for (uint64_t id = 1; id <= 5; ++id) b.send(0, b.chunk(id, {GroupId{0}, static_cast<uint32_t>(id % 4)}, 5));
  b.cluster.run_for(kLong);
  REQUIRE(b.dones().size() == 5);
  for (const ChunkDone& done : b.dones()) {
    CHECK((done.end == ChunkEnd::kFailed) == (done.chunk > ChunkId{3}));
    CHECK(done.ending.error == (done.chunk > ChunkId{3} ? "instance 0 runs 3 requests of rollout 0 already, which is its limit" : ""));
  }
}

TEST_CASE("instance: a token that its model does not have fails the request, with a sentence, and nothing else") {
  Bench b({});
  const RequestId request{GroupId{0}, 0};
  RunChunk bad = b.chunk(1, request, 5);
  bad.log = TokenLog(std::vector<int32_t>{1, b.cluster.instance_state(0).info.vocab_size, 2});
  b.send(0, std::move(bad));
  b.send(0, b.chunk(2, request, 5));
  b.cluster.run_for(kLong);
  REQUIRE(b.dones().size() == 2);
  CHECK(b.dones()[0].end == ChunkEnd::kFailed);
  CHECK(b.dones()[0].ending.reason == FinishReason::kError);
  CHECK(b.dones()[0].ending.error.ends_with("the size of the vocabulary of sim"));
  CHECK(b.dones()[1].end == ChunkEnd::kChunkFull);
}

TEST_CASE("instance: without a tokenizer a stop string fails the request, with a sentence, and nothing else") {
  Bench b({});
  const RequestId request{GroupId{0}, 0};
  RunChunk bad = b.chunk(1, request, 5);
  bad.sampling.stop = {"\n"};
  b.send(0, std::move(bad));
  b.send(0, b.chunk(2, request, 5));
  b.cluster.run_for(kLong);
  REQUIRE(b.dones().size() == 2);
  CHECK(b.dones()[0].end == ChunkEnd::kFailed);
  CHECK(b.dones()[0].ending.error == "instance 0 cannot look for stop strings: its folder of sim has no tokenizer.json and no tokenizer.model");
  CHECK(b.dones()[1].end == ChunkEnd::kChunkFull);
}

TEST_CASE("instance: a chunk that does not fit even alone fails its request, with its tokens reported first") {
  Bench b({.device_blocks = 6, .prompt_tokens = 10});
  const RequestId request = b.request_of_at_least(40);
  b.send(0, b.chunk(1, request, 1000));
  b.cluster.run_for(kLong);
  REQUIRE(b.dones().size() == 1);
  CHECK(b.dones()[0].end == ChunkEnd::kFailed);
  CHECK(b.dones()[0].ending.error.find("does not fit on instance 0 even alone (24 tokens have their KV)") != std::string::npos);
  CHECK(b.reported(1) == b.expected(request, 0, 6 * 4 - 10 + 1));
  CHECK(b.cluster.instance_state(0).devices.counts().in_use == 0);
}

TEST_CASE("instance: every chunk is answered once, after all of its tokens, whatever is short") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    Bench b({.device_blocks = static_cast<int32_t>(30 + rng() % 40),
             .dram_blocks = rng() % 4 == 0 ? 0 : static_cast<int64_t>(1 + rng() % 60),
             .cold_blocks = rng() % 2 == 0 ? 0 : static_cast<int64_t>(1 + rng() % 60),
             .groups = 4,
             .seed = seed,
             .prefill_tokens_max = static_cast<int32_t>(1 + rng() % 40),
             .parked_max = rng() % 5});
    uint64_t sent = 0;
    for (uint32_t g = 0; g < 4; ++g)
      for (uint32_t s = 0; s < 4; ++s) {
        RunChunk chunk = b.chunk(++sent, {GroupId{g}, s}, static_cast<int64_t>(1 + rng() % 60));
        chunk.yield_rank = rng() % 8;
        chunk.keep_kv = rng() % 5 != 0;
        b.send(0, chunk);
        if (rng() % 2 == 0) b.cluster.run_for(static_cast<int64_t>(rng() % 5'000));
      }
    b.cluster.run_for(kLong);
    std::map<ChunkId, int> answers;
    std::map<ChunkId, size_t> tokens;
    for (const auto& message : b.rollout.log()) {
      if (const auto* progress = std::get_if<ChunkProgress>(&message)) {
        for (const ChunkTokens& part : progress->chunks) {
          CHECK(answers[part.chunk] == 0);
          CHECK(part.output.size() == part.output.logprobs.size());
          tokens[part.chunk] += part.output.size();
        }
        continue;
      }
      const auto& done = std::get<ChunkDone>(message);
      CHECK(++answers[done.chunk] == 1);
      tokens[done.chunk] += done.last.output.size();
      const auto id = static_cast<uint32_t>(done.chunk.number - 1);
      const RequestId request{GroupId{id / 4}, id % 4};
      CHECK(b.reported(done.chunk.number) == b.expected(request, 0, static_cast<int64_t>(tokens[done.chunk])));
    }
    CHECK(answers.size() == sent);
    CHECK(b.cluster.instance_state(0).devices.counts().in_use == 0);
    CHECK(b.cluster.instance_state(0).sequences.empty());
  }
}

TEST_CASE("instance: a chunk that comes twice runs once") {
  Bench b({});
  const RequestId request = b.request_of_at_least(30);
  b.send(0, b.chunk(1, request, 20));
  b.cluster.run_for(2'000);
  REQUIRE(b.cluster.instance_state(0).sequences.size() == 1);
  b.send(0, b.chunk(1, request, 20));
  b.cluster.run_for(kLong);
  REQUIRE(b.dones().size() == 1);
  CHECK(b.reported(1) == b.expected(request, 0, 20));
  CHECK(b.cluster.instance_state(0).sequences.empty());
}

TEST_CASE("instance: unreported tokens of a chunk are never more than report_steps") {
  Bench b({.report_steps = 3});
  for (uint32_t s = 0; s < 4; ++s) b.send(0, b.chunk(s + 1, {GroupId{0}, s}, 1000));
  int64_t most = 0;
  for (int i = 0; i < 300; ++i) {
    b.cluster.run_for(500);
    for (const auto& [id, s] : b.cluster.instance_state(0).sequences) most = std::max(most, s->log.size() - s->reported_tokens);
  }
  CHECK(most > 0);
  CHECK(most <= 3);
  CHECK(b.dones().size() == 4);
}

TEST_CASE("instance: while somebody reads a chunk as it comes, tokens are reported more often, and they are the same") {
  constexpr int64_t kTokens = 40;
  for (const bool is_live : {false, true}) {
    CAPTURE(is_live);
    Bench b({.report_steps = 32});
    const RequestId request = b.request_of_at_least(kTokens);
    RunChunk chunk = b.chunk(1, request, kTokens);
    chunk.is_live = is_live;
    b.send(0, std::move(chunk));
    b.cluster.run_for(kLong);
    REQUIRE(b.dones().size() == 1);
    CHECK(b.reported(1) == b.expected(request, 0, kTokens));
    const size_t reports = b.rollout.all<ChunkProgress>().size();
    CHECK(reports >= (is_live ? kTokens / 4 - 2 : 1));
    CHECK(reports <= (is_live ? kTokens / 4 : 2));
    CHECK_FALSE(b.cluster.instance_state(0).sequences.any_live());
  }
}

TEST_CASE("instance: more copies at once than the engine's queue takes wait their turn") {
  // All chunks start together with prompts of the same length, so that all of them fill a block in the same step.
  Bench b({.device_blocks = 4000, .rows_max = 200, .groups = 150, .samples = 1, .prompt_tokens = 10, .prefill_tokens_max = 4096});
  for (uint32_t g = 0; g < 150; ++g) b.send(0, b.chunk(g + 1, {GroupId{g}, 0}, 20));
  b.cluster.run_for(kLong);
  CHECK(b.dones().size() == 150);
  for (uint32_t g = 0; g < 150; ++g) CHECK(b.reported(g + 1) == b.expected({GroupId{g}, 0}, 0, 20));
  for (uint32_t g = 0; g < 150; ++g) {  // and all at once from the pool
    const auto written = static_cast<int64_t>(b.reported(g + 1).ids.size());
    if (written == 20 && b.cluster.answer({GroupId{g}, 0}).ids.size() > 20)
      b.send(1, b.chunk(1000 + g, {GroupId{g}, 0}, 5, 20));
  }
  b.cluster.run_for(kLong);
  CHECK(b.dones().size() > 200);
  for (const ChunkDone& done : b.dones()) CHECK(done.reprefill_tokens == 0);
}

TEST_CASE("instance: when its last chunk ends, the draft server soon has all of its tokens") {
  Bench b({.draft_tokens_max = 4, .draft_from_group = true, .draft_servers = true});
  const RequestId request = b.request_of_at_least(60);
  const DraftServerHandle server = b.cluster.draft_server();
  rt::post(b.cluster.instance(0), DraftServers{{{NodeId{0}, server}}});
  rt::post(server, RegisterGroups{{request.group}, 10 * kLong});
  RunChunk chunk = b.chunk(1, request, 1000);
  int64_t tokens = std::ssize(b.cluster.answer(request).ids);
  SUBCASE("the response is finished") {}
  SUBCASE("the chunk is full, and its KV moves to the pool first") { chunk.max_new_tokens = tokens = 50; }
  SUBCASE("the chunk is full, and leaves its KV") {
    chunk.max_new_tokens = tokens = 50;
    chunk.keep_kv = false;
  }
  b.send(0, std::move(chunk));
  for (int i = 0; i < 10'000 && b.dones().empty(); ++i) b.cluster.run_for(100);
  REQUIRE(b.dones().size() == 1);
  b.cluster.run_for(SimCluster::kDraftSyncUs);
  CHECK(tokens_on_server(b.cluster, request) == b.expected(request, 0, tokens).ids);
}

TEST_CASE("instance: when drained it gives all its chunks back early, with their KV in the pool, and takes no more") {
  for (const int32_t steps_max : {1, 64}) {
    CAPTURE(steps_max);
    Bench b({.block_tokens = 4, .prompt_tokens = 10, .has_kv = steps_max == 1, .steps_max = steps_max});
    const RequestId first = b.request_of_at_least(60, 0), second = b.request_of_at_least(60, 1);
    b.send(0, b.chunk(1, first, 1000));
    b.cluster.run_for(20'000);
    b.send(0, b.chunk(2, second, 1000));  // its prompt is not computed yet
    rt::post(b.cluster.instance(0), YieldChunks{});
    b.cluster.run_for(kLong);
    REQUIRE(b.dones().size() == 2);
    for (const ChunkDone& done : b.dones()) CHECK((done.end == ChunkEnd::kYielded || done.end == ChunkEnd::kPreempted));
    const int64_t written = std::ssize(b.reported(1).ids);
    CHECK(written > 0);
    CHECK(written < std::ssize(b.cluster.answer(first).ids));
    if (steps_max == 1) CHECK(b.reported(1) == b.expected(first, 0, written));  // else its tokens are none in particular
    CHECK(b.cluster.instance_state(0).devices.counts().in_use == 0);
    CHECK(b.cluster.instance_state(0).current_report().chunks == 0);
    b.send(0, b.chunk(3, first, 1000, written));
    b.cluster.run_for(kLong);
    REQUIRE(b.dones().size() == 3);
    CHECK(b.dones()[2].end == ChunkEnd::kNotBegun);
    b.send(1, b.chunk(4, first, 1000, written));
    b.cluster.run_for(kLong);
    REQUIRE(b.dones().size() == 4);
    CHECK(b.dones()[3].end == ChunkEnd::kFinished);
    CHECK(b.dones()[3].reprefill_tokens == 0);
  }
}

TEST_CASE("instance: when drained it also gives back those that wait for the prompt of their group") {
  for (const bool keeps_kv : {true, false}) {
    CAPTURE(keeps_kv);
    Bench b({.samples = 4, .prompt_tokens = 100, .prefill_tokens_max = 16});
    for (uint64_t id = 1; id <= 4; ++id) {
      RunChunk chunk = b.chunk(id, {GroupId{0}, static_cast<uint32_t>(id - 1)}, 50);
      chunk.keep_kv = keeps_kv;
      b.send(0, std::move(chunk));
    }
    b.cluster.run_for(0);
    rt::post(b.cluster.instance(0), YieldChunks{});
    b.cluster.run_for(kLong);
    CHECK(b.dones().size() == 4);
    for (const ChunkDone& done : b.dones()) CHECK(done.end == (keeps_kv ? ChunkEnd::kYielded : ChunkEnd::kPreempted));
    CHECK(b.cluster.instance_state(0).current_report().chunks == 0);
  }
}
