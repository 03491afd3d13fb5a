// SimCluster: the actors of `seer rollout` on a virtual clock, over simulated engines and a simulated cold tier. What
// every response must be is known beforehand, so any scheduling, movement of KV or failure can be checked against it.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/context_actor.h"
#include "actors/kv_directory_actor.h"
#include "actors/node_actor.h"
#include "actors/rollout_actor.h"
#include "actors/sim_world.h"
#include "gpu/sim_engine.h"
#include "protocols/hash.h"
#include "storage/sim_cold_store.h"
#include "storage/sim_transport.h"

namespace seer {

struct SimClusterOptions {
  ChunkSchedulerConfig scheduler = {.policy = "seer", .chunk_tokens = 40, .reserve_share = 0.1};
  uint32_t instances = 2;      // dealt to the nodes in turn
  uint32_t nodes = 1;
  int64_t pull_gap_tokens = 0;
  int32_t device_blocks = 64;
  uint32_t block_tokens = 4;
  int32_t rows_max = 16;
  int64_t dram_blocks = 4096;  // 0: no pool
  int64_t cold_blocks = 0;     // 0: no cold tier
  uint32_t groups = 6;
  uint32_t samples = 4;
  int64_t prompt_tokens = 10;
  int64_t length_max = 100;
  uint64_t seed = 0;           // of the order in which actors take turns; 0: order of arrival
  int32_t prefill_tokens_max = 32;
  int32_t report_steps = 8;
  int32_t restarts_max = 8;
  size_t parked_max = 4096;
  double free_share = 0.05;    // see KvTiersConfig
  bool has_kv = true;          // false: engines without KV bytes
  int32_t steps_max = 1;       // they can be given so many steps at once
  SimColdFaults cold_faults = {};
};

/// Collects what a rollout tells whoever asked for it.
struct EventsActor {
  using handle = RolloutEvents;
  static constexpr const char* kActorName = "events";
  struct Seen {
    std::vector<Response> responses;
    std::vector<RolloutSummary> summaries;
    std::vector<RolloutProgress> progress;
  };
  EventsActor(rt::self_ptr<EventsActor>, Seen* seen_in) : seen(seen_in) {}
  handle::behavior_type make_behavior() {
    return {[this](const Response& r) { seen->responses.push_back(r); },
            [this](const RolloutProgress& p) { seen->progress.push_back(p); },
            [this](const RolloutSummary& s) { seen->summaries.push_back(s); }};
  }
  Seen* seen;
};

struct SimCluster {
  static constexpr int32_t kEos = 1;
  static constexpr int32_t kVocab = 1000;

  explicit SimCluster(SimClusterOptions o) : options(std::move(o)), world(options.seed) {
    directory = world.spawn<KvDirectoryActor>();
    const int64_t block_bytes = kSimTokenBytes * options.block_tokens;
    auto after = [this](int64_t us, std::function<void()> f) { world.after(us, std::move(f)); };
    transport = std::make_shared<SimTransport>(SimTransportConfig{}, after);
    for (uint32_t n = 0; n < options.nodes; ++n) nodes.push_back(start_node(NodeId{n}, block_bytes));
  }

  NodeHandle start_node(NodeId id, int64_t block_bytes) {
    NodeConfig config{.node = id,
                      .instances = {},
                      .kv_node = {.node = id,
                                  .tiers = {.spill_batch_bytes = 8 * block_bytes, .free_share = options.free_share},
                                  .pull = {.pull_gap_tokens = options.pull_gap_tokens},
                                  .parked_max = options.parked_max},
                      .restarts_max = options.restarts_max};
    for (uint32_t i = id.value; i < options.instances; i += options.nodes)
      config.instances.push_back({.id = InstanceId{i},
                                  .planner = {.prefill_tokens_max = options.prefill_tokens_max},
                                  .rows_max = options.rows_max,
                                  .report_steps = options.report_steps});
    NodeParts parts{.make_engine = [this](InstanceId instance_id) { return make_engine(instance_id); }, .directory = directory};
    if (options.nodes > 1) {
      parts.transport = transport;
      parts.publish = [this](NodeId node, uint64_t epoch, std::shared_ptr<HostArena> memory) {
        transport->arenas().add_node(node, epoch, std::move(memory));
      };
    }
    if (options.dram_blocks > 0)
      parts.make_arena = [this, block_bytes] {
        arena = *HostArena::create({.dram_bytes = options.dram_blocks * ((block_bytes + 63) / 64 * 64), .block_bytes = block_bytes});
        return arena;
      };
    if (options.cold_blocks > 0)
      parts.open_cold = [this, block_bytes] {
        auto store = std::make_unique<SimColdStore>(
            SimColdStoreConfig{.capacity_bytes = options.cold_blocks * block_bytes},
            [this](int64_t us, std::function<void()> f) { world.after(us, std::move(f)); }, options.cold_faults);
        cold = store.get();
        return store;
      };
    return world.spawn<NodeActor>(config, parts);
  }

