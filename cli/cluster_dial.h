// How a process of the command line finds the controller of a cluster, and its machines.
#pragma once
#include <atomic>
#include <functional>
#include <string>

#include "actors/log.h"
#include "cli/cluster_net.h"
#include "protocols/actors.h"

namespace seer {

/// Dials the controller, again and again for some seconds, since it may be starting just now. Errors: kInvalidArgument (not
/// HOST:PORT, naming the flag; another protocol), kUnavailable, kCancelled.
Result<ClusterHandle> dial_cluster(ClusterNet& net, const std::string& address, const char* flag, const std::atomic<bool>& stop);

/// A place for a rollout in the cluster at `address`. Errors: kUnavailable.
Result<RolloutEntered> enter_rollout(ClusterNet& net, const std::string& address, const ClusterHandle& controller);

/// The machines of a cluster, as they come and go. What is said to each goes over a connection of its own, not through the
/// controller: each one is dialed once, of two machines by the one with the larger name. Single owner.
class ClusterWatch {
 public:
  struct Hooks {
    std::function<Status(const NodeAddress&, NodeHandle)> joined;
    std::function<void(const PartLost&)> left;
  };
  /// `self`: the machine that watches; kNoNode: it is none. REQUIRES: the net outlives it.
  ClusterWatch(ClusterNet& net, const ClusterHandle& controller, NodeId self, Hooks hooks, EventLog log = {});
  /// Calls the hooks for what has become known since the last call. Takes as long as dialing who joined.
  void follow();
  /// As far as follow() has heard. The machines end with it.
  bool controller_is_gone() const { return controller_is_gone_; }

 private:
  Result<NodeHandle> reach(const NodeJoined& node);

  ClusterNet& net_;
  const ClusterHandle controller_;
  const NodeId self_;
  const Hooks hooks_;
  const EventLog log_;
  rt::Inbox<ClusterSink> news_;
  bool controller_is_gone_ = false;
};

}  // namespace seer
