// SimCluster: the actors of `seer rollout` on a virtual clock, with simulated engines and a simulated cold tier. Every response
// is known beforehand, so a run with any scheduling, movement of KV or failure can be checked. Used by `seer simulate --faults`
// and tests.
#pragma once
#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/fleet.h"
#include "actors/kv_directory_actor.h"
#include "actors/policy/draft/group_drafter.h"
#include "actors/sim/sim_drafter.h"
#include "actors/sim/sim_events.h"
#include "actors/sim/sim_links.h"
#include "actors/sim/sim_world.h"
#include "gpu/sim/sim_engine.h"
#include "protocols/hash.h"
#include "storage/sim_cold_store.h"
#include "storage/sim_transport.h"

namespace seer {

/// A prompt, and how long its responses are.
struct SimGroup {
  int64_t prompt_tokens = 0;
  std::vector<int64_t> output_tokens;
};

struct SimClusterOptions {
  ChunkSchedulerConfig scheduler = {.policy = "seer", .chunk_tokens = 40, .reserve_share = 0.1};
  uint32_t instances = 2;      // dealt to the nodes in turn
  uint32_t nodes = 1;
  uint32_t kv_nodes = 0;       // further nodes, without instances, whose pool is for the others
  int32_t device_blocks = 64;
  uint32_t block_tokens = 4;
  int32_t rows_max = 16;
  int64_t dram_blocks = 4096;  // 0: no pool
  int64_t cold_blocks = 0;     // 0: no cold tier
  uint32_t groups = 6;
  uint32_t samples = 4;
  int64_t prompt_tokens = 10;
  int64_t length_max = 100;
  std::vector<SimGroup> work = {};  // not empty: replaces groups, samples, prompt_tokens and random lengths up to length_max
  uint64_t seed = 0;           // of the order in which actors take turns; 0: order of arrival
  int32_t prefill_tokens_max = 32;
  int32_t report_steps = 8;
  int32_t restarts_max = 8;
  size_t parked_max = 4096;
  double free_share = 0.05;    // see KvTiersConfig
  bool has_kv = true;          // false: engines without KV bytes
  int32_t steps_max = 1;       // most steps that an engine does at once
  int64_t draft_tokens_max = 0;  // 0: no drafting; else about a third of the tokens drafted are wrong
  bool draft_from_group = false; // draft from what the group has written, as in production
  bool draft_servers = false;    // share that through a server on each node
  bool draft_past = false;       // servers know every response word for word, as one of an earlier iteration
  double alike_share = 0;        // share of tokens that all responses of a group have in common, at the same index
  bool draft_trees = false;      // draft trees too; only engines with KV bytes
  int64_t chunk_silence_us = 600'000'000;  // see RolloutConfig
  std::function<int64_t(const StepShape&)> step_ns = {};  // empty: SimEngine's default
  SimColdFaults cold_faults = {};
  bool has_links = false;                  // messages and transfers between machines go over a network with these faults
  SimLinkFaults link_faults = {};
  std::function<std::optional<Code>()> transfer_fault = {};
  std::function<int64_t()> transfer_late_us = {};
  int64_t remake_us = 0;                   // time to make a part again
  std::function<Status(InstanceId)> engine_fault = {};  // called for each engine: its error, if it cannot be made
  std::function<Status(NodeId)> arena_fault = {};
  std::function<std::shared_ptr<Engine>(std::shared_ptr<Engine>)> wrap_engine = {};  // for planted bugs
  EventLog log = {};
  std::shared_ptr<ModelLoader> loader = {};  // null: machines take no weights from a server
};

struct SimCluster {
  static constexpr int32_t kEos = 1;
  static constexpr int32_t kVocab = 1000;
  static constexpr uint64_t kRunSeed = 5;
  static constexpr int64_t kDraftSyncUs = 5'000;
  static constexpr int64_t kDraftTtlUs = 30'000'000;

  explicit SimCluster(SimClusterOptions o) : options(std::move(o)), world(options.seed) {
    make_groups();
    transport = std::make_shared<SimTransport>(
        SimTransportConfig{.fault = [this](const RemoteSlot&) -> std::optional<Code> {
          return options.transfer_fault ? options.transfer_fault() : std::nullopt;
        }, .late_us = options.transfer_late_us},
        [this](int64_t us, std::function<void()> f) { world.after(us, std::move(f)); });
    slowness.resize(options.instances, 1);
    makers = make_makers();
    Status started = fleet.start_nodes(fleet_config(), makers);
    for (uint32_t n = options.nodes; started.ok() && n < all_nodes(); ++n) started = fleet.start_node(config_of(NodeId{n}), makers);
    SEER_CHECK(started.ok(), started.error());
  }

