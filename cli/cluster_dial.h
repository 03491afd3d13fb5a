// How a process of the command line finds the controller of a cluster, and its machines.
#pragma once
#include <atomic>
#include <string>

#include "actors/fleet.h"
#include "actors/log.h"
#include "protocols/actors.h"
#include "protocols/rt_net.h"

namespace seer {

/// Threads of an actor system of a real run: actors use a few per cent of one core; more threads only wake each other.
inline constexpr size_t kActorThreads = 1;

/// Dials the controller, again and again for some seconds, since it may be starting just now. Errors: kInvalidArgument (not
/// HOST:PORT, naming the flag), kUnavailable, kCancelled.
Result<ClusterHandle> dial_cluster(rt::system& system, const std::string& address, const char* flag, const std::atomic<bool>& stop);

/// A place for a rollout in the cluster at `address`. Errors: kUnavailable.
Result<RolloutEntered> enter_rollout(rt::system& system, const std::string& address, const ClusterHandle& controller);

/// Keeps a fleet's nodes those of a cluster: dials each that joins, lets go of each that leaves. Single owner.
class ClusterFleet {
 public:
  /// REQUIRES: system and fleet outlive it.
  ClusterFleet(rt::system& system, Fleet& fleet, const ClusterHandle& controller, EventLog log = {});
  /// Does what has become known since the last call. Takes as long as dialing who joined.
  void follow();

 private:
  rt::system& system_;
  Fleet& fleet_;
  const EventLog log_;
  rt::Inbox<ClusterSink> news_;
};

}  // namespace seer
