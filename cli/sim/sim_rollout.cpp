#include "cli/sim/sim_rollout.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "actors/fleet.h"
#include "actors/sim/sim_drafter.h"
#include "actors/sim/sim_events.h"
#include "actors/sim/sim_world.h"
#include "gpu/sim/sim_engine.h"
#include "protocols/hash.h"
#include "storage/sim_cold_store.h"
#include "storage/sim_transport.h"

namespace seer {
namespace {

constexpr int32_t kEos = 1, kFirstPromptToken = 2;
constexpr int32_t kFirstOutputToken = 1 << 29;
constexpr int32_t kVocab = 1 << 30;     // enough to give every prompt and every response a different token
constexpr int64_t kSimBlockBytes = 64;  // size of a block in the simulated pool, instead of its real bytes
constexpr int64_t kProgressUs = 10'000'000;
constexpr int64_t kNever = int64_t{1} << 60;  // us

/// The mean of the largest 5 %, rounded up.
double mean_of_largest(std::vector<double> values) {
  std::ranges::sort(values);
  const auto last = std::span(values).last((values.size() + 19) / 20);
  return std::accumulate(last.begin(), last.end(), 0.0) / static_cast<double>(last.size());
}

int64_t longest_prompt(const SimWork& work) {
  int64_t longest = 0;
  for (const GroupLengths& group : work.groups) longest = std::max(longest, group.prompt_tokens);
  return longest;
}

uint64_t seed_of(size_t group, size_t sample) { return static_cast<uint64_t>(group) << 32 | sample; }

/// The token that a response repeats, except at its end and where it shares tokens with another response. It differs between
/// responses: equal tokens would mean equal KV blocks, which instances and pool keep only once.
int32_t token_of(uint64_t seed) { return kFirstOutputToken | static_cast<int32_t>(mix64(seed) % kFirstOutputToken); }

/// Draws how many draft tokens are accepted.
class AcceptanceDraw {
 public:
  AcceptanceDraw(const SimWork& work, const SimDrafting& drafting)
      : work_(work), grouped_(drafting.grouped), tokens_max_(static_cast<size_t>(std::ranges::max(drafting.budget.rows_max))) {
    size_t members = 1;
    for (const GroupLengths& group : work.groups) {
      const size_t size = group.output_tokens.size();
      groups_.push_back({std::vector<int32_t>(size), std::vector<int32_t>(size * size), std::vector<Known>(size)});
      members = std::max(members, size);
    }
    for (size_t i = 0; i <= kPerReference * members; ++i) {
      const double each = drafting.acceptance.token_acceptance(static_cast<double>(i) / kPerReference);
      for (size_t tokens = 1; tokens <= tokens_max_; ++tokens) probabilities_.push_back(tokens == 1 ? each : probabilities_.back() * each);
    }
  }
  /// The response has `generated` tokens; from now on its drafts are made from what its group has reported so far.
  void learn(RequestId request, int64_t generated) {
    Group& group = groups_[request.group.index];
    group.generated[request.sample] = static_cast<int32_t>(generated);
    group.note(request.sample);
  }
  /// The first draft for a response.
  void begin(RequestId request) {
    Group& group = groups_[request.group.index];
    if (!group.known[request.sample].begun) group.note(request.sample);
  }
  /// How many tokens of a draft are likely enough to be accepted together with those before them, judged by what was known at
  /// the response's last report.
  int64_t likely_tokens(RequestId request, const DraftLimits& limits) const {
    const Group& group = groups_[request.group.index];
    const int64_t own = std::max<int64_t>(1, group.generated[request.sample]);
    const double* probability = probabilities_at(grouped_ ? group.references(request.sample, own).times : 0);
    int64_t tokens = 0;
    while (tokens < limits.max_tokens && probability[tokens] >= limits.min_probability) ++tokens;
    return tokens;
  }
  /// Says which drafts are accepted (SimEngineConfig::accepted).
  void draw(uint64_t seed, int64_t position, int64_t draft_tokens, std::span<int32_t> accepted) const {
    const size_t group = seed >> 32, sample = static_cast<uint32_t>(seed);
    References references;
    if (!grouped_) references.below = std::numeric_limits<int64_t>::max();
    for (int32_t& tokens : accepted) {
      const int64_t own = std::max<int64_t>(1, position + 1 - work_.groups[group].prompt_tokens);
      if (own >= references.below) references = groups_[group].references(sample, own);
      const double* probability = probabilities_at(references.times);
      const double u = static_cast<double>(hash_pair(seed, static_cast<uint64_t>(position)) >> 11) * 0x1p-53;
      // Compare a few at a time, without a branch for each: more are seldom accepted.
      int64_t count = 0;
      for (int64_t first = 0; count == first && first < draft_tokens; first += kTogether)
        for (int64_t i = first; i < std::min(first + kTogether, draft_tokens); ++i) count += u < probability[i] ? 1 : 0;
      tokens = static_cast<int32_t>(count);
      position += 1 + count;
    }
  }

