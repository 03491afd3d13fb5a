#include "actors/sim/sim_cluster.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "actors/policy/draft/group_drafter.h"
#include "actors/sim/sim_drafter.h"
#include "protocols/hash.h"

namespace seer {

SimCluster::SimCluster(SimClusterOptions o) : options(std::move(o)), world(options.seed) {
  make_groups();
  transport = std::make_shared<SimTransport>(
      SimTransportConfig{.fault = [this](const RemoteSlot&) -> std::optional<Code> {
        return options.transfer_fault ? options.transfer_fault() : std::nullopt;
      }, .late_us = options.transfer_late_us},
      [this](int64_t us, std::function<void()> f) { world.after(us, std::move(f)); });
  slowness.resize(options.instances, 1);
  makers = make_makers();
  if (options.joins_cluster) return;
  Status started = fleet.start_nodes(fleet_config(), makers);
  for (uint32_t n = options.nodes; started.ok() && n < all_nodes(); ++n) started = fleet.start_node(config_of(NodeId{n}), makers);
  SEER_CHECK(started.ok(), started.error());
}

FleetConfig SimCluster::fleet_config() const {
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

NodeConfig SimCluster::config_of(NodeId id) const {
  NodeConfig config = node_config(fleet_config(), id);
  for (InstanceConfig& instance : config.instances) instance.id = name_of(instance.id.value);
  if (id.value < options.nodes) return config;
  config.instances.clear();
  config.draft_server.reset();
  config.kv_node.identity = {.model = "sim", .kv_layout = 7, .version = {}};
  return config;
}

FleetLinks SimCluster::fleet_links() {
  if (!options.has_links) return {};
  return {.to_directory =
              [this](const KvDirectoryHandle& to) { return world.spawn<DirectoryLink>(to, &options.link_faults); },
          .to_rollout = [this](const InstanceSink& to) -> InstanceSink {
            return world.spawn<InstanceSinkLink>(to, &options.link_faults);
          }};
}

std::shared_ptr<const NodeMakers> SimCluster::make_makers() {
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

Drafting SimCluster::make_drafting() {
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

std::shared_ptr<Engine> SimCluster::make_engine(InstanceId id) {
  const uint32_t index = index_of(id);
  const uint64_t rank = 1 + index;
  SimEngineConfig config;
  config.info = {.model = "sim", .vocab_size = kVocab, .context_tokens_max = 1 << 20, .eos_ids = {kEos},
                 .block_tokens = options.block_tokens, .block_bytes = block_bytes(),
                 .device_blocks = options.device_blocks, .kv_layout = 7, .kv_hash = 7};
  config.info.steps_max = options.steps_max;
  config.has_kv = options.has_kv;
  config.stage_fault = options.weights_fault;
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
  config.step_ns = [this, index, base = SimEngineConfig{}](const StepShape& shape) {
    const int64_t ns = options.step_ns ? options.step_ns(shape) : 1000 * (base.step_us_base + base.step_us_row * shape.rows);
    return ns * slowness[index];
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

int32_t SimCluster::token(uint64_t seed, int64_t position) const {
  if (position == last_position(seed)) return kEos;
  const auto drawn = static_cast<double>(hash_pair(seed, static_cast<uint64_t>(position) + 7) >> 11) * 0x1p-53;
  if (drawn < options.alike_share) seed = hash_pair(shapes.at(seed).group, 77);
  return 2 + static_cast<int32_t>(hash_pair(seed, static_cast<uint64_t>(position)) % (kVocab - 2));
}

void SimCluster::make_groups() {
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
    group.streams = options.streams;
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

void SimCluster::start() {
  seen.are_streams = options.streams;
  const RolloutEvents events = collect_events(world, seen, true);
  RolloutConfig config;
  config.scheduler = options.scheduler;
  config.instances_expected = options.instances;
  config.chunk_silence_us = options.chunk_silence_us;
  config.machines_may_join = options.machines_may_join;
  config.draft_ttl_us = kDraftTtlUs;
  fleet.start_rollout(config, {groups, pasts()}, events);
}

std::vector<CstPast> SimCluster::pasts() const {
  std::vector<CstPast> pasts;
  for (const GroupSpec& group : groups) {
    if (!options.draft_past) break;
    pasts.push_back({group.id, {}});
    for (uint32_t s = 0; s < group.samples; ++s) pasts.back().responses.push_back(answer({group.id, s}).ids);
  }
  return pasts;
}

void SimCluster::crash_node(uint32_t n, int64_t down_us) {
  rt::kill(node(n));
  fleet.remove_node(NodeId{n});
  start_again(n, down_us);
}

void SimCluster::drain_node(uint32_t n, int64_t timeout_us, int64_t down_us) {
  rt::post(node(n), DrainNode{timeout_us});
  world.when_over(node(n), [this, n, down_us, leaving = node(n)](const rt::down&) {
    if (node(n) != leaving) return;  // it crashed before
    std::vector<InstanceId> instances;
    for (const InstanceConfig& instance : config_of(NodeId{n}).instances) instances.push_back(instance.id);
    fleet.lose_node({NodeId{n}, std::move(instances), {}});
    start_again(n, down_us);
  });
}

void SimCluster::start_again(uint32_t n, int64_t down_us) {
  world.after(down_us, [this, n] {
    (void)fleet.start_node(config_of(NodeId{n}), makers);  // one that cannot start stays down
  });
}

void SimCluster::cancel(RequestId request) {
  cancelled.insert(request);
  rt::post(fleet.rollout(), CancelRequest{request});
}

void SimCluster::cancel(GroupId group) {
  for (uint32_t sample = 0; sample < groups[group.index].samples; ++sample) cancelled.insert({group, sample});
  rt::post(fleet.rollout(), CancelGroup{group});
}

void SimCluster::crash_directory(int64_t down_us) {
  rt::kill(directory());
  directory_is_up = false;
  world.after(down_us, [this] {
    directory_is_up = true;
    fleet.use_directory(world.spawn<KvDirectoryActor>());
  });
}

int64_t SimCluster::fetched_blocks() {
  int64_t blocks = 0;
  for (uint32_t n = 0; n < all_nodes(); ++n) blocks += kv_node_state(n).pulls.fetched_blocks();
  return blocks;
}

int64_t SimCluster::moved_blocks() {
  int64_t blocks = 0;
  for (uint32_t n = 0; n < all_nodes(); ++n) blocks += kv_node_state(n).tiers->stats().moved_blocks;
  return blocks;
}

OutputTokens SimCluster::answer(const GroupSpec& group, uint32_t sample, WeightVersion version) const {
  const uint64_t seed = group.seeds[sample];
  const Shape& shape = shapes.at(seed);
  OutputTokens a;
  const PrefixHash root = version == WeightVersion{1} ? PrefixHash{} : SimEngine::root_of(version);
  PrefixHash prefix = extend_prefix(root, group.prompt_ids);
  for (int64_t i = 0; i < shape.output_tokens; ++i) {
    a.ids.push_back(token(seed, shape.prompt_tokens + i));
    a.logprobs.push_back(-1.0f - static_cast<float>(prefix.hi & 0xffff) / 65536.0f);
    prefix = extend_prefix(prefix, std::span(&a.ids.back(), 1));
  }
  return a;
}

Status SimCluster::exact() const {
  if (!over()) return fail(Code::kUnavailable, "the rollout did not end");
  const RolloutSummary& summary = seen.summaries[0];
  if (!summary.complete) return fail(Code::kUnavailable, "the rollout ended early: ", summary.error);
  if (seen.summaries.size() > 1) return fail(Code::kCorrupt, "the rollout ended twice");
  std::set<RequestId> answered;
  for (const Response& r : seen.responses) {
    if (!answered.insert(r.request).second) return fail(Code::kCorrupt, "request ", r.request, " was answered twice");
    SEER_RETURN_IF_ERROR(check(r));
  }
  if (!seen.untold.empty()) return fail(Code::kCorrupt, "request ", *seen.untold.begin(), " told other tokens than its response has");
  if (answered.size() < requests)
    return fail(Code::kCorrupt, requests - answered.size(), " of ", requests, " requests were not answered");
  return {};
}

Status SimCluster::check(const Response& r) const {
  OutputTokens right = answer(r.request);
  const bool was_cut = r.finish == FinishReason::kAborted && cancelled.contains(r.request) && r.output.size() <= right.size();
  if (was_cut) right.cut(r.output.size());
  if (r.output.ids != right.ids) return fail(Code::kCorrupt, "request ", r.request, " has wrong tokens");
  if (r.output.logprobs != right.logprobs)
    return fail(Code::kCorrupt, "request ", r.request, " has wrong log-probabilities: its KV was not right");
  if (r.finish != FinishReason::kStop && !was_cut && std::ssize(r.output.ids) < options.length_max)
    return fail(Code::kCorrupt, "request ", r.request, " ended by ", to_string(r.finish));
  return {};
}

Status SimCluster::drained() {
  for (uint32_t i = 0; i < options.instances; ++i) {
    if (!instance(i)) continue;  // lost for good
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
    if (pool.parked.size() + pool.owners.size() + pool.pulls.size() + pool.writes.size() + pool.leases.size() + pool.guests.leaving_count() > 0)
      return fail(Code::kFull, "node ", n, " still has reservations, owners, pulls, leases or moves after the end");
  }
  if (!rt::look<KvDirectoryActor>(directory()).holders.empty())
    return fail(Code::kFull, "the directory still knows of owners after the end");
  return {};
}

}  // namespace seer
