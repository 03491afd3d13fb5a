// Rollouts over servers of others that fail in every way that a seed can draw: each response is given once, with the right tokens.
#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <set>
#include <vector>

#include "actors/context_actor.h"
#include "actors/rollout_actor.h"
#include "actors/server_node_actor.h"
#include "actors/sim/sim_cluster.h"
#include "protocols/number_from_environment.h"
#include "served/byte_server.h"

using namespace seer;

namespace {

constexpr int64_t kLongUs = 600'000'000;

struct RolloutOptions {
  std::string policy = "seer+";
  int32_t fruitless_max = 0;
  int64_t stream_tokens = 4096, turn_tokens = 48;
  bool learns_speeds = true;
  int64_t chunk_silence_us = kLongUs;
};

struct ServedRollout {
  ServedRollout(uint64_t seed, std::vector<ByteServerConfig> configs, const RolloutOptions& options = {}) : stream_tokens(options.stream_tokens), world(seed) {
    for (size_t i = 0; i < configs.size(); ++i) add_server(configs[i], i);
    for (uint32_t g = 0; g < 6; ++g) {
      GroupSpec group{.id = {g, RolloutId{1}}, .prompt_ids = {}, .samples = 3, .sampling = {.max_tokens = 200}, .seeds = {}, .known_tokens = {}};
      for (uint32_t i = 0; i < 3 + g; ++i) group.prompt_ids.push_back(static_cast<int32_t>(2 + g));
      for (uint32_t s = 0; s < group.samples; ++s) group.seeds.push_back(hash_pair(seed, g * 10 + s) >> 33);
      groups.push_back(std::move(group));
    }
    events = collect_events(world, seen, true);
    RolloutConfig config{.id = RolloutId{1},
                         .scheduler = {.policy = options.policy, .chunk_tokens = 16, .turn_tokens = options.turn_tokens, .learns_speeds = options.learns_speeds},
                         .instances_expected = configs.size(),
                         .chunk_silence_us = options.chunk_silence_us,
                         .no_instance_us = kLongUs,
                         .fruitless_max = options.fruitless_max};
    rollout = world.spawn<RolloutActor>(config, RolloutParts{groups, world.spawn<ContextActor>(), {}, events});
    for (const NodeHandle& node : nodes) rt::post(node, AttachRollout{rollout});
  }