 private:
  static constexpr size_t kPerReference = 16;  // finer makes no difference
  static constexpr int64_t kTogether = 4;

  struct References {
    size_t times = 0;   // references x kPerReference
    int64_t below = 0;  // holds for own lengths below this
  };

  /// What a response's drafter knows about its group.
  struct Known {
    bool begun = false;
    // Sums over the other responses. They hold for own lengths in [from, below), where the same others are longer.
    mutable int64_t from = 0, below = 0;
    mutable int64_t shorter_tokens = 0, longer = 0;

    void compare(std::span<const int32_t> generated, size_t of, int64_t own) const {
      from = shorter_tokens = longer = 0;
      below = std::numeric_limits<int64_t>::max();
      for (size_t i = 0; i < generated.size(); ++i) {
        if (i == of) continue;
        if (generated[i] <= own) {
          from = std::max<int64_t>(from, generated[i]);
          shorter_tokens += generated[i];
        } else {
          below = std::min<int64_t>(below, generated[i]);
          ++longer;
        }
      }
    }
  };

  struct Group {
    std::vector<int32_t> generated;  // tokens of each response, as reported
    std::vector<int32_t> noted;      // [response]: `generated` at that response's last report, so that steps done at once
                                     // know no more than single ones
    std::vector<Known> known;

    void note(size_t sample) {
      std::ranges::copy(generated, noted.begin() + static_cast<ptrdiff_t>(sample * generated.size()));
      known[sample] = {.begun = true};
    }
    References references(size_t of, int64_t own) const {
      const Known& k = known[of];
      if (own < k.from || own >= k.below) k.compare(std::span(noted).subspan(of * generated.size(), generated.size()), of, own);
      const int64_t shorter = k.shorter_tokens * static_cast<int64_t>(kPerReference), by_shorter = shorter / own;
      return {static_cast<size_t>(k.longer) * kPerReference + static_cast<size_t>(by_shorter),
              by_shorter > 0 ? std::min(k.below, shorter / by_shorter + 1) : k.below};
    }
  };

  /// The probabilities that the first draft token is accepted, that the first two are, ...
  const double* probabilities_at(size_t references) const { return &probabilities_[references * tokens_max_]; }