  std::shared_ptr<Engine> make_engine(InstanceId id) {
    const uint64_t rank = 1 + id.value;
    SimEngineConfig config;
    config.info = {.model = "sim", .vocab_size = kVocab, .context_tokens_max = 1 << 20, .eos_ids = {kEos},
                   .block_tokens = options.block_tokens, .block_bytes = kSimTokenBytes * options.block_tokens,
                   .device_blocks = options.device_blocks, .layout_hash = 7};
    config.info.steps_max = options.steps_max;
    config.has_kv = options.has_kv;
    config.last_position = [this](uint64_t seed) { return last_position(seed); };
    config.on_steps = [this](const StepShape&, int64_t, int64_t steps) {
      steps_at_once_peak = std::max(steps_at_once_peak, steps);
    };
    engines_peak = std::max(engines_peak, ++engines_now);
    auto count = std::shared_ptr<void>(nullptr, [this](void*) { --engines_now; });  // lives as long as the engine
    return std::make_shared<SimEngine>(
        config, [this, count](uint64_t seed, int64_t position) { return token(seed, position); },
        [this, rank](int64_t ns, std::function<void()> f) { world.after_ns(ns, std::move(f), rank); },
        SimEngine::Clock{[this] { return world.now_ns(); }, [this, rank] { return world.fired_ns(rank); }});
  }

  int64_t length(uint64_t seed) const { return 1 + static_cast<int64_t>(mix64(seed ^ 77) % static_cast<uint64_t>(options.length_max)); }
  int64_t last_position(uint64_t seed) const { return options.prompt_tokens + length(seed) - 1; }
  int32_t token(uint64_t seed, int64_t position) const {
    if (position == last_position(seed)) return kEos;
    return 2 + static_cast<int32_t>(hash_pair(seed, static_cast<uint64_t>(position)) % (kVocab - 2));
  }

  std::vector<GroupSpec> make_groups() const {
    std::vector<GroupSpec> groups;
    for (uint32_t g = 0; g < options.groups; ++g) {
      GroupSpec group{.id = GroupId{g}, .prompt_ids = {}, .samples = options.samples, .sampling = {}, .seeds = {}, .known_tokens = {}};
      for (int64_t i = 0; i < options.prompt_tokens; ++i)
        group.prompt_ids.push_back(2 + static_cast<int32_t>(hash_pair(g, static_cast<uint64_t>(i)) % (kVocab - 2)));
      group.sampling.max_tokens = options.length_max;
      for (uint32_t s = 0; s < options.samples; ++s) {
        group.seeds.push_back(sample_seed(5, g, s));
        group.known_tokens.push_back(length(group.seeds.back()));
      }
      groups.push_back(std::move(group));
    }
    return groups;
  }

  /// Starts the rollout without running it.
  void start() {
    events = world.spawn<EventsActor>(&seen);
    auto groups = make_groups();
    auto context = world.spawn<ContextActor>(std::vector<int64_t>(groups.size(), options.length_max));
    RolloutConfig config;
    config.scheduler = options.scheduler;
    config.instances_expected = options.instances;
    rollout = world.spawn<RolloutActor>(
        config, RolloutParts{groups, context, options.dram_blocks > 0 ? directory : KvDirectoryHandle{}, events});
    for (const NodeHandle& node : nodes) rt::post(node, AttachRollout{rollout});
  }