  void add_server(const ByteServerConfig& config, size_t i) {
    servers.push_back(std::make_shared<ByteServer>(world, config));
    ServerNodeConfig node{.node = NodeId{static_cast<uint32_t>(i)},
                          .instance = {.id = {}, .stop = {{ByteOracle::kEos}, 4096}, .rid_prefix = "seer.t.", .stream_tokens = stream_tokens, .alive_us = 50'000},
                          .model = "m",
                          .kv_node = NodeId{static_cast<uint32_t>(i)},
                          .look_us = 1'000,
                          .look_us_max = 40'000,
                          .moving = moving};
    nodes.push_back(world.spawn<ServerNodeActor>(
        node, ServerNodeParts{servers.back(), nullptr, {.left = [this](NodeId id) { left.insert(id); }}}));
  }

  void run(int64_t until_us = kLongUs) {
    world.run_until(until_us, [this] { return seen.over(); });
  }

  void check_answered_once() {
    REQUIRE(seen.over());
    CHECK_MESSAGE(seen.summaries[0].complete, seen.summaries[0].error);
    std::set<RequestId> answered;
    for (const Response& r : seen.responses) {
      CAPTURE(r.request);
      CHECK(answered.insert(r.request).second);
      const uint64_t seed = groups[r.request.group.index].seeds[r.request.sample];
      CHECK(r.finish == FinishReason::kStop);
      CHECK(r.matched == std::to_string(ByteOracle::kEos));
      REQUIRE(std::ssize(r.output.ids) == ByteOracle::length(seed));
      for (int64_t i = 0; i < std::ssize(r.output.ids); ++i) {
        const auto at = static_cast<size_t>(i);
        if (r.output.ids[at] != ByteOracle::token(seed, i) || r.output.logprobs[at] != ByteOracle::logprob(seed, i)) FAIL("token ", i, " of ", r.request, " is wrong");
      }
    }
    CHECK(answered.size() == 18);
    world.run_until(world.now_us() + 5'000'000);
    for (const auto& server : servers) CHECK(server->open() == 0);
  }

  int64_t requests() const {
    int64_t all = 0;
    for (const auto& server : servers) all += server->requests();
    return all;
  }

  const int64_t stream_tokens;
  const std::shared_ptr<std::atomic<uint64_t>> moving = std::make_shared<std::atomic<uint64_t>>(0);
  std::set<NodeId> left;
  SimEvents seen;
  SimWorld world;  // after what its actors use until they end
  std::vector<std::shared_ptr<ByteServer>> servers;
  std::vector<NodeHandle> nodes;
  std::vector<GroupSpec> groups;
  RolloutEvents events;
  RolloutHandle rollout;
};

std::vector<ByteServerConfig> three(uint64_t seed, ServerKind kind, bool has_faults = true) {
  std::vector<ByteServerConfig> configs;
  for (uint64_t i = 0; i < 3; ++i)
    configs.push_back({.kind = kind, .seed = seed * 3 + i, .token_us = 500 + 700 * static_cast<int64_t>(i), .fault_share = has_faults ? 0.3 : 0, .up_us = has_faults ? 100'000 : 0,
                       .is_incremental = (seed + i) % 2 == 0, .changes_weights = has_faults && kind != ServerKind::kVllm});
  return configs;
}

/// Keeps the answers of nodes that were asked to update.
struct Sink {
  using handle = WeightsSink;
  static constexpr const char* kActorName = "sink";
  Sink(rt::self_ptr<Sink>, std::shared_ptr<std::vector<WeightsUpdated>> log_in) : log(std::move(log_in)) {}
  handle::behavior_type make_behavior() {
    return {[this](const WeightsUpdated& answer) { log->push_back(answer); }};
  }
  std::shared_ptr<std::vector<WeightsUpdated>> log;
};

}  // namespace

TEST_CASE("served servers: whatever fails, each response is given once with the right tokens, in each dialect") {
  const char* const policies[] = {"seer+", "seer", "las", "divided", "verl"};
  int64_t chunks_failed = 0, servers_out = 0, rollouts = 0;
  const uint64_t seeds = number_from_environment("SEER_SERVED_SEEDS").value_or(1000);
  for (uint64_t seed = 1; seed <= seeds; ++seed)
    for (const ServerKind kind : {ServerKind::kSglang, ServerKind::kVllm}) {
      CAPTURE(seed);
      CAPTURE(to_string(kind));
      const int64_t stream_tokens[] = {4096, 24, 0};  // the whole response, more than a chunk, a chunk
      ServedRollout rollout(seed, three(seed, kind),
                            {.policy = policies[seed % std::size(policies)], .stream_tokens = stream_tokens[seed % 3], .turn_tokens = seed % 2 == 0 ? 32 : 0, .learns_speeds = seed % 4 < 2});
      rollout.run();
      rollout.check_answered_once();
      ++rollouts;
      chunks_failed += rollout.seen.summaries[0].preemptions;
      servers_out += rollout.seen.summaries[0].instances_lost;
    }
  CHECK(chunks_failed > 10 * rollouts);
  CHECK(servers_out > rollouts);
}

TEST_CASE("served servers: a request whose answer makes no sense is ended at the server") {
  for (const ServerKind kind : {ServerKind::kSglang, ServerKind::kVllm}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      auto configs = three(seed, kind);
      for (ByteServerConfig& config : configs) config.up_us = 0;  // an outage would end it too
      ServedRollout rollout(seed, configs);
      rollout.run();
      rollout.check_answered_once();
    }
  }
}