  const SimWork& work_;
  const bool grouped_;
  const size_t tokens_max_;
  std::vector<double> probabilities_;  // [references][tokens - 1]
  std::vector<Group> groups_;
};

/// Time of a step, with the passes that made its drafts. Sequences draft alike, so there are as many passes as draft rows per
/// sequence.
int64_t step_with_drafting_ns(const ClusterModel& cluster, const std::optional<SimDrafting>& drafting, const StepShape& shape) {
  const int64_t rows = shape.sampled_rows - shape.sequences;
  const int64_t ns = cluster.step_ns(shape);
  if (!drafting || !drafting->pass_ns || rows <= 0) return ns;
  const StepShape decode{shape.sequences, shape.sequences, shape.sequences, shape.kv_tokens - rows, shape.kv_tokens - rows};
  return ns + std::llround(static_cast<double>(drafting->pass_ns(decode)) * static_cast<double>(rows) / static_cast<double>(shape.sequences));
}

int64_t longest_request(const SimWork& work) {
  return work.context_tokens_max > 0 ? work.context_tokens_max : longest_prompt(work) + work.max_gen;
}

/// Blocks for the KV of all requests, with room to spare. A larger pool would only waste memory.
int64_t pool_blocks_max(const SimWork& work, int64_t block_tokens) {
  int64_t blocks = 1024;
  for (const GroupLengths& group : work.groups)
    for (const int64_t tokens : group.output_tokens) blocks += 2 * ((group.prompt_tokens + tokens) / block_tokens + 2);
  return blocks;
}

/// Whether two responses share a whole block after the prompt. A request that starts on the device can use such a block from the
/// step after the one that filled it, so steps must then be done one by one.
bool blocks_repeat(const SimWork& work, int64_t block_tokens) {
  const auto repeats = [&](const GroupLengths& group) {
    return std::ranges::any_of(group.shared, [&](const SharedBeginning& shared) {
      return (group.prompt_tokens + shared.tokens) / block_tokens > group.prompt_tokens / block_tokens;
    });
  };
  return std::ranges::any_of(work.groups, repeats);
}

std::vector<GroupSpec> make_groups(const SimWork& work) {
  std::vector<GroupSpec> groups;
  for (size_t g = 0; g < work.groups.size(); ++g) {
    GroupSpec group;
    group.id = GroupId{static_cast<uint32_t>(g)};
    const GroupLengths& lengths = work.groups[g];
    group.prompt_ids.assign(static_cast<size_t>(lengths.prompt_tokens), kFirstPromptToken + static_cast<int32_t>(g));
    group.samples = static_cast<uint32_t>(lengths.output_tokens.size());
    group.sampling.max_tokens = std::min(work.max_gen, longest_request(work) - lengths.prompt_tokens);
    group.sampling.logprob_mode = LogprobMode::kNone;
    for (size_t s = 0; s < lengths.output_tokens.size(); ++s) group.seeds.push_back(seed_of(g, s));
    group.known_tokens = lengths.output_tokens;
    groups.push_back(std::move(group));
  }
  return groups;
}

/// Wires a run. Fleet, transport and world are destroyed first, because their actors refer to the rest.
struct SimRollout {
  const ClusterModel& cluster;
  const SimWork& work;
  std::optional<SimDrafting> drafting;
  const int64_t steps_at_once;
  std::optional<AcceptanceDraw> acceptance;
  std::vector<TimelineRecorder> timelines;
  std::vector<int64_t> last_positions;  // of each response, group after group, in one list because all steps read them
  std::vector<size_t> first_of_group;   // index of its first response
  std::vector<int64_t> batch_ns;        // of each response, in running batches
  std::vector<StepsTaken> steps_taken;
  uint64_t steps_hash = 0;
  SimEvents events;
  SimWorld world;
  std::shared_ptr<SimTransport> transport;
  std::optional<Fleet> fleet;

  SimRollout(const ClusterModel& cluster_in, const SimWork& work_in, const std::optional<SimDrafting>& drafting_in)
      : cluster(cluster_in),
        work(work_in),
        drafting(drafting_in),
        steps_at_once(blocks_repeat(work_in, cluster_in.block_tokens) ? 1 : cluster_in.steps_at_once),
        timelines(static_cast<size_t>(cluster_in.instances)) {
    if (drafting) acceptance.emplace(work, *drafting);
    for (const GroupLengths& group : work.groups) {
      first_of_group.push_back(last_positions.size());
      for (const int64_t tokens : group.output_tokens) last_positions.push_back(group.prompt_tokens + tokens - 1);
    }
    batch_ns.resize(last_positions.size());
    SimTransportConfig network;
    network.latency_us = cluster.latency_us;
    network.bytes_per_s = scaled(cluster.nic_bytes_per_s);
    if (cluster.shares_links) network.now_us = [this] { return world.now_ns() / 1000; };
    transport = std::make_shared<SimTransport>(
        network, [this](int64_t us, std::function<void()> f) { world.after(us, std::move(f)); });
  }

  /// Bytes, or bytes per second, of the simulated pool: its blocks are smaller than real ones, so both are scaled down by the same
  /// factor.
  int64_t scaled(int64_t bytes) const {
    const double block_bytes = static_cast<double>(cluster.kv_bytes_per_token * cluster.block_tokens);
    return std::max<int64_t>(1, std::llround(static_cast<double>(bytes) * kSimBlockBytes / std::max(1.0, block_bytes)));
  }

