// cluster_actor: who is in the cluster, and how to reach each machine. One per cluster, in the process of the controller, beside
// the KV directory, which it starts.
//
// A machine asks to come in, starts what is its own, says where it listens, and is watched until it dies. Rollouts and other
// machines are told of it and dial it themselves, so that no connection goes through this process, or dies with it.
//
// Always true:
//  (1) at most one machine of a name is in the cluster, or about to be;
//  (2) all of them have one model, KV layout, weight version and protocol: those of the first.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/log.h"
#include "protocols/actors.h"

namespace seer {

struct ClusterActor {
  using handle = ClusterHandle;
  static constexpr const char* kActorName = "cluster";

  /// A machine that has asked to come in and is not up after so long has lost its place.
  static constexpr int64_t kEnterUs = 60'000'000;

  explicit ClusterActor(rt::self_ptr<ClusterActor> self_in, std::string secret_in = {}, EventLog log_in = {});
  ~ClusterActor();
  handle::behavior_type make_behavior();

  ClusterEntered on_enter(const EnterCluster& ask);
  void on_ready(const NodeReady& ready);
  RolloutEntered on_rollout();
  void on_rollout_started(const RolloutStarted& started);
  Drained on_drain(const DrainMachine& drain);
  void on_watch(const WatchCluster& watch);
  void on_down(const rt::down& message);
  ClusterReport report() const;
  template <class Message>
  void tell_all(const Message& message);

  struct Member {
    ClusterIdentity identity;
    int64_t entered_us = 0;
    std::optional<NodeReady> ready = {};  // none: it is being started
    bool draining = false;
  };

  rt::self_ptr<ClusterActor> self;
  std::string secret;
  EventLog log;
  KvDirectoryHandle directory;
  std::map<NodeId, Member> members;
  std::map<NodeId, uint64_t> starts;  // how often a machine of this name came in
  std::vector<ClusterSink> sinks;
  uint32_t last_rollout = 0;          // that was given a place
  std::map<RolloutId, RolloutHandle> rollouts;  // that run
};

}  // namespace seer
