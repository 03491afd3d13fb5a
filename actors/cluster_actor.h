// cluster_actor: knows which machines are in the cluster and how to reach them. One per cluster, in the controller's process. It
// also starts the KV directory there.
//
// A machine asks to enter, starts its actors, and says where it listens; from then on it is monitored. Rollouts and other
// machines hear of it and dial it themselves, so that no connection goes through this process or dies with it.
//
// It keeps nothing on disk. After a restart, the running machines and rollouts enter again and fill it and the directory. So do
// those that this controller lost while it, or they, were stopped or cut off. Epochs and rollout ids are made from the current
// time, so a new controller repeats none of an earlier one, and numbers of those that enter again are not given once more, even if
// the clock was set back.
//
// Always true:
//  (1) at most one machine of each name is in the cluster or entering it;
//  (2) all machines have the same protocol; those with a model have that, and the KV layout, of the first of them; those with instances
//      have the weights of the first of them, until the cluster changes to new ones. A machine that joins with older weights is
//      then updated.
#pragma once
#include <algorithm>
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

  /// A machine that asked to enter and is not ready after this time loses its name.
  static constexpr int64_t kEnterUs = 60'000'000;
  /// Running machines and rollouts must enter again within this time after a restart. Then the KV of other rollouts is released.
  static constexpr int64_t kReturnUs = 90'000'000;
  /// KV of a lost rollout is released after this time. It enters again sooner if only its connection was lost.
  static constexpr int64_t kAbsentUs = 5'000'000;
  /// A machine that could not take the cluster's weights gets them again, at most so often, after 1, 2, 4, ... 64 s.
  static constexpr int32_t kTriesMax = 16;
  static constexpr int64_t kTryPauseUs = 1'000'000, kTryPauseUsMax = 64'000'000;

  /// `first_number`: the start time, in milliseconds of the calendar.
  ClusterActor(rt::self_ptr<ClusterActor> self_in, uint64_t first_number_in, EventLog log_in = {});
  ~ClusterActor();
  handle::behavior_type make_behavior();

  struct Member {
    ClusterIdentity identity;
    NodeRoles roles;
    int64_t kv_block_bytes = 0;
    int64_t entered_us = 0;
    uint64_t epoch = 0;
    std::optional<NodeReady> ready = {};  // none: it is being started
    bool draining = false;
    int32_t tries = 0;              // to give it the weights again, in a row
    bool retry_is_pending = false;  // the next of them has its time
    bool has_instances() const { return roles.has(NodeRole::kInstances); }
  };

  ClusterEntered on_enter(const EnterCluster& ask);
  void on_ready(const NodeReady& ready);
  void on_tick(const Tick& tick);
  uint64_t next_number();
  void keep_number(uint64_t number) { last_number = std::max(last_number, number); }
  void drop_lost_rollouts();
  void note_absent(RolloutId id);
  void drop_absent_rollout(RolloutId id);
  void drop_rollout(RolloutId id);
  rt::result<RolloutEntered> on_rollout(const EnterRollout& ask);
  void note_weights(const NodeReport& report);
  RolloutEntered enter_rollout(const EnterRollout& ask);
  void on_rollout_started(const RolloutStarted& started);
  Drained on_drain(const DrainMachine& drain);
  ClusterIdentity expected_of(const EnterCluster& ask) const;
  void on_weights(const ClusterWeights& changed);
  void has_changed(NodeId node);
  void on_updated(const WeightsUpdated& answer);
  /// It has not the weights of the cluster, as far as these are known.
  bool is_outdated(const Member& member) const;
  void update_outdated(const Member& member);
  void try_later(NodeId node, Member& member);
  void try_again(NodeId node);
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
  uint64_t last_number;               // the last one given to a machine or a rollout: the time in ms, each once
  std::map<RolloutId, RolloutHandle> rollouts;  // running ones
  std::map<RolloutId, int64_t> absent_us;       // lost ones, and those that enter again, whose KV is kept: since when
};

}  // namespace seer