  size_t index_of(uint64_t seed) const { return first_of_group[seed >> 32] + static_cast<uint32_t>(seed); }
  int64_t last_position(uint64_t seed) const { return last_positions[index_of(seed)]; }

  void sample(uint64_t seed, int64_t position, std::span<SampledToken> sampled) const {
    const size_t group = seed >> 32;
    const GroupLengths& lengths = work.groups[group];
    const auto own = static_cast<uint32_t>(seed);
    const int32_t token = token_of(seed);
    for (SampledToken& next : sampled) next.token = token;
    for (size_t i = 0; i < sampled.size() && !lengths.shared.empty(); ++i) {
      const int64_t index = position - lengths.prompt_tokens + static_cast<int64_t>(i);
      size_t by = own;
      while (index < lengths.shared[by].tokens) by = lengths.shared[by].sample;
      if (by == own) break;  // from here on its tokens are its own
      sampled[i].token = token_of(seed_of(group, by));
    }
    const int64_t last = last_position(seed) - position;
    if (last >= 0 && last < std::ssize(sampled)) sampled[static_cast<size_t>(last)].token = kEos;
  }

  std::shared_ptr<Engine> make_engine(InstanceId id) {
    SimEngineConfig config;
    config.info.model = "sim";
    config.info.vocab_size = kVocab;
    config.info.context_tokens_max = longest_request(work) + 1;
    config.info.eos_ids = {kEos};
    config.info.block_tokens = static_cast<uint32_t>(cluster.block_tokens);
    config.info.block_bytes = kSimBlockBytes;
    config.info.device_blocks = static_cast<int32_t>(cluster.kv_tokens / cluster.block_tokens);
    config.info.queue_max = std::numeric_limits<size_t>::max();  // copies run beside the steps: none waits for a slot
    config.info.steps_max = static_cast<int32_t>(steps_at_once);
    config.copy_us_block = cluster.copy_us_block;
    config.has_kv = false;
    config.step_ns = [this](const StepShape& shape) { return step_with_drafting_ns(cluster, drafting, shape); };
    if (drafting) {
      config.draft_ns = std::llround(drafting->budget.draft_ns);
      config.accepted = [this](uint64_t seed, int64_t position, int64_t draft_tokens, std::span<int32_t> accepted) {
        acceptance->draw(seed, position, draft_tokens, accepted);
      };
    }
    config.on_steps = [this, id](const StepShape& shape, int64_t ns, int64_t steps) {
      steps_hash = hash_pair(steps_hash, hash_pair(static_cast<uint64_t>(world.now_ns()) << 8 ^ id.value,
                                                   static_cast<uint64_t>(shape.kv_tokens * 4096 + steps)));
      timelines[id.value].add(static_cast<double>(world.now_ns() - ns) / 1e9, static_cast<double>(world.now_ns()) / 1e9,
                              shape.sequences,
                              static_cast<double>(shape.kv_tokens) / static_cast<double>(cluster.kv_tokens));
      steps_taken.push_back({shape, steps, static_cast<double>(ns) / static_cast<double>(steps)});
    };
    config.on_leave = [this](uint64_t seed, int64_t ns) { batch_ns[index_of(seed)] += ns; };
    config.last_position = [this](uint64_t seed) { return last_position(seed); };
    const uint64_t rank = 1 + id.value;
    return std::make_shared<SimEngine>(
        std::move(config),
        [this](uint64_t seed, int64_t position, std::span<SampledToken> sampled) { sample(seed, position, sampled); },
        [this, rank](int64_t ns, std::function<void()> f) { world.after_ns(ns, std::move(f), rank); },
        SimEngine::Clock{[this] { return world.now_ns(); }, [this, rank] { return world.fired_ns(rank); }});
  }