  /// Runs until the summary is there, or virtual time is up.
  void finish() {
    constexpr int64_t kEnough = 600'000'000;
    while (seen.summaries.empty() && world.now_us() < kEnough) world.run_until(world.now_us() + 10'000);
  }
  void run() {
    start();
    finish();
  }
  /// Runs so much longer.
  void run_for(int64_t us) { world.run_until(world.now_us() + us); }

  // The parts, as they are now. REQUIRES: the world has run.
  NodeActor& node_state(uint32_t n = 0) { return rt::look<NodeActor>(nodes[n]); }
  InstanceHandle instance(uint32_t id) { return node_state(id % options.nodes).instances.at(InstanceId{id}).handle; }
  InstanceActor& instance_state(uint32_t id) { return rt::look<InstanceActor>(instance(id)); }
  KvNodeHandle kv_node(uint32_t n = 0) { return node_state(n).kv_node; }
  KvNodeActor& kv_node_state(uint32_t n = 0) { return rt::look<KvNodeActor>(kv_node(n)); }
  void kill_instance(InstanceId id) { rt::kill(instance(id.value)); }
  void kill_kv_node(uint32_t n = 0) { rt::kill(kv_node(n)); }
  int64_t fetched_blocks() {
    int64_t blocks = 0;
    for (uint32_t n = 0; n < options.nodes; ++n) blocks += kv_node_state(n).fetched_blocks;
    return blocks;
  }

  /// What one request must be answered with, whatever happens.
  struct Answer {
    std::vector<int32_t> output_ids;
    std::vector<float> logprobs;
    bool operator==(const Answer&) const = default;
  };
  Answer answer(RequestId id) const {
    const GroupSpec group = make_groups()[id.group.value];
    const uint64_t seed = group.seeds[id.sample];
    Answer a;
    PrefixHash prefix = extend_prefix({}, group.prompt_ids);
    for (int64_t i = 0; i < length(seed); ++i) {
      a.output_ids.push_back(token(seed, options.prompt_tokens + i));
      a.logprobs.push_back(-1.0f - static_cast<float>(prefix.hi & 0xffff) / 65536.0f);
      prefix = extend_prefix(prefix, std::span(&a.output_ids.back(), 1));
    }
    return a;
  }

  /// Every request was answered exactly once, with exactly the tokens and log-probabilities it must have.
  void check_exact() const {
    REQUIRE(seen.summaries.size() == 1);
    CHECK(seen.summaries[0].complete);
    CHECK(seen.summaries[0].error == "");
    REQUIRE(seen.responses.size() == options.groups * options.samples);
    std::map<RequestId, int> answers;
    for (const Response& r : seen.responses) {
      CHECK(++answers[r.request] == 1);
      CHECK((r.finish == FinishReason::kStop || length(r.seed) == options.length_max));
      const bool exact = Answer{r.output_ids, r.logprobs} == answer(r.request);
      CHECK_MESSAGE(exact, r.request.group.value, ".", r.request.sample);
    }
  }

  /// Nothing is held any more by anyone: what was granted, leased or kept came back. REQUIRES: the rollout is complete,
  /// and some time has passed since.
  void check_drained() {
    for (uint32_t i = 0; i < options.instances; ++i) {
      InstanceActor& s = instance_state(i);
      CHECK(s.devices.counts().in_use == 0);
      CHECK(s.sequences.empty());
      CHECK(s.reserves.empty());
      CHECK(s.openings.empty());
      CHECK(s.arrivals.empty());
      CHECK(s.exports.empty());
      CHECK(s.imports.empty());
      CHECK(s.waiting_work.empty());
      CHECK(s.engine_open == 0);
    }
    if (options.dram_blocks == 0) return;
    for (uint32_t n = 0; n < options.nodes; ++n) {
      KvNodeActor& pool = kv_node_state(n);
      pool.tiers->check_invariants();
      CHECK(pool.tiers->is_drained());
      CHECK(pool.parts.arena->taken_count() == 0);
      CHECK(pool.tiers->cold_stats().used_bytes == 0);
      CHECK(pool.parked.empty());
      CHECK(pool.kept.empty());
      CHECK(pool.pulls.empty());
      for (const auto& client : pool.clients) {
        CHECK(client.writes.empty());
        CHECK(client.leases.empty());
      }
    }
    CHECK(rt::look<KvDirectoryActor>(directory).holders.empty());
  }

  SimClusterOptions options;
  int64_t steps_at_once_peak = 0;
  int engines_now = 0, engines_peak = 0;
  SimWorld world;
  EventsActor::Seen seen;
  KvDirectoryHandle directory;
  std::shared_ptr<SimTransport> transport;
  std::vector<NodeHandle> nodes;
  RolloutEvents events;
  RolloutHandle rollout;
  std::shared_ptr<HostArena> arena;
  SimColdStore* cold = nullptr;
};

}  // namespace seer