TEST_CASE("served servers: without faults no token is computed twice, and nothing is refused") {
  for (const ServerKind kind : {ServerKind::kSglang, ServerKind::kVllm}) {
    auto configs = three(5, kind, false);
    for (ByteServerConfig& config : configs) config.rows_max = 100;
    ServedRollout rollout(5, configs, {.stream_tokens = 0, .turn_tokens = 0});
    rollout.run();
    rollout.check_answered_once();
    CHECK(rollout.requests() == rollout.seen.summaries[0].chunks);
    CHECK(rollout.seen.summaries[0].preemptions == 0);
    CHECK(rollout.seen.summaries[0].instances_lost == 0);
  }
}

TEST_CASE("served servers: chunks that follow each other on a server share one request to it") {
  for (const ServerKind kind : {ServerKind::kSglang, ServerKind::kVllm}) {
    auto configs = three(5, kind, false);
    configs.resize(1);
    configs[0].rows_max = 100;
    ServedRollout rollout(5, configs);
    rollout.run();
    rollout.check_answered_once();
    CHECK(rollout.seen.summaries[0].chunks > 36);  // 18 requests of up to 60 tokens, 16 each
    CHECK(rollout.requests() == 18);
    CHECK(rollout.seen.summaries[0].prefill_tokens < 18 * 10);
  }
}

TEST_CASE("served servers: a response goes on where its request to the server had its limit") {
  auto configs = three(5, ServerKind::kSglang, false);
  configs.resize(1);
  configs[0].rows_max = 100;
  ServedRollout rollout(5, configs, {.stream_tokens = 24});
  rollout.run();
  rollout.check_answered_once();
  int64_t asks = 0;
  for (const Response& r : rollout.seen.responses) asks += (std::ssize(r.output.ids) + 23) / 24;
  CHECK(rollout.requests() == asks);
  CHECK(rollout.seen.summaries[0].preemptions == 0);
}

TEST_CASE("served servers: the last requests run on the fastest servers") {
  auto configs = three(12, ServerKind::kSglang, false);
  for (size_t i = 0; i < 3; ++i) configs[i].token_us = i == 1 ? 4000 : 500;
  const auto wall_us = [&](bool learns_speeds) {
    ServedRollout rollout(12, configs, {.learns_speeds = learns_speeds});
    rollout.run();
    rollout.check_answered_once();
    return rollout.seen.summaries[0].wall_us;
  };
  CHECK(wall_us(true) < wall_us(false));
}

TEST_CASE("served servers: a server that has no room gets a chunk when another of its chunks ends") {
  auto configs = three(6, ServerKind::kSglang, false);
  configs.resize(1);
  configs[0].rows_max = 2;  // it says 8
  ServedRollout rollout(6, configs);
  rollout.run();
  rollout.check_answered_once();
  CHECK(rollout.seen.summaries[0].instances_lost == 0);
}