  /// Which tokens are drafted does not matter: the engine decides how many of them are accepted.
  Drafting make_drafting() {
    SimDrafts drafts;
    drafts.fill = [](RequestId request, int64_t, std::span<int32_t> tokens) {
      std::ranges::fill(tokens, token_of(seed_of(request.group.index, request.sample)));
    };
    drafts.count = [this](RequestId request, const DraftLimits& limits) {
      acceptance->begin(request);
      return acceptance->likely_tokens(request, limits);
    };
    drafts.learn = [this](RequestId request, int64_t output_tokens) { acceptance->learn(request, output_tokens); };
    return {std::make_shared<SimDrafter>(std::move(drafts)), drafting->budget,
            [this](const StepShape& shape) { return static_cast<double>(step_with_drafting_ns(cluster, drafting, shape)); }};
  }

  FleetConfig fleet_config() const {
    const int64_t machines = (cluster.instances + cluster.instances_per_machine - 1) / cluster.instances_per_machine;
    const int64_t report_steps =
        drafting ? std::min(cluster.report_steps, cluster.draft_report_steps) : cluster.report_steps;
    FleetConfig config;
    config.nodes = static_cast<uint32_t>(machines);
    config.instances = static_cast<uint32_t>(cluster.instances);
    config.instances_per_node = static_cast<uint32_t>(cluster.instances_per_machine);
    config.instance.planner = {.prefill_tokens_max = static_cast<int32_t>(cluster.prefill_tokens),
                               .rows_max = static_cast<int32_t>(cluster.rows_max + cluster.prefill_tokens)};
    config.instance.rows_max = static_cast<int32_t>(cluster.rows_max);
    config.instance.offer_blocks = static_cast<int32_t>(cluster.offer_blocks);
    config.instance.report_steps = static_cast<int32_t>(report_steps);
    config.node.kv_node.tiers.spill_batch_bytes = scaled(config.node.kv_node.tiers.spill_batch_bytes);
    return config;
  }

  NodeMakers make_makers(bool many_machines) {
    NodeMakers makers;
    makers.make_engine = [this](InstanceId id) -> Result<std::shared_ptr<Engine>> { return make_engine(id); };
    makers.aside = [this](std::function<void()> f) { world.after(0, std::move(f)); };
    if (drafting) makers.make_drafting = [this](InstanceId) -> Result<Drafting> { return make_drafting(); };
    if (cluster.dram_bytes == 0) return makers;
    const int64_t blocks = std::min(cluster.dram_bytes / (cluster.kv_bytes_per_token * cluster.block_tokens),
                                    pool_blocks_max(work, cluster.block_tokens));
    makers.make_arena = [blocks](NodeId) {
      return HostArena::create(
          {.dram_bytes = std::max<int64_t>(1, blocks) * kSimBlockBytes, .block_bytes = kSimBlockBytes});
    };
    if (many_machines) makers.transport = transport;
    if (cluster.cold_bytes > 0) makers.open_cold = [this](NodeId) -> Result<std::unique_ptr<ColdStore>> { return make_cold(); };
    return makers;
  }

  std::unique_ptr<ColdStore> make_cold() {
    SimColdStoreConfig config;
    config.capacity_bytes = scaled(cluster.cold_bytes);
    config.read_bytes_per_s = scaled(cluster.cold_read_bytes_per_s);
    config.write_bytes_per_s = scaled(cluster.cold_write_bytes_per_s);
    return std::make_unique<SimColdStore>(config, [this](int64_t us, std::function<void()> f) { world.after(us, std::move(f)); });
  }

  static std::vector<StoppedRequest> unfinished(const RolloutActor& rollout) {
    std::vector<StoppedRequest> left;
    for (const GroupState& group : rollout.scheduler->requests().groups())
      for (const RequestState& request : group.members)
        if (request.phase != RequestPhase::kFinished)
          left.push_back({group.id.index, request.id.sample, request.generated_tokens});
    return left;
  }

