// How a process of the command line finds the controller of a cluster, and its machines.
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <string>

#include "actors/log.h"
#include "cli/cluster_net.h"
#include "protocols/actors.h"

namespace seer {

/// Dials the controller, again and again for some seconds, since it may be starting just now. Errors: kInvalidArgument (not
/// HOST:PORT, naming the flag; another protocol), kUnavailable, kCancelled.
Result<ClusterHandle> dial_cluster(ClusterNet& net, const std::string& address, const char* flag, const std::atomic<bool>& stop);

/// A rollout asks the controller at `address` to let it run, or to go on (`before`: its id). Errors: kInvalidArgument: why it may
/// not; kUnavailable: no answer.
Result<RolloutEntered> enter_rollout(ClusterNet& net, const std::string& address, const ClusterHandle& controller, RolloutId before = {});

/// The same, where an answer that it may not is no error. Errors: kUnavailable: no answer.
Result<RolloutEntered> ask_to_roll_out(ClusterNet& net, const std::string& address, const ClusterHandle& controller, RolloutId before);

/// The machines of a cluster, as they come and go. What is said to each goes over a connection of its own, not through the
/// controller: each one is dialed once, of two machines by the one with the larger name. One that cannot be reached from here
/// counts as gone, and is dialed again.
///
/// When the controller dies, it is looked for at its address until it was started again, and what it then says of the machines
/// changes nothing that is known here. Single owner.
class ClusterWatch {
 public:
  struct Hooks {
    std::function<Status(const NodeAddress&, NodeHandle, uint32_t instances)> joined;
    std::function<void(const PartLost&)> left;
    /// Comes in again at a controller that was started again. Errors: kUnavailable: it does not answer, and is asked again;
    /// others end the watch. May be empty where wait_s is 0.
    std::function<Status(const ClusterHandle&)> enter_again;
  };
  struct Config {
    std::string address;     // of the controller, for errors too; empty: it is in this process
    NodeId self = kNoNode;   // the machine that watches; kNoNode: it is none
    int64_t wait_s = 60;     // for a controller that died
  };
  /// REQUIRES: the net outlives it.
  ClusterWatch(ClusterNet& net, ClusterHandle controller, Config config, Hooks hooks, EventLog log = {});
  /// Calls the hooks for what has become known since the last call. Takes as long as dialing who joined.
  void follow();
  /// An error: the cluster is of no use any more, as far as follow() has heard.
  const Status& status() const { return status_; }
  bool has_controller() const { return gone_us_ < 0; }

 private:
  struct Member {
    NodeAddress at;
    NodeHandle handle;          // null: it cannot be reached from here now
    NodeHandle announced;       // as the controller knows it
    uint32_t instances = 0;
    int64_t tried_us = 0;       // to reach it
  };
  void subscribe();
  void on_joined(const NodeJoined& node);
  void on_left(const PartLost& lost);
  void on_down(const rt::down& message);
  void reach(Member& member);
  void reach_again();
  void look_for_controller();
  int64_t now_us() { return rt::now_us(&net_.system()); }

  ClusterNet& net_;
  ClusterHandle controller_;
  const Config config_;
  const Hooks hooks_;
  const EventLog log_;
  rt::Inbox<ClusterSink> news_;
  std::map<NodeId, Member> members_;
  int64_t gone_us_ = -1;   // since when the controller is gone; -1: it is there
  int64_t asked_us_ = 0;   // when it was looked for last
  Status status_;
};

}  // namespace seer
