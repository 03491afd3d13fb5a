// fleet: the one way to start the actors of a rollout. cli/ gives it real makers; `seer simulate` and tests give it
// simulated ones, on the virtual clock of a SimWorld. No other code wires these actors together.
//
// It has two halves, which may run in different processes:
//   start_node()  one machine: its KV node, draft server and instances, under a node_actor
//   Fleet         the controller: the directory, the nodes by name, and the rollouts with their contexts
//
// Everything that can fail (memory, files, a device) is made before any actor starts; failure returns an error. A failure at a
// later restart reaches the rollout as PartLost.
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
  uint32_t nodes = 1;               // named 0, 1, ...
  uint32_t instances = 1;           // in all
  uint32_t instances_per_node = 0;  // node 0 gets the first ones, and so on; 0: nodes get one each in turn
  InstanceConfig instance;          // of every instance; ids are filled in
  NodeConfig node;                  // of every node; names and instances are filled in
};
/// REQUIRES: id < config.nodes.
NodeConfig node_config(const FleetConfig& config, NodeId id);

/// Starts a machine whose parts are made. It serves a rollout after AttachRollout. It ends when stopped (rt::stop) or when it
/// gives up.
NodeHandle start_node(rt::system& system, const NodeConfig& config, std::shared_ptr<const NodeMakers> makers, NodeMachinery made,
                      const KvDirectoryHandle& directory, const EventLog& log = {});
/// Makes the parts first. Errors: those of the makers; nothing is started then.
Result<NodeHandle> start_node(rt::system& system, const NodeConfig& config, std::shared_ptr<const NodeMakers> makers,
                              const KvDirectoryHandle& directory, const EventLog& log = {});

/// Actors between nodes and controller: a simulated network, or a test that listens. Empty: none.
struct FleetLinks {
  std::function<KvDirectoryHandle(KvDirectoryHandle)> to_directory = {};  // called for each node that starts here
  std::function<InstanceSink(InstanceSink)> to_rollout = {};              // called for each rollout
};

/// Functions that hear the events of a rollout. An empty one ignores its event.
struct RolloutListener {
  std::function<void(Response&)> response = {};
  std::function<void(const RolloutProgress&)> progress = {};
  std::function<void(const RolloutCommits&)> commits = {};
  std::function<void(RolloutSummary&)> summary = {};  // the last
};
/// Waits for one event, at most timeout_us, and calls its function on this thread.
void receive_event(rt::Inbox<RolloutEvents>& events, int64_t timeout_us, const RolloutListener& listener);

/// Does the same in an actor.
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
  /// Runs rollouts on the nodes of a cluster. `directory`: the cluster's, which outlives the fleet.
  Fleet(rt::system& system, KvDirectoryHandle directory, EventLog log);
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;
  /// Tells all actors to end. They and their parts are gone when the system is.
  ~Fleet();

  /// Starts all nodes in this process, or none if one fails. Errors: those of start_node() and add_node().
  Status start_nodes(const FleetConfig& config, std::shared_ptr<const NodeMakers> makers);
  /// Starts one node. After remove_node() the name can be used again; the new node is empty.
  Status start_node(NodeConfig config, std::shared_ptr<const NodeMakers> makers);
  /// Adds a node that was started elsewhere. Errors: kInvalidArgument if the name is taken.
  Status add_node(NodeId id, NodeHandle node);
  /// Removes a node that has ended or cannot be reached. Another one may take its name. REQUIRES: it is there.
  void remove_node(NodeId id);
  /// Likewise, and tells the rollouts what was lost.
  void lose_node(const PartLost& lost);

  /// Starts a rollout on all nodes, present and future. Several may run at once, each with its own config.id.
  /// REQUIRES: no rollout that has not ended has this id.
  RolloutHandle start_rollout(RolloutConfig config, RolloutTask task, RolloutEvents events);

  /// Ends a rollout that has sent its summary or is not wanted any more. REQUIRES: it was started and not ended.
  void end_rollout(RolloutId id);

  /// Asks all nodes to change to these weights, and returns them. Each answers once. Running rollouts finish with the weights they
  /// have.
  std::vector<NodeId> update_weights(const NewWeights& weights, const WeightsSink& reply_to);

  /// Replaces a directory that died. The nodes that were started here and the rollouts fill the new one.
  void use_directory(KvDirectoryHandle directory);
  const KvDirectoryHandle& directory() const { return directory_; }
  /// Null: no rollout has this id now.
  RolloutHandle rollout(RolloutId id = {}) const;
  /// Null: no node has this name now.
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
    InstanceSink sink;  // where the nodes send what is for the rollout
  };
  std::map<RolloutId, Rollout> rollouts_;
  std::map<NodeId, NodeHandle> nodes_;       // started here or elsewhere
  std::map<NodeId, uint64_t> starts_;        // how often a node of this name was started here
  bool has_pool_ = false;                    // some node has, or may have, a KV pool
};

}  // namespace seer