  FleetConfig fleet_config() const {
    FleetConfig config{.nodes = options.nodes,
                       .instances = options.instances,
                       .instance = {.id = {},
                                    .planner = {.prefill_tokens_max = options.prefill_tokens_max},
                                    .rows_max = options.rows_max,
                                    .report_steps = options.report_steps},
                       .node = {.kv_node = {.node = {},
                                            .tiers = {.spill_batch_bytes = 8 * block_bytes(), .free_share = options.free_share},
                                            .fetch_tokens_min = 0,  // its prompts are short
                                            .parked_max = options.parked_max},
                                .restarts_max = options.restarts_max}};
    if (options.draft_servers) config.node.draft_server = DraftServerConfig{};
    return config;
  }

  uint32_t all_nodes() const { return options.nodes + options.kv_nodes; }
  NodeConfig config_of(NodeId id) const {
    NodeConfig config = node_config(fleet_config(), id);
    if (id.value < options.nodes) return config;
    config.instances.clear();
    config.draft_server.reset();
    config.kv_node.identity = {.model = "sim", .kv_layout = 7, .version = {}};
    return config;
  }

  FleetLinks fleet_links() {
    if (!options.has_links) return {};
    return {.to_directory =
                [this](const KvDirectoryHandle& to) { return world.spawn<DirectoryLink>(to, &options.link_faults); },
            .to_rollout = [this](const InstanceSink& to) -> InstanceSink {
              return world.spawn<InstanceSinkLink>(to, &options.link_faults);
            }};
  }

  std::shared_ptr<const NodeMakers> make_makers() {
    NodeMakers made{.make_engine = [this](InstanceId id) -> Result<std::shared_ptr<Engine>> {
                      if (options.engine_fault) SEER_RETURN_IF_ERROR(options.engine_fault(id));
                      return make_engine(id);
                    },
                    .make_arena = {},
                    .open_cold = {},
                    .make_drafting = {},
                    .aside = [this](std::function<void()> f) { world.after(options.remake_us, std::move(f)); }};
    made.loader = options.loader;
    if (all_nodes() > 1) made.transport = transport;
    if (options.draft_tokens_max > 0) made.make_drafting = [this](InstanceId) -> Result<Drafting> { return make_drafting(); };
    if (options.dram_blocks > 0)
      made.make_arena = [this](NodeId id) -> Result<std::shared_ptr<HostArena>> {
        if (options.arena_fault) SEER_RETURN_IF_ERROR(options.arena_fault(id));
        SEER_ASSIGN_OR_RETURN(arena, HostArena::create({.dram_bytes = options.dram_blocks * ((block_bytes() + 63) / 64 * 64),
                                                        .block_bytes = block_bytes()}));
        return arena;
      };
    if (options.cold_blocks > 0)
      made.open_cold = [this](NodeId) -> Result<std::unique_ptr<ColdStore>> {
        auto store = std::make_unique<SimColdStore>(
            SimColdStoreConfig{.capacity_bytes = options.cold_blocks * block_bytes()},
            [this](int64_t us, std::function<void()> f) { world.after(us, std::move(f)); }, options.cold_faults);
        cold = store.get();
        return std::unique_ptr<ColdStore>(std::move(store));
      };
    return std::make_shared<const NodeMakers>(std::move(made));
  }

  Drafting make_drafting() {
    // Rows cost next to nothing, so the budget drafts as much as allowed.
    const auto step_ns = [](const StepShape& shape) { return 1e6 + static_cast<double>(shape.rows); };
    const int64_t tree_max = options.draft_trees ? options.draft_tokens_max : 0;
    const DraftBudgetConfig budget{.rows_max = {options.draft_tokens_max, tree_max}, .draft_ns = 0};
    if (options.draft_from_group)
      return {std::make_shared<GroupDrafter>(GroupDrafterConfig{}), budget, step_ns, {.sync_us = kDraftSyncUs}, {}};
    const auto token_of = [this](RequestId request, int64_t position) {
      if (!options.has_kv) return kEos + 1;
      const uint64_t seed = sample_seed(kRunSeed, request.group.index, request.sample);
      const int32_t right = token(seed, position);
      return hash_pair(seed, static_cast<uint64_t>(position) + 99) % 3 == 0 ? 2 + right % (kVocab - 2) : right;
    };
    const auto fill = [token_of](RequestId request, int64_t position, std::span<int32_t> tokens) {
      for (int32_t& token : tokens) token = token_of(request, position++);
    };
    return {std::make_shared<SimDrafter>(SimDrafts{.fill = fill}), budget, step_ns, {}, {}};
  }

