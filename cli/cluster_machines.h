// ClusterMachines: the machines of a cluster, for a process that runs rollouts on them: one (`seer rollout --cluster`) or many
// (`seer serve --cluster`). It comes in at the controller, gets the ids of rollouts there, and follows who joins and leaves.
//
// One thread calls follow(). The rest is thread-safe: the gateway calls it on a thread of its own.
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/fleet.h"
#include "actors/log.h"
#include "cli/cluster_dial.h"
#include "cli/cluster_net.h"
#include "gpu/model/model_config.h"
#include "gpu/text/tokenizer.h"

namespace seer {

/// What a process that brings prompts knows of the model. `tokenizer`: may be null.
ClusterIdentity model_identity(const std::string& folder, const ModelConfig& config, const Tokenizer* tokenizer);

class ClusterMachines {
 public:
  struct Config {
    std::string address;   // of the controller
    ClusterIdentity model; // that its machines must have
    int64_t wait_s = 60;   // for a controller that died
    size_t spare_ids = 0;  // ids of rollouts that are asked for ahead
    std::function<void(NodeId, bool in_order)> node_left = {};  // called by follow(), as is the next
    std::function<void(const ClusterWeights&)> weights_changed = {};  // another process has changed them, or this one
  };
  /// Errors: as dial_cluster() and enter_rollout() say. REQUIRES: net and log outlive it.
  static Result<std::unique_ptr<ClusterMachines>> enter(ClusterNet& net, Config config, const std::atomic<bool>& stop, const EventLog& log);

  /// What the cluster said when this process came in. Its id is the first that take_id() gives.
  const RolloutEntered& entered() const { return entered_; }
  /// An id that no other rollout of the cluster has; 0: there is none now, but there may be after follow().
  RolloutId take_id();

  /// Takes in what has changed since the last call, which may block while it dials.
  void follow();
  /// An error: the cluster is of no use any more, as far as follow() has heard.
  const Status& status() const { return watch_->status(); }

  /// Starts a rollout on all machines that are there, and on those that come. It waits a while for all instances that are known of.
  /// REQUIRES: its id came from take_id().
  RolloutHandle start_rollout(RolloutConfig config, RolloutTask task, const RolloutEvents& events);
  void end_rollout(RolloutId id);
  /// Returns the machines that were asked.
  std::vector<NodeId> update_weights(const NewWeights& weights, const WeightsSink& reply_to);
  /// The machines run with these weights now: the controller is told, so that those that come get them too.
  void weights_are(const ClusterWeights& weights);
  /// The controller is told of a machine that answered an update after its end.
  void changed_late(const WeightsUpdated& answer);
  KvDirectoryHandle directory() const;
  std::map<NodeId, NodeHandle> nodes() const;
  /// Instances of the machines that are there. Thread-safe, like the next.
  int64_t instances_up() const;
  /// And of those that were lost in the last kMissedUs and have not come back.
  int64_t instances_expected() const;

 private:
  ClusterMachines(ClusterNet& net, Config config, ClusterHandle controller, RolloutEntered entered, const EventLog& log);
  Status joined(const NodeAddress& at, NodeHandle node, uint32_t instances);
  void left(const PartLost& lost);
  Status enter_again(const ClusterHandle& returned);
  void fetch_ids();
  void note_refusal(const std::string& why);

  ClusterNet& net_;
  const Config config_;
  const RolloutEntered entered_;
  const EventLog log_;
  std::string last_refusal_;  // of a new id, used by follow() only
  mutable std::mutex mutex_;  // guards the next seven
  Fleet fleet_;
  ClusterHandle controller_;
  std::deque<RolloutId> ids_;
  std::set<RolloutId> taken_;              // ids of rollouts that are not over
  std::map<NodeId, uint32_t> instances_;   // of the machines that are there
  struct Missed {
    uint32_t instances = 0;
    int64_t since_us = 0;
  };
  std::map<NodeId, Missed> missed_;        // machines that were lost
  std::optional<ClusterWeights> weights_;  // as weights_are() said last
  std::optional<ClusterWatch> watch_;      // calls joined(), left() and enter_again()
};

}  // namespace seer
