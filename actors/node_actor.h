// node_actor: one machine. It starts the KV node, the draft server and the instances, watches them, and restarts those that
// die. A machine has any of these parts (NodeRole). One per machine; start_node() in actors/fleet.h starts it.
//
// An instance that dies comes back empty. When the KV node dies, the instances are restarted too: their grants and leases died
// with it. A replacement is made only after every user of the old part has ended, because there is no memory for two.
//
// New weights go to all instances. Each changes to them when the rollouts that it works for are over, and is then announced
// again. An instance that is restarted later has its maker's weights; it is announced only after it has the new ones. Weights that a
// client sent to a server are read from there first, into memory, and checked; until then nothing else of an update begins.
//
// A machine that is drained starts nothing more. Its chunks go back to their rollouts. It ends in order when no request needs
// KV kept here, or when the timeout of the drain is over.
//
// Making a part takes long (a model loads, a store opens), so it happens outside of the actor's handlers (NodeMakers::aside)
// and the result comes back as a message. A part that cannot be made again is lost for good: attached rollouts get PartLost,
// and the machine goes on with the rest. So is an instance after restarts_max restarts, if there are others. If it was the last, or
// the KV node or draft server is restarted as often, the machine gives up, says so and ends, so that a repeating fault is seen. It also
// gives up at once when the directory refuses its KV node.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/draft_server_actor.h"
#include "actors/instance/instance_actor.h"
#include "actors/kv_node_actor.h"
#include "actors/log.h"
#include "actors/weight_fetch.h"
#include "gpu/model/model_loader.h"
#include "protocols/actors.h"

namespace seer {

/// Instance ids are unique in a cluster; each node numbers its own from 0 to kNodeInstancesMax - 1.
inline constexpr uint32_t kNodeInstancesMax = 1024;
inline InstanceId node_instance(NodeId node, uint32_t i) { return {node.value * kNodeInstancesMax + i}; }
inline constexpr int64_t kRestartsUs = 600'000'000;  // a part that ran for so long has recovered from its last restart
inline constexpr int64_t kMissedUs = 600'000'000;    // a machine that was lost is not waited for any longer

struct NodeConfig {
  NodeId node;
  uint64_t epoch = 0;       // of its first arena; above all epochs that the machine had before
  std::vector<InstanceConfig> instances;
  KvNodeConfig kv_node;     // without instances its identity must be given
  std::optional<DraftServerConfig> draft_server;  // none: this machine has no draft server
  int32_t restarts_max = 8;  // of a part, each within kRestartsUs of the one before
};

/// Functions that make the parts of a machine: once before its actors start, and again for each restart. An error is one
/// sentence for the user.
struct NodeMakers {
  std::function<Result<std::shared_ptr<Engine>>(InstanceId)> make_engine;
  std::function<Result<std::shared_ptr<HostArena>>(NodeId)> make_arena;  // empty: no KV pool on this machine
  std::function<Result<std::unique_ptr<ColdStore>>(NodeId)> open_cold;   // empty: no cold tier
  std::function<Result<Drafting>(InstanceId)> make_drafting;             // empty: no drafting
  /// Runs a function soon, outside of any actor's handler: on its own thread, or in simulation from a timer. Restarts call the
  /// makers there.
  std::function<void(std::function<void()>)> aside;
  std::shared_ptr<const Tokenizer> tokenizer = {};   // may be null
  std::shared_ptr<KvTransport> transport = {};       // null: nothing is fetched from other machines
  std::function<bool(const rt::process&)> is_connected = {};  // see KvNodeParts
  std::shared_ptr<ModelLoader> loader = {};          // of the engines; null: they take no weights from a server
};

/// What an instance runs on, and what the KV pool of a machine lies in.
struct InstanceMachinery {
  std::shared_ptr<Engine> engine;
  Drafting drafting;
};
struct PoolMachinery {
  std::shared_ptr<HostArena> arena;
  std::unique_ptr<ColdStore> cold;  // null: no cold tier
};
struct NodeMachinery {
  std::map<InstanceId, InstanceMachinery> instances;
  PoolMachinery pool;  // without an arena: none
};
/// The loss of a whole machine whose actor ended with this message. Empty reason: it ended in order.
PartLost lost_machine(NodeId node, uint32_t instances, const rt::down& message);
/// The identity of an instance with such an engine. `tokenizer`: pieces_hash() of its tokenizer.
ClusterIdentity instance_identity(const EngineInfo& info, uint64_t tokenizer);
/// Makes all parts of a machine, before its actors start. Errors: the first error of a maker.
Result<NodeMachinery> make_machinery(const NodeConfig& config, const NodeMakers& makers);

struct NodeParts {
  std::shared_ptr<const NodeMakers> makers;
  std::shared_ptr<NodeMachinery> first;  // what it starts with. Shared only because CAF copies arguments of spawn
  KvDirectoryHandle directory;           // may be null without a pool
  EventLog log = {};
};

struct NodeActor {
  using handle = NodeHandle;
  static constexpr const char* kActorName = "node";