  int64_t block_bytes() const { return kSimTokenBytes * options.block_tokens; }

  std::shared_ptr<Engine> make_engine(InstanceId id) {
    const uint64_t rank = 1 + id.value;
    SimEngineConfig config;
    config.info = {.model = "sim", .vocab_size = kVocab, .context_tokens_max = 1 << 20, .eos_ids = {kEos},
                   .block_tokens = options.block_tokens, .block_bytes = block_bytes(),
                   .device_blocks = options.device_blocks, .kv_layout = 7, .kv_hash = 7};
    config.info.steps_max = options.steps_max;
    config.has_kv = options.has_kv;
    config.last_position = [this](uint64_t seed) { return last_position(seed); };
    config.accepted = [](uint64_t seed, int64_t position, int64_t draft_tokens, std::span<int32_t> accepted) {
      for (int32_t& tokens : accepted) {
        tokens = static_cast<int32_t>(hash_pair(seed, static_cast<uint64_t>(position)) % 4 % static_cast<uint64_t>(draft_tokens + 1));
        position += 1 + tokens;
      }
    };
    config.on_steps = [this, rank](const StepShape& shape, int64_t, int64_t steps) {
      steps_at_once_peak = std::max(steps_at_once_peak, steps);
      note_event(hash_pair(rank, hash_pair(static_cast<uint64_t>(shape.rows), static_cast<uint64_t>(shape.kv_tokens))));
    };
    config.step_ns = [this, id, base = SimEngineConfig{}](const StepShape& shape) {
      const int64_t ns = options.step_ns ? options.step_ns(shape) : 1000 * (base.step_us_base + base.step_us_row * shape.rows);
      return ns * slowness[id.value];
    };
    engines_peak = std::max(engines_peak, ++engines_now);
    auto count = std::shared_ptr<void>(nullptr, [this](void*) { --engines_now; });  // lives as long as the engine
    auto engine = std::make_shared<SimEngine>(
        config,
        [this, count](uint64_t seed, int64_t position, std::span<SampledToken> sampled) {
          for (SampledToken& next : sampled) next.token = token(seed, position++);
        },
        [this, rank](int64_t ns, std::function<void()> f) { world.after_ns(ns, std::move(f), rank); },
        SimEngine::Clock{[this] { return world.now_ns(); }, [this, rank] { return world.fired_ns(rank); }});
    return options.wrap_engine ? options.wrap_engine(std::move(engine)) : std::move(engine);
  }

  int64_t last_position(uint64_t seed) const {
    const Shape& shape = shapes.at(seed);
    return shape.prompt_tokens + shape.output_tokens - 1;
  }
  int32_t token(uint64_t seed, int64_t position) const {
    if (position == last_position(seed)) return kEos;
    const auto drawn = static_cast<double>(hash_pair(seed, static_cast<uint64_t>(position) + 7) >> 11) * 0x1p-53;
    if (drawn < options.alike_share) seed = hash_pair(shapes.at(seed).group, 77);
    return 2 + static_cast<int32_t>(hash_pair(seed, static_cast<uint64_t>(position)) % (kVocab - 2));
  }

  void make_groups() {
    const auto drawn_length = [this](uint64_t seed) {
      return 1 + static_cast<int64_t>(mix64(seed ^ 77) % static_cast<uint64_t>(options.length_max));
    };
    const auto count = options.work.empty() ? options.groups : static_cast<uint32_t>(options.work.size());
    for (uint32_t g = 0; g < count; ++g) {
      const SimGroup* given = options.work.empty() ? nullptr : &options.work[g];
      const int64_t prompt_tokens = given ? given->prompt_tokens : options.prompt_tokens;
      GroupSpec group{.id = GroupId{g}, .prompt_ids = {}, .samples = options.samples, .sampling = {}, .seeds = {}, .known_tokens = {}};
      if (given) group.samples = static_cast<uint32_t>(given->output_tokens.size());
      for (int64_t i = 0; i < prompt_tokens; ++i)
        group.prompt_ids.push_back(2 + static_cast<int32_t>(hash_pair(g, static_cast<uint64_t>(i)) % (kVocab - 2)));
      group.sampling.max_tokens = options.length_max;
      for (uint32_t s = 0; s < group.samples; ++s) {
        const uint64_t seed = sample_seed(kRunSeed, g, s);
        group.seeds.push_back(seed);
        group.known_tokens.push_back(given ? given->output_tokens[s] : drawn_length(seed));
        shapes[seed] = {prompt_tokens, group.known_tokens.back(), g};
      }
      requests += group.samples;
      groups.push_back(std::move(group));
    }
  }

