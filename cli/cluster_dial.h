// Finds the controller of a cluster and its machines, for commands.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <string>

#include "actors/log.h"
#include "cli/cluster_net.h"
#include "protocols/actors.h"

namespace seer {

/// Dials the controller, repeatedly for five seconds, because it may be starting. Sees the stop flag within two. Errors:
/// kInvalidArgument (not HOST:PORT, naming the flag; another protocol or secret), kUnavailable, kCancelled.
Result<ClusterHandle> dial_cluster(ClusterNet& net, const std::string& address, const char* flag, const std::atomic<bool>& stop);

/// Asks the controller at `address` to let a rollout run, or go on. Errors: kInvalidArgument if it may not; kUnavailable if no machine
/// that could run it has started yet, or there is no answer.
Result<RolloutEntered> enter_rollout(ClusterNet& net, const std::string& address, const ClusterHandle& controller, const EnterRollout& ask = {});

/// The same, but a refusal is no error: it is in the answer. Errors: kUnavailable if there is no answer.
Result<RolloutEntered> ask_to_roll_out(ClusterNet& net, const std::string& address, const ClusterHandle& controller, const EnterRollout& ask);

/// Follows the machines of a cluster as they join and leave. Messages to a machine go over a direct connection, not through the
/// controller. Each machine is dialed once; of two machines, the one with the larger name dials. A machine that cannot be reached
/// from here counts as gone, and is dialed again. One that only the controller cannot reach is not gone.
///
/// When the controller is lost, it is dialed at its address until it answers again, or was started again. Machines that it then
/// announces again are ignored if they are known here; those that it does not, and that cannot be reached from here, are forgotten.
/// Single owner.
class ClusterWatch {
 public:
  struct Hooks {
    std::function<Status(const NodeAddress&, NodeHandle, uint32_t instances)> joined;
    std::function<void(const PartLost&)> left;
    /// Enters again at a controller that was lost. Errors: kUnavailable if it does not answer; then it is asked again.
    /// Other errors end the watch. May be empty if wait_s is 0.
    std::function<Status(const ClusterHandle&)> enter_again;
    /// The cluster has these weights. May be empty.
    std::function<void(const ClusterWeights&)> weights = {};
  };
  struct Config {
    std::string address;     // of the controller, also for errors; empty: it is in this process
    NodeId self = kNoNode;   // the machine that watches; kNoNode: not a machine
    int64_t wait_s = 60;     // how long to wait for a controller that died
  };
  /// REQUIRES: the net outlives it.
  ClusterWatch(ClusterNet& net, ClusterHandle controller, Config config, Hooks hooks, EventLog log = {});
  /// Calls the hooks for the news since the last call. Blocks while it dials: machines that joined, until one has not answered in time;
  /// the others come with the next calls. Of those that could not be reached it dials one at most, and takes a fifth of the time for that.
  void follow();
  /// An error: the cluster cannot be used any more.
  const Status& status() const { return status_; }
  bool has_controller() const { return gone_us_ < 0; }

 private:
  struct Member {
    NodeAddress at;
    NodeHandle handle;          // null: cannot be reached from here now
    NodeHandle announced;       // the controller's handle of it
    bool listed = true;         // by the controller, as far as it has said
    uint32_t instances = 0;
    int64_t try_us = 0;         // without a handle: when to dial again
    int64_t pause_us = 0;       // before that
    bool is_new() const { return !handle && try_us == 0; }
  };
  void subscribe();
  void watch();
  void on_joined(const NodeJoined& node);
  void on_unlisted(const PartLost& lost);
  void drop(const PartLost& lost);
  void on_down(const rt::down& message);
  void reach(Member& member);
  void try_later(Member& member);
  void reach_new();
  void reach_again();
  void forget_unlisted();
  void look_for_controller();
  int64_t now_us() { return rt::now_us(&net_.system()); }

  ClusterNet& net_;
  ClusterHandle controller_;
  const Config config_;
  const Hooks hooks_;
  const EventLog log_;
  rt::Inbox<ClusterSink> news_;
  std::map<NodeId, Member> members_;
  int64_t gone_us_ = -1;     // since when the controller is gone; -1: it is not
  int64_t returned_us_ = 0;  // when it came back last; 0: long ago
  int64_t watch_us_ = 0;     // when it was asked last for its machines
  int64_t ask_us_ = 0;       // from when on it may be dialed again
  int64_t reach_us_ = 0;     // likewise a machine that could not be reached
  Status status_;
};

}  // namespace seer
