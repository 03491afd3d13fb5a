// kv_directory_actor: knows the KV nodes and which of them hold blocks of which owner. So a decision of the rollout (release,
// new weights) reaches exactly those nodes. One per cluster.
//
// It also knows how many blocks each node would take from another one that is full, and names a taker: one without instances
// before others, then the one with the most room. What it has promised counts as used until the taker reports its room again. The
// taker has the last word, so a figure that is out of date costs a message and nothing else.
//
// The first node sets the model, layout and protocol of all nodes; one that differs is refused with a sentence. So is a node
// whose name is taken. A machine that was started again may announce its node before we hear that its old self is gone: it waits, and
// is refused only if the old one is still alive after kTakeoverUs. A node that its machine has started again replaces the one before at
// once; epochs tell.
//
// It keeps nothing on disk. After a restart the nodes fill it with the owners they keep (DirectoryUp), and the rollouts repeat
// their releases.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/recent_set.h"
#include "protocols/actors.h"

namespace seer {

struct KvDirectoryActor {
  using handle = KvDirectoryHandle;
  static constexpr const char* kActorName = "kv_directory";

  static constexpr int64_t kTakeoverUs = 5'000'000;
  static constexpr size_t kReleasedMax = 1 << 16;  // about 7 MB
  static constexpr size_t kDroppedMax = 1 << 10;
  static constexpr int64_t kAliveUs = 86'400'000'000;  // a day: far below half of the time after which ids wrap around

  explicit KvDirectoryActor(rt::self_ptr<KvDirectoryActor> self_in);
  handle::behavior_type make_behavior();

  rt::self_ptr<KvDirectoryActor> self;
  std::map<NodeId, KvNodeUp> nodes;                // ordered, so that the same run sends the same messages
  std::map<NodeId, KvNodeUp> waiting;              // came up while another of the same name is alive
  std::map<NodeId, uint64_t> epochs;               // the highest of each node
  std::optional<ClusterIdentity> identity;         // of the nodes that are up
  std::set<NodeId> draining;                       // nodes that will leave
  std::map<NodeId, KvRoom> rooms;                  // of nodes that are up, less what was promised since
  struct Holding {
    bool is_guest = false;                         // as in KvHolds
    uint64_t since = 0;                            // how many KvHolds came before
  };
  using Holders = std::map<NodeId, Holding>;
  std::map<KvOwner, Holders> holders;              // bounded by the requests and groups of open rollouts
  uint64_t last_holds = 0;
  RecentSet<KvOwner> released{kReleasedMax};       // a late KvHolds may still name them
  RecentSet<RolloutId> dropped{kDroppedMax};       // rollouts that died: likewise
  std::optional<KvKeepRollouts> alive;             // the last one received, for kAliveUs: others with ids up to its `last` keep nothing
  int64_t alive_us = 0;                            // when it was
  WeightVersion version;                           // of the last KvBump; sent to nodes that come up later

  void on_node_up(const KvNodeUp& up);
  void on_node_down(const rt::down& message);
  void admit(const KvNodeUp& up);
  void forget(NodeId node);
  void refuse(const KvNodeUp& up, const std::string& why);
  void on_holds(const KvHolds& holds);
  void leave_draining(KvOwner owner, Holders& where);
  void on_draining(const KvDraining& node);
  void on_find(const FindHolders& find);
  void on_find_room(const FindRoom& find);
  void on_release(const KvRelease& release);
  void let_go(KvOwner owner);
  void on_drop_rollout(RolloutId rollout);
  void on_keep_rollouts(const KvKeepRollouts& keep);
  void on_rollout_returned(RolloutId rollout);
  bool is_lost(RolloutId rollout);
  void tell_release(NodeId id, const KvRelease& release);
  void on_bump(const KvBump& bump);
};

}  // namespace seer
