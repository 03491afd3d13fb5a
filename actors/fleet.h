// fleet: the one way to start the actors of a rollout. cli/ gives it real makers; `seer simulate` and tests give it
// simulated ones, on the virtual clock of a SimWorld. Nobody else wires these actors together.
//
// It has two halves, which may run in different processes:
//   start_node()  one machine: its KV node, draft server and instances, under a node_actor
//   Fleet         the controller: the directory, the nodes by name, and the rollouts with their contexts
//
// What can be refused (memory, files, a device) is made before any actor starts and returned as an error. What fails later,
// at a restart, reaches the rollout as PartLost.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "actors/node_actor.h"
#include "actors/rollout_actor.h"
#include "protocols/actors.h"

namespace seer {

/// The machines of one process.
struct FleetConfig {
  uint32_t nodes = 1;               // with the names 0, 1, ...
  uint32_t instances = 1;           // in all
  uint32_t instances_per_node = 0;  // node 0 gets the first ones, and so on; 0: they are dealt to the nodes in turn
  InstanceConfig instance;          // of every instance; ids are filled in
  NodeConfig node;                  // of every node; names and instances are filled in
};
/// REQUIRES: id < config.nodes.
NodeConfig node_config(const FleetConfig& config, NodeId id);

/// Starts a machine whose parts are made. It is of use once it gets AttachRollout. Ends when it is told to (rt::stop), or when
/// it gives up.
NodeHandle start_node(rt::system& system, const NodeConfig& config, std::shared_ptr<const NodeMakers> makers, NodeMachinery made,
                      const KvDirectoryHandle& directory, const EventLog& log = {});
/// Makes the parts first. Errors: those of the makers; then nothing was started.
Result<NodeHandle> start_node(rt::system& system, const NodeConfig& config, std::shared_ptr<const NodeMakers> makers,
                              const KvDirectoryHandle& directory, const EventLog& log = {});

/// Actors between nodes and controller: a simulated network, or a test that listens. Empty: none.
struct FleetLinks {
  std::function<KvDirectoryHandle(KvDirectoryHandle)> to_directory = {};  // asked for each node that starts here
  std::function<InstanceSink(InstanceSink)> to_rollout = {};              // asked for each rollout
};

/// Who asked for a rollout, as functions. An empty one does not listen.
struct RolloutListener {
  std::function<void(Response&)> response = {};
  std::function<void(const RolloutProgress&)> progress = {};
  std::function<void(const RolloutCommits&)> commits = {};
  std::function<void(RolloutSummary&)> summary = {};  // the last
};
/// Waits for one event, at most timeout_us, and calls its function on this thread.
void receive_event(rt::Inbox<RolloutEvents>& events, int64_t timeout_us, const RolloutListener& listener);

/// The same in an actor.
struct ListenerActor {
  using handle = RolloutEvents;
  static constexpr const char* kActorName = "listener";
  ListenerActor(rt::self_ptr<ListenerActor>, RolloutListener listener_in) : listener(std::move(listener_in)) {}
  handle::behavior_type make_behavior();
  RolloutListener listener;
};

/// What a rollout works on.
struct RolloutTask {
  std::vector<GroupSpec> groups;    // by group id, from 0
  std::vector<CstPast> pasts = {};  // see RolloutParts
  std::vector<ResumedRequest> resumed = {};
};

class Fleet {
 public:
  /// Starts the controller, without any node. REQUIRES: the system outlives the fleet.
  explicit Fleet(rt::system& system, FleetLinks links = {}, EventLog log = {});
  /// Rollouts on the nodes of a cluster, whose directory this is and goes on without the fleet.
  Fleet(rt::system& system, KvDirectoryHandle directory, EventLog log);
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;
  /// Tells all actors to end. They have ended when the system is gone, and then their parts too.
  ~Fleet();

  /// Starts all nodes in this process: either all or, after an error, none. Errors: as of start_node() and add_node().
  Status start_nodes(const FleetConfig& config, std::shared_ptr<const NodeMakers> makers);
  /// Starts one, also again after remove_node(): then it is empty.
  Status start_node(NodeConfig config, std::shared_ptr<const NodeMakers> makers);
  /// Takes in a node that was started elsewhere. Errors: kInvalidArgument: there is one of this name.
  Status add_node(NodeId id, NodeHandle node);
  /// The node has ended, or cannot be reached any more: another one may take its name. REQUIRES: it is there.
  void remove_node(NodeId id);
  /// Likewise; the rollouts are told what was lost with it.
  void lose_node(const PartLost& lost);

  /// Starts a rollout on all nodes, also on those that come later. Several may run at once, each with its own config.id.
  /// REQUIRES: no other one that was not ended has this id.
  RolloutHandle start_rollout(RolloutConfig config, RolloutTask task, RolloutEvents events);

  /// The rollout has told its summary, or is of no use any more. REQUIRES: it was started and not ended.
  void end_rollout(RolloutId id);

  /// Asks all nodes to change to these weights. Each answers once; rollouts that run end with the weights they have.
  void update_weights(const NewWeights& weights, const WeightsSink& reply_to);

  /// The directory died, and this one takes its place. The nodes that were started here and the rollouts fill it.
  void use_directory(KvDirectoryHandle directory);
  const KvDirectoryHandle& directory() const { return directory_; }
  /// Null: there is none of this id now.
  RolloutHandle rollout(RolloutId id = {}) const;
  /// Null: there is none of this name now.
  NodeHandle node(NodeId id) const;
  const std::map<NodeId, NodeHandle>& nodes() const { return nodes_; }

 private:
  Status check_name(NodeId id) const;
  KvDirectoryHandle directory_of_a_node() const;
  void start_made(NodeConfig config, std::shared_ptr<const NodeMakers> makers, NodeMachinery made);

  rt::system& system_;
  FleetLinks links_;
  EventLog log_;
  const bool owns_directory_;
  KvDirectoryHandle directory_;
  struct Rollout {
    ContextHandle context;
    RolloutHandle handle;
    InstanceSink sink;  // what the nodes tell the rollout goes there
  };
  std::map<RolloutId, Rollout> rollouts_;
  std::map<NodeId, NodeHandle> nodes_;       // started here or elsewhere
  std::map<NodeId, uint64_t> starts_;        // how often a node of this name was started here
  bool has_pool_ = false;                    // some node has, or may have, a KV pool
};

}  // namespace seer