TEST_CASE("served servers: one whose requests somebody aborts is not out, and its chunks are placed again") {
  for (const ServerKind kind : {ServerKind::kSglang, ServerKind::kVllm}) {
    auto configs = three(7, kind, false);
    configs.resize(1);
    configs[0].token_us = 10'000;
    configs[0].rows_max = 100;
    ServedRollout rollout(7, configs);
    for (int i = 0; i < 5; ++i) {  // each ends several chunks, before a token has come
      rollout.run(rollout.world.now_us() + 5'000);
      CHECK(rollout.servers[0]->open() > 3);
      rollout.servers[0]->abort_all();
    }
    rollout.run();
    rollout.check_answered_once();
    CHECK(rollout.seen.summaries[0].preemptions > 5 * 3);
    CHECK(rollout.seen.summaries[0].instances_lost == 0);
    CHECK(rt::look<ServerNodeActor>(rollout.nodes[0]).restarts == 0);
  }
}

TEST_CASE("served servers: one that aborts all it is asked is out after some times") {
  auto configs = three(7, ServerKind::kSglang, false);
  configs.resize(1);
  configs[0].token_us = 10'000;
  configs[0].rows_max = 100;
  ServedRollout rollout(7, configs);
  for (int i = 0; i < 20; ++i) {
    rollout.run(rollout.world.now_us() + 5'000);
    rollout.servers[0]->abort_all();
  }
  rollout.run();
  CHECK(rt::look<ServerNodeActor>(rollout.nodes[0]).restarts == 1);
}

TEST_CASE("served servers: chunks that wait long for room at a server do not count as silent") {
  auto configs = three(6, ServerKind::kSglang, false);
  configs.resize(1);
  configs[0].rows_max = 1;
  configs[0].token_us = 10'000;
  ServedRollout rollout(6, configs, {.turn_tokens = 0, .chunk_silence_us = 400'000});  // of 25 tokens: less than most responses have
  rollout.run();
  rollout.check_answered_once();
  CHECK(rollout.seen.summaries[0].instances_lost == 0);
}

TEST_CASE("served servers: one that leaves gives its chunks back with their tokens, and is told of") {
  ServedRollout rollout(7, three(7, ServerKind::kSglang, false));
  rollout.world.run_until(6'000);
  REQUIRE(rollout.servers[0]->open() > 0);
  const int64_t before = rollout.servers[0]->requests();
  rt::post(rollout.nodes[0], DrainNode{1'000'000});
  rollout.run();
  rollout.check_answered_once();
  CHECK(rollout.servers[0]->requests() == before);
  CHECK(rollout.left == std::set<NodeId>{NodeId{0}});
}

TEST_CASE("served servers: one that joins while a rollout runs takes part") {
  ServedRollout rollout(8, three(8, ServerKind::kSglang, false));
  rollout.world.run_until(6'000);
  rollout.add_server({.kind = ServerKind::kSglang, .seed = 99, .fault_share = 0, .up_us = 0}, 3);
  rt::post(rollout.nodes[3], AttachRollout{rollout.rollout});
  rollout.run();
  rollout.check_answered_once();
  CHECK(rollout.servers[3]->requests() > 0);
}

TEST_CASE("served servers: tokens of other weights are never taken, and such a server is out until it has the right ones") {
  ServedRollout rollout(9, three(9, ServerKind::kSglang, false), {.stream_tokens = 0, .turn_tokens = 0, .learns_speeds = false});  // asks all servers all the time
  rollout.world.run_until(6'000);
  rollout.servers[1]->set_weights("other");
  rollout.run();
  rollout.check_answered_once();
  CHECK(rollout.seen.summaries[0].instances_lost == 1);
  CHECK_FALSE(rt::look<ServerNodeActor>(rollout.nodes[1]).instance);
  const int64_t before = rollout.servers[1]->requests();
  rollout.servers[1]->set_weights("default");
  rollout.world.run_until(rollout.world.now_us() + 1'000'000);
  CHECK(rt::look<ServerNodeActor>(rollout.nodes[1]).instance);
  CHECK(rollout.servers[1]->requests() == before);
}

TEST_CASE("served servers: weights that a trainer replaces part by part are looked at when all have come") {
  for (const bool is_told : {true, false}) {
    CAPTURE(is_told);
    ServedRollout rollout(14, three(14, ServerKind::kSglang, false));
    rollout.run();
    *rollout.moving = is_told ? 1 : 0;
    rollout.servers[1]->set_weights("2");  // with the first part
    rollout.world.run_until(rollout.world.now_us() + 10'000'000);
    const auto node = [&] { return rt::look<ServerNodeActor>(rollout.nodes[1]); };
    CHECK((node().instance != nullptr) == is_told);
    if (!is_told) continue;
    rt::stop(node().instance);  // a server that comes back in between must wait
    rollout.world.run_until(rollout.world.now_us() + 1'000'000);
    CHECK_FALSE(node().instance);
    rt::post(rollout.nodes[1], UpdateWeights{{WeightVersion{2}, ""}, {}});
    rollout.world.run_until(rollout.world.now_us() + 1'000'000);
    REQUIRE(node().instance);
    CHECK(node().version == WeightVersion{2});
  }
}

TEST_CASE("served servers: a prompt that a server's context cannot hold fails, and a response that reaches its end is over") {
  for (const int64_t small : {6, 20}) {
    CAPTURE(small);
    auto configs = three(15, ServerKind::kSglang, false);
    configs[0].context_tokens = small;
    if (small == 6)
      for (ByteServerConfig& config : configs) config.context_tokens = small;
    ServedRollout rollout(15, configs, {.stream_tokens = 0, .turn_tokens = 0, .learns_speeds = false});
    rollout.run();
    REQUIRE(rollout.seen.responses.size() == 18);
    int64_t cut = 0, beyond = 0;  // beyond: had come to the small server with more tokens than it takes
    for (const Response& r : rollout.seen.responses) {
      CAPTURE(r.request);
      const uint64_t seed = rollout.groups[r.request.group.index].seeds[r.request.sample];
      const int64_t room = small - (3 + r.request.group.index), length = ByteOracle::length(seed);
      if (small == 6 && room <= 0) {
        CHECK(r.finish == FinishReason::kError);
        CHECK(r.error.find(" takes 6 tokens, prompt and output together, and the prompt has ") != std::string::npos);
        continue;
      }
      CHECK(r.finish == (std::ssize(r.output.ids) == length ? FinishReason::kStop : FinishReason::kLength));
      CHECK(std::ssize(r.output.ids) >= std::min(room, length));
      cut += r.finish == FinishReason::kLength;
      beyond += r.finish == FinishReason::kLength && std::ssize(r.output.ids) > room;
      for (int64_t i = 0; i < std::ssize(r.output.ids); ++i) CHECK(r.output.ids[static_cast<size_t>(i)] == ByteOracle::token(seed, i));
    }
    CHECK(cut > 0);
    CHECK((beyond > 0) == (small == 20));
  }
}

TEST_CASE("served servers: no request to a server outlives the rollout whose weights it has") {
  ServedRollout rollout(13, three(13, ServerKind::kSglang, false));
  rollout.world.run_until(12'000);
  int64_t open = 0;
  for (const auto& server : rollout.servers) open += server->open();
  REQUIRE(open > 0);
  rt::stop(rollout.rollout);
  rollout.world.run_until(rollout.world.now_us() + 1'000);
  for (const auto& server : rollout.servers) CHECK(server->open() == 0);
}

TEST_CASE("served servers: new weights reach all servers, also one that was out meanwhile, and none works with old ones") {
  ServedRollout rollout(10, three(10, ServerKind::kSglang, false));
  rollout.run();
  rollout.check_answered_once();
  const auto answers = std::make_shared<std::vector<WeightsUpdated>>();
  const WeightsSink sink = rollout.world.spawn<Sink>(answers);
  // Two are asked; the third is out, and gets them with the word that they are in use.
  rt::stop(rt::look<ServerNodeActor>(rollout.nodes[2]).instance);
  rollout.servers[2]->go_down(500'000);
  const NewWeights weights{WeightVersion{2}, "/new"};
  for (size_t i = 0; i < 2; ++i) rt::post(rollout.nodes[i], UpdateWeights{weights, sink});
  rollout.world.run_until(rollout.world.now_us() + 100'000);
  REQUIRE(answers->size() == 2);
  for (const WeightsUpdated& answer : *answers) {
    CHECK(answer.error.empty());
    CHECK(answer.weights == label_hash("2"));
  }
  rt::post(rollout.nodes[2], UpdateWeights{weights, {}});
  rollout.world.run_until(rollout.world.now_us() + 100'000);
  CHECK_FALSE(rt::look<ServerNodeActor>(rollout.nodes[2]).instance);
  rollout.world.run_until(rollout.world.now_us() + 1'000'000);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(rollout.servers[i]->weights() == "2");
    REQUIRE(rt::look<ServerNodeActor>(rollout.nodes[i]).instance);
    CHECK(rt::look<ServedInstanceActor>(rt::look<ServerNodeActor>(rollout.nodes[i]).instance).config.version == WeightVersion{2});
  }
  // A folder that cannot be loaded changes nothing.
  rt::post(rollout.nodes[0], UpdateWeights{{WeightVersion{3}, ""}, sink});
  rollout.world.run_until(rollout.world.now_us() + 100'000);
  REQUIRE(answers->size() == 3);
  CHECK_FALSE(answers->back().error.empty());
  CHECK(answers->back().weights == 0);
  CHECK(rt::look<ServerNodeActor>(rollout.nodes[0]).instance);
}

TEST_CASE("served servers: an update whose answer is lost counts once the server says that it has the weights") {
  for (const bool is_gone_then : {false, true}) {
    CAPTURE(is_gone_then);
    ServedRollout rollout(16, three(16, ServerKind::kSglang, false));
    rollout.run();
    rollout.check_answered_once();
    const auto answers = std::make_shared<std::vector<WeightsUpdated>>();
    const WeightsSink sink = rollout.world.spawn<Sink>(answers);
    rollout.servers[0]->loses_answers = true;
    rt::post(rollout.nodes[0], UpdateWeights{{WeightVersion{2}, "/new"}, sink});
    rollout.world.run_until(rollout.world.now_us() + 2'100);  // it has them, and has not said so
    if (is_gone_then) rollout.servers[0]->go_down(100'000);
    rollout.world.run_until(rollout.world.now_us() + 1'000'000);
    REQUIRE(answers->size() == (is_gone_then ? 2 : 1));
    if (is_gone_then) CHECK_FALSE(answers->front().error.empty());
    CHECK(answers->back().error.empty());
    CHECK(answers->back().version == WeightVersion{2});
    CHECK(answers->back().weights == label_hash("2"));
    const ServerNodeActor& node = rt::look<ServerNodeActor>(rollout.nodes[0]);
    REQUIRE(node.instance);
    CHECK(node.version == WeightVersion{2});
  }
}

TEST_CASE("served servers: one without chunks that does not answer is out until it has said which weights it has") {
  ServedRollout rollout(17, three(17, ServerKind::kVllm, false));
  rollout.run();
  rollout.world.run_until(rollout.world.now_us() + 1'000'000);
  rollout.servers[0]->go_down(12'000'000);
  rollout.world.run_until(rollout.world.now_us() + 6'000'000);  // it is looked at every 5 s
  CHECK_FALSE(rt::look<ServerNodeActor>(rollout.nodes[0]).instance);
  rollout.servers[0]->set_weights("base");
  rollout.world.run_until(rollout.world.now_us() + 60'000'000);
  CHECK_FALSE(rt::look<ServerNodeActor>(rollout.nodes[0]).instance);
  rollout.servers[0]->set_weights("default");
  rollout.world.run_until(rollout.world.now_us() + 60'000'000);
  CHECK(rt::look<ServerNodeActor>(rollout.nodes[0]).instance);
}

TEST_CASE("served servers: a request that fails everywhere is answered with the reason after a bounded number of tries") {
  auto configs = three(11, ServerKind::kSglang, false);
  for (ByteServerConfig& config : configs) config.rows_max = 0;  // all are answered with 503
  ServedRollout rollout(11, configs, {.fruitless_max = 5});
  rollout.run();
  REQUIRE(rollout.seen.over());
  CHECK(rollout.seen.responses.size() == 18);
  for (const Response& r : rollout.seen.responses) {
    CHECK(r.finish == FinishReason::kError);
    CHECK(r.error.find("was begun 5 times without a token") != std::string::npos);
  }
  CHECK(rollout.seen.summaries[0].prefill_tokens == 0);
  CHECK(rollout.seen.summaries[0].reprefill_tokens == 0);
}