  /// Starts the rollout without running it.
  void start() {
    const RolloutEvents events = collect_events(world, seen, true);
    RolloutConfig config;
    config.scheduler = options.scheduler;
    config.instances_expected = options.instances;
    config.chunk_silence_us = options.chunk_silence_us;
    config.draft_ttl_us = kDraftTtlUs;
    fleet.start_rollout(config, {groups, pasts()}, events);
  }

  std::vector<CstPast> pasts() const {
    std::vector<CstPast> pasts;
    for (const GroupSpec& group : groups) {
      if (!options.draft_past) break;
      pasts.push_back({group.id, {}});
      for (uint32_t s = 0; s < group.samples; ++s) pasts.back().responses.push_back(answer({group.id, s}).ids);
    }
    return pasts;
  }

  bool over() const { return seen.over(); }
  /// Runs until the summary is there or `until_us` has passed.
  void finish(int64_t until_us = 600'000'000) {
    world.run_until(until_us, [this] { return over(); });
  }
  void run() {
    start();
    finish();
  }
  /// Runs for `us` more.
  void run_for(int64_t us) { world.run_until(world.now_us() + us); }

  // The parts, as they are now. REQUIRES: the world has run.
  NodeHandle node(uint32_t n = 0) const { return fleet.node(NodeId{n}); }
  NodeActor& node_state(uint32_t n = 0) { return rt::look<NodeActor>(node(n)); }
  const KvDirectoryHandle& directory() const { return fleet.directory(); }
  InstanceHandle instance(uint32_t id) { return node_state(id % options.nodes).instances.at(InstanceId{id}).handle; }
  InstanceActor& instance_state(uint32_t id) { return rt::look<InstanceActor>(instance(id)); }
  KvNodeHandle kv_node(uint32_t n = 0) { return node_state(n).kv_node; }
  KvNodeActor& kv_node_state(uint32_t n = 0) { return rt::look<KvNodeActor>(kv_node(n)); }
  void kill_instance(InstanceId id) { rt::kill(instance(id.value)); }
  void kill_kv_node(uint32_t n = 0) { rt::kill(kv_node(n)); }
  DraftServerHandle draft_server(uint32_t n = 0) { return node_state(n).draft_server; }
  DraftServerActor& draft_server_state(uint32_t n = 0) { return rt::look<DraftServerActor>(draft_server(n)); }
  void kill_draft_server(uint32_t n = 0) { rt::kill(draft_server(n)); }
  bool is_up(uint32_t n) const { return node(n) != nullptr; }
  /// Kills the machine with all that runs there; it comes back empty after down_us. REQUIRES: it is up.
  void crash_node(uint32_t n, int64_t down_us) {
    rt::kill(node(n));
    fleet.remove_node(NodeId{n});
    world.after(down_us, [this, n] {
      (void)fleet.start_node(config_of(NodeId{n}), makers);  // one that cannot start stays down
    });
  }
  /// Kills the directory; after down_us another one replaces it. REQUIRES: it is up.
  void crash_directory(int64_t down_us) {
    rt::kill(directory());
    directory_is_up = false;
    world.after(down_us, [this] {
      directory_is_up = true;
      fleet.use_directory(world.spawn<KvDirectoryActor>());
    });
  }
  int64_t fetched_blocks() {
    int64_t blocks = 0;
    for (uint32_t n = 0; n < all_nodes(); ++n) blocks += kv_node_state(n).fetched_blocks;
    return blocks;
  }
  /// Blocks that moved to other nodes for lack of room.
  int64_t moved_blocks() {
    int64_t blocks = 0;
    for (uint32_t n = 0; n < all_nodes(); ++n) blocks += kv_node_state(n).tiers->stats().moved_blocks;
    return blocks;
  }

  /// The right answer to one request, whatever happens.
  OutputTokens answer(RequestId id) const { return answer(groups[id.group.index], id.sample); }
  OutputTokens answer(const GroupSpec& group, uint32_t sample) const {
    const uint64_t seed = group.seeds[sample];
    const Shape& shape = shapes.at(seed);
    OutputTokens a;
    PrefixHash prefix = extend_prefix({}, group.prompt_ids);
    for (int64_t i = 0; i < shape.output_tokens; ++i) {
      a.ids.push_back(token(seed, shape.prompt_tokens + i));
      a.logprobs.push_back(-1.0f - static_cast<float>(prefix.hi & 0xffff) / 65536.0f);
      prefix = extend_prefix(prefix, std::span(&a.ids.back(), 1));
    }
    return a;
  }

