// cluster_actor: who is in the cluster, and how to reach each machine. One per cluster, in the process of the controller, beside
// the KV directory, which it starts.
//
// A machine asks to come in, starts what is its own, says where it listens, and is watched until it dies. Rollouts and other
// machines are told of it and dial it themselves, so that no connection goes through this process, or dies with it.
//
// It keeps nothing on disk. When it is started again after its process died, the machines and rollouts that run come in again
// and fill it and the directory. Epochs and rollout ids are made from the time at which it gives them, so it gives none that an
// earlier controller gave. A machine or rollout that this controller has lost is not taken in again: its work is done elsewhere.
//
// Always true:
//  (1) at most one machine of a name is in the cluster, or about to be;
//  (2) all of them have one model, KV layout and protocol: those of the first; and one weight version: that of the first, until
//      the cluster changes to others. A machine that comes with older weights then gets the new ones once it is up.
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

  /// A machine that has asked to come in and is not up after so long has lost its name.
  static constexpr int64_t kEnterUs = 60'000'000;
  /// What runs comes in again within this time after the start, or never. Then the KV of other rollouts is released.
  static constexpr int64_t kReturnUs = 90'000'000;

  /// `first_number`: the time of the start, in milliseconds of the calendar.
  ClusterActor(rt::self_ptr<ClusterActor> self_in, uint64_t first_number_in, EventLog log_in = {});
  ~ClusterActor();
  handle::behavior_type make_behavior();

  struct Member {
    ClusterIdentity identity;
    int64_t entered_us = 0;
    std::optional<NodeReady> ready = {};  // none: it is being started
    bool draining = false;
  };

  ClusterEntered on_enter(const EnterCluster& ask);
  void on_ready(const NodeReady& ready);
  uint64_t next_number();
  bool was_given_here(RolloutId id) const;
  void drop_lost_rollouts();
  RolloutEntered on_rollout(RolloutId before);
  void on_rollout_started(const RolloutStarted& started);
  Drained on_drain(const DrainMachine& drain);
  ClusterIdentity expected_of(const ClusterIdentity& comes) const;
  void on_weights(const ClusterWeights& changed);
  void has_changed(NodeId node);
  void on_updated(const WeightsUpdated& answer);
  bool is_outdated(const Member& member) const { return member.identity.version < weights.what.version; }
  void update_outdated(const Member& member);
  void on_watch(const WatchCluster& watch);
  void on_down(const rt::down& message);
  ClusterReport report() const;
  template <class Message>
  void tell_all(const Message& message);

  rt::self_ptr<ClusterActor> self;
  const uint64_t first_number;
  const int64_t started_us;
  EventLog log;
  KvDirectoryHandle directory;
  std::map<NodeId, Member> members;
  ClusterWeights weights;             // that the machines have changed to; version 0: those that they came with
  std::vector<ClusterSink> sinks;
  uint64_t last_number;               // that was given to a machine or a rollout: the time in ms, each once
  std::map<RolloutId, RolloutHandle> rollouts;  // that run
};

}  // namespace seer