  Result<SimRun> run(const ChunkSchedulerConfig& scheduler, std::vector<StoppedRequest>* stopped, const EventLog& log) {
    fleet.emplace(world.system, FleetLinks{}, log);
    const FleetConfig machines = fleet_config();
    SEER_RETURN_IF_ERROR(fleet->start_nodes(machines, std::make_shared<const NodeMakers>(make_makers(machines.nodes > 1))));
    RolloutConfig config;
    config.scheduler = scheduler;
    config.instances_expected = static_cast<size_t>(cluster.instances);
    config.progress_us = kProgressUs;
    config.chunk_silence_us = kNever;  // nothing fails here
    const RolloutHandle rollout = fleet->start_rollout(config, {make_groups(work)}, collect_events(world, events, false));
    const int64_t target = work.target_requests > 0 ? work.target_requests : std::numeric_limits<int64_t>::max();
    const auto is_stopped = [&] { return work.stop != nullptr && work.stop->load(std::memory_order_relaxed); };
    world.run_until(kNever / 1000, [&] { return events.over() || std::ssize(events.completions_s) >= target || is_stopped(); });
    if (is_stopped()) return fail(Code::kCancelled, "stopped on request");
    if (!events.over() && std::ssize(events.completions_s) >= target) {
      rt::post(rollout, StopRollout{});
      world.run_until(kNever / 1000, [this] { return events.over(); });
      if (stopped != nullptr) *stopped = unfinished(rt::look<RolloutActor>(rollout));
    }
    if (!events.over())
      return fail(Code::kUnavailable, "simulation: no event is left, but the rollout is not over");
    if (!events.summaries[0].complete && std::ssize(events.completions_s) < target)
      return fail(Code::kInvalidArgument, "simulation: ", events.summaries[0].error);
    return take_run(scheduler.policy);
  }

  SimRun take_run(const std::string& policy) {
    const RolloutSummary& s = events.summaries[0];
    SimRun run;
    run.policy = policy;
    run.total_s = s.wall_s();
    run.tail_s = s.tail_s;
    run.requests = s.finished;
    run.output_tokens = s.output_tokens;
    run.tokens_per_s = static_cast<double>(s.output_tokens) / run.total_s;
    run.preemptions = s.preemptions;
    run.migrations = s.migrations;
    run.yields = s.yields;
    run.reprefill_tokens = s.reprefill_tokens;
    double busy_s = 0;
    DraftCounts drafts;
    for (const InstanceReport& i : s.instances) {
      busy_s += static_cast<double>(i.busy_us) / 1e6;
      drafts += i.drafting.all();
    }
    if (drafts.verifies > 0) {
      run.acceptance_length = drafts.acceptance_length();
      run.drafted_per_verify = static_cast<double>(drafts.drafted) / static_cast<double>(drafts.verifies);
    }
    run.idle_share = 1 - busy_s / (run.total_s * static_cast<double>(cluster.instances));
    if (!events.starts_s.empty()) run.late_start_share = mean_of_largest(std::move(events.starts_s)) / run.total_s;
    run.estimate_error = s.estimate_error;
    run.events_hash = hash_pair(steps_hash, events.hash);
    for (const RequestId request : events.completed) {
      const size_t of = index_of(seed_of(request.group.index, request.sample));
      const int64_t tokens = last_positions[of] - work.groups[request.group.index].prompt_tokens + 1;
      run.responses.push_back({tokens - 1, static_cast<double>(batch_ns[of]) / 1e9});
    }
    run.steps = std::move(steps_taken);
    for (TimelineRecorder& timeline : timelines) run.instances.push_back(timeline.take(run.total_s));
    run.completions_s = std::move(events.completions_s);
    return run;
  }
};

}  // namespace

Status check_kv(const ClusterModel& cluster, const SimWork& work) {
  const int64_t longest = longest_request(work);
  const int64_t least = (longest + 2 * cluster.block_tokens - 1) / cluster.block_tokens * cluster.block_tokens;
  if (cluster.kv_tokens < least)
    return fail(Code::kInvalidArgument, "an instance holds KV of ", cluster.kv_tokens, " tokens, and the longest request may need ",
                longest, " and a block more: expected --kv-tokens ", least, " at least");
  return {};
}

Result<SimRun> simulate_rollout(const ClusterModel& cluster, const SimWork& work,
                                const ChunkSchedulerConfig& scheduler, const std::optional<SimDrafting>& drafting,
                                std::vector<StoppedRequest>* stopped, const EventLog& log) {
  if (auto known = make_chunk_scheduler(scheduler); !known.ok()) return known.error();
  SEER_RETURN_IF_ERROR(check_kv(cluster, work));
  SimRollout rollout(cluster, work, drafting);
  return rollout.run(scheduler, stopped, log);
}

}  // namespace seer
