// SimCluster: the actors of `seer rollout` on a virtual clock, with simulated engines and a simulated cold tier. Every response
// is known beforehand, so a run with any scheduling, movement of KV or failure can be checked. Used by `seer simulate --faults`
// and tests.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/fleet.h"
#include "actors/kv_directory_actor.h"
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
  bool machines_may_join = false;          // see RolloutConfig
  bool streams = false;                    // all groups are streams (GroupSpec)
  std::function<int64_t(const StepShape&)> step_ns = {};  // empty: SimEngine's default
  SimColdFaults cold_faults = {};
  bool has_links = false;                  // messages and transfers between machines go over a network with these faults
  SimLinkFaults link_faults = {};
  std::function<std::optional<Code>()> transfer_fault = {};
  std::function<int64_t()> transfer_late_us = {};
  int64_t remake_us = 0;                   // time to make a part again
  std::function<Status(InstanceId)> engine_fault = {};  // called for each engine: its error, if it cannot be made
  std::function<Status(NodeId)> arena_fault = {};
  std::function<Status()> weights_fault = {};           // called when an engine reads new weights: their error, if it cannot
  std::function<std::shared_ptr<Engine>(std::shared_ptr<Engine>)> wrap_engine = {};  // for planted bugs
  EventLog log = {};
  bool joins_cluster = false;              // nodes are started elsewhere, and join as those of a cluster: `fleet` has none at first
  std::shared_ptr<ModelLoader> loader = {};  // null: machines take no weights from a server
};

struct SimCluster {
  static constexpr int32_t kEos = 1;
  static constexpr int32_t kVocab = 1000;
  static constexpr uint64_t kRunSeed = 5;
  static constexpr int64_t kDraftSyncUs = 5'000;
  static constexpr int64_t kDraftTtlUs = 30'000'000;

  explicit SimCluster(SimClusterOptions o);

  /// Starts the rollout without running it.
  void start();
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

  /// Of the i-th instance. It is on node i % nodes.
  InstanceId name_of(uint32_t i) const {
    return options.joins_cluster ? node_instance(NodeId{i % options.nodes}, i / options.nodes) : InstanceId{i};
  }
  uint32_t index_of(InstanceId id) const {
    return options.joins_cluster ? id.value / kNodeInstancesMax + id.value % kNodeInstancesMax * options.nodes : id.value;
  }

  // The parts, as they are now. REQUIRES: the world has run.
  NodeHandle node(uint32_t n = 0) const { return fleet.node(NodeId{n}); }
  NodeActor& node_state(uint32_t n = 0) { return rt::look<NodeActor>(node(n)); }
  const KvDirectoryHandle& directory() const { return fleet.directory(); }
  InstanceHandle instance(uint32_t i) { return node_state(i % options.nodes).instances.at(name_of(i)).handle; }
  InstanceActor& instance_state(uint32_t i) { return rt::look<InstanceActor>(instance(i)); }
  KvNodeHandle kv_node(uint32_t n = 0) { return node_state(n).kv_node; }
  KvNodeActor& kv_node_state(uint32_t n = 0) { return rt::look<KvNodeActor>(kv_node(n)); }
  void kill_instance(InstanceId id) { rt::kill(instance(index_of(id))); }
  void kill_kv_node(uint32_t n = 0) { rt::kill(kv_node(n)); }
  DraftServerHandle draft_server(uint32_t n = 0) { return node_state(n).draft_server; }
  DraftServerActor& draft_server_state(uint32_t n = 0) { return rt::look<DraftServerActor>(draft_server(n)); }
  void kill_draft_server(uint32_t n = 0) { rt::kill(draft_server(n)); }
  bool is_up(uint32_t n) const { return node(n) != nullptr; }
  /// Kills the machine with all that runs there; it comes back empty after down_us. REQUIRES: it is up.
  void crash_node(uint32_t n, int64_t down_us);
  /// Lets the machine leave (DrainNode); it comes back empty down_us after it has. REQUIRES: it is up.
  void drain_node(uint32_t n, int64_t timeout_us, int64_t down_us);
  /// Kills the directory; after down_us another one replaces it. REQUIRES: it is up.
  void crash_directory(int64_t down_us);
  /// Asks the rollout to end a request, or all requests of a group.
  void cancel(RequestId request);
  void cancel(GroupId group);
  int64_t fetched_blocks();
  /// Blocks that moved to other nodes for lack of room.
  int64_t moved_blocks();

  /// The right answer to one request, whatever happens. Engines begin with version 1.
  OutputTokens answer(RequestId id) const { return answer(groups[id.group.index], id.sample); }
  OutputTokens answer(const GroupSpec& group, uint32_t sample, WeightVersion version = WeightVersion{1}) const;

  /// Checks that every request was answered exactly once, with the right tokens and log-probabilities; one that was cancelled may have
  /// only the first of them. Streams must have told the same before. Errors: kUnavailable, kCorrupt, with a sentence.
  Status exact() const;

  /// Checks that every grant, lease and kept block was returned. REQUIRES: the rollout is complete, and some time has passed
  /// since. Errors: kFull, saying who still holds what.
  Status drained();

  /// A hash of all steps and responses so far, with their times.
  uint64_t events_hash() const { return hash_pair(steps_hash, seen.hash); }
  void note_event(uint64_t what) { steps_hash = hash_pair(steps_hash, hash_pair(static_cast<uint64_t>(world.now_ns()), what)); }

  // What it is made of.
  void make_groups();
  int64_t last_position(uint64_t seed) const {
    const Shape& shape = shapes.at(seed);
    return shape.prompt_tokens + shape.output_tokens - 1;
  }
  int32_t token(uint64_t seed, int64_t position) const;
  std::vector<CstPast> pasts() const;
  uint32_t all_nodes() const { return options.nodes + options.kv_nodes; }
  int64_t block_bytes() const { return kSimTokenBytes * options.block_tokens; }
  FleetConfig fleet_config() const;
  NodeConfig config_of(NodeId id) const;
  FleetLinks fleet_links();
  std::shared_ptr<const NodeMakers> make_makers();
  std::shared_ptr<Engine> make_engine(InstanceId id);
  Drafting make_drafting();
  Status check(const Response& response) const;
  void start_again(uint32_t n, int64_t down_us);

  SimClusterOptions options;
  std::vector<GroupSpec> groups;
  size_t requests = 0;
  struct Shape {
    int64_t prompt_tokens, output_tokens;
    uint64_t group;
  };
  std::unordered_map<uint64_t, Shape> shapes;  // by seed of the response
  std::set<RequestId> cancelled;
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