  /// Checks that every request was answered exactly once, with the right tokens and log-probabilities. Errors: kUnavailable,
  /// kCorrupt, with a sentence.
  Status exact() const {
    if (!over()) return fail(Code::kUnavailable, "the rollout did not end");
    const RolloutSummary& summary = seen.summaries[0];
    if (!summary.complete) return fail(Code::kUnavailable, "the rollout ended early: ", summary.error);
    if (seen.summaries.size() > 1) return fail(Code::kCorrupt, "the rollout ended twice");
    std::set<RequestId> answered;
    for (const Response& r : seen.responses) {
      if (!answered.insert(r.request).second) return fail(Code::kCorrupt, "request ", r.request, " was answered twice");
      const OutputTokens right = answer(r.request);
      if (r.output.ids != right.ids) return fail(Code::kCorrupt, "request ", r.request, " has wrong tokens");
      if (r.output.logprobs != right.logprobs)
        return fail(Code::kCorrupt, "request ", r.request, " has wrong log-probabilities: its KV was not right");
      if (r.finish != FinishReason::kStop && std::ssize(r.output.ids) < options.length_max)
        return fail(Code::kCorrupt, "request ", r.request, " ended by ", to_string(r.finish));
    }
    if (answered.size() < requests)
      return fail(Code::kCorrupt, requests - answered.size(), " of ", requests, " requests were not answered");
    return {};
  }

  /// Checks that every grant, lease and kept block was returned. REQUIRES: the rollout is complete, and some time has passed
  /// since. Errors: kFull, saying who still holds what.
  Status drained() {
    for (uint32_t i = 0; i < options.instances; ++i) {
      InstanceActor& s = instance_state(i);
      const size_t held = static_cast<size_t>(s.devices.counts().in_use) + s.sequences.size() + s.kv.open_count() +
                          s.engine.open_count();
      if (held > 0) return fail(Code::kFull, "instance ", i, " still has work or KV blocks after the end");
    }
    for (uint32_t n = 0; options.draft_servers && n < options.nodes; ++n)
      if (const size_t left = draft_server_state(n).logs.group_count(); left > 0)
        return fail(Code::kFull, "the draft server of node ", n, " still has ", left, " groups after the end");
    if (options.dram_blocks == 0) return {};
    for (uint32_t n = 0; n < all_nodes(); ++n) {
      KvNodeActor& pool = kv_node_state(n);
      pool.tiers->check_invariants();
      if (!pool.tiers->is_drained()) return fail(Code::kFull, "the KV tiers of node ", n, " are not empty after the end");
      if (const auto slots = pool.parts.arena->taken_count(); slots > 0)
        return fail(Code::kFull, "node ", n, " still has ", slots, " DRAM blocks after the end");
      if (const int64_t bytes = pool.tiers->cold_stats().used_bytes; bytes > 0)
        return fail(Code::kFull, "the cold tier of node ", n, " still has ", bytes, " bytes after the end");
      if (pool.parked.size() + pool.kept.size() + pool.pulls.size() + pool.writes.size() + pool.leases.size() + pool.moves.size() > 0)
        return fail(Code::kFull, "node ", n, " still has reservations, owners, pulls, leases or moves after the end");
    }
    if (!rt::look<KvDirectoryActor>(directory()).holders.empty())
      return fail(Code::kFull, "the directory still knows of owners after the end");
    return {};
  }

  /// A hash of all steps and responses so far, with their times.
  uint64_t events_hash() const { return hash_pair(steps_hash, seen.hash); }
  void note_event(uint64_t what) { steps_hash = hash_pair(steps_hash, hash_pair(static_cast<uint64_t>(world.now_ns()), what)); }

  SimClusterOptions options;
  std::vector<GroupSpec> groups;
  size_t requests = 0;
  struct Shape {
    int64_t prompt_tokens, output_tokens;
    uint64_t group;
  };
  std::unordered_map<uint64_t, Shape> shapes;  // by seed of the response
  bool directory_is_up = true;
  std::vector<int64_t> slowness;               // by instance: factor on the time of its steps
  uint64_t steps_hash = 0;
  int64_t steps_at_once_peak = 0;
  int engines_now = 0, engines_peak = 0;
  SimWorld world;
  SimEvents seen;
  std::shared_ptr<SimTransport> transport;
  std::shared_ptr<const NodeMakers> makers;
  Fleet fleet{world.system, fleet_links(), options.log};
  std::shared_ptr<HostArena> arena;
  SimColdStore* cold = nullptr;
};

}  // namespace seer