  NodeActor(rt::self_ptr<NodeActor> self_in, NodeConfig config_in, NodeParts parts);
  ~NodeActor();
  handle::behavior_type make_behavior();

  void on_attach(const AttachRollout& attach);
  void on_update(const UpdateWeights& update);
  void on_weight_part(const WeightPart& part);
  void go_on_fetching();
  void end_silent_fetch();
  void load_update();
  void fail_update(const std::string& why);
  void end_update(const WeightsUpdated& answer);
  void on_weights(const InstanceWeights& answer);
  void on_drain(const DrainNode& drain);
  void on_directory_up(const DirectoryUp& up);
  InstancesDraining all_draining() const;
  void tell_kv_drains();
  void leave_when_drained();
  ClusterIdentity identity() const;
  template <class Then>
  void gather_report(Then then);
  rt::result<NodeReport> on_report();
  void update_instance(InstanceId id, const NewWeights& to);
  void restart_later(InstanceId id);
  void restart_unable(InstanceId id);
  void update_outdated();
  void updated(InstanceId id, const std::string& error);
  void on_down(const rt::down& message);
  void start_pool(PoolMachinery&& made);
  void start_draft_server();
  void start_instance(InstanceId id);
  void start_waiting_instances();
  void remake_instance(InstanceId id);
  void remake_pool_when_unused();
  template <class Make, class Then>
  void make_aside(Make make, Then then);
  /// Restarts of one part in a row.
  struct Restarts {
    int32_t count = 0;
    int64_t last_us = 0;
  };
  bool is_last(InstanceId id) const;
  bool may_restart(Restarts& of);
  void lose(std::vector<InstanceId> lost, std::string reason);
  std::string died_text(const std::string& part, const std::string& why) const;
  void give_up_restarting(const std::string& part, const std::string& why = {});
  void give_up(const std::string& why);
  InstanceUp instance_up(InstanceId id) const;
  template <class Message>
  void tell_all(const Message& message);

  /// Running (has a handle), waiting for the pool (has `made`), or neither: being made, or lost for good.
  struct Instance {
    InstanceConfig config;
    InstanceHandle handle;
    std::optional<InstanceMachinery> made;
    EngineInfo info;       // of the engine that runs
    bool stopped = false;   // by this node, to be restarted
    bool updating = false;  // was asked to change its weights and has not done so
    bool unable = false;    // to change them; is restarted soon
    bool is_lost = false;   // for good
    Restarts restarts;
  };
  bool is_outdated(const Instance& instance) const { return instance.info.version < weights.version; }
  enum class PoolState : uint8_t {
    kSettled,  // it runs, or there is none for good
    kDown,     // instances that used the old one are still ending
    kMaking,
  };

  rt::self_ptr<NodeActor> self;
  NodeConfig config;
  std::shared_ptr<const NodeMakers> makers;
  uint64_t tokenizer_hash;
  KvDirectoryHandle directory;
  EventLog log;
  std::shared_ptr<Handover> handover;  // results of make_aside()
  std::shared_ptr<HostArena> arena;
  KvNodeHandle kv_node;
  PoolState pool_state = PoolState::kSettled;
  DraftServerHandle draft_server;
  std::map<InstanceId, Instance> instances;
  std::vector<InstanceSink> sinks;  // of the attached rollouts
  std::vector<PartLost> losses;  // sent to each rollout that attaches
  NewWeights weights;            // of the last update that an instance took; version 0: none
  struct Update {
    NewWeights what;
    std::vector<WeightsSink> askers;
    std::set<InstanceId> waiting;  // instances that have not answered
    std::string error;             // the first
    std::optional<WeightFetch> fetch = {};  // of bytes that have not all come
    int64_t heard_us = 0;                   // when the last part came
    int64_t look_us = 0;                    // when it is next seen whether one has come
  };
  static constexpr int64_t kUnablePauseUs = 1'000'000;  // of an instance before its first restart; doubles, kUnableDoublings times
  static constexpr int32_t kUnableDoublings = 5;
  static constexpr int64_t kSilentUsMax = 60'000'000;  // a server that sends nothing for so long is given up
  std::optional<Update> update;  // until it is answered
  uint64_t epoch = 0;            // of the arena
  int32_t restarts = 0;  // of all parts
  Restarts draft_server_restarts, kv_node_restarts;
  bool draining = false;
  int64_t drain_until_us = 0;
};

}  // namespace seer
