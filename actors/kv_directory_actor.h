// kv_directory_actor: knows which KV nodes there are and which of them hold blocks of which owner, so that what the rollout
// decides (release, new weights) reaches exactly those nodes. One per shard of groups; today one shard.
//
// The first node says what model, layout and protocol all nodes must have; a foreign one is refused with a sentence. So is
// a node whose name another one has. A node that was started again may announce itself before we hear that its former self
// is gone: it waits, and is refused only if that one is still alive after kTakeoverUs.
//
// It keeps nothing on disk. One that is started in place of another is filled by the nodes, which name the owners they keep
// (DirectoryUp), and by the rollouts, which repeat what they released.
#pragma once
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "protocols/actors.h"

namespace seer {

struct KvDirectoryActor {
  using handle = KvDirectoryHandle;
  static constexpr const char* kActorName = "kv_directory";

  static constexpr int64_t kTakeoverUs = 5'000'000;
  static constexpr size_t kReleasedMax = 1 << 16;  // about 7 MB
  static constexpr size_t kDroppedMax = 1 << 10;

  explicit KvDirectoryActor(rt::self_ptr<KvDirectoryActor> self_in);
  handle::behavior_type make_behavior();

  rt::self_ptr<KvDirectoryActor> self;
  std::map<NodeId, KvNodeUp> nodes;                // ordered: the same run gives the same messages
  std::map<NodeId, KvNodeUp> waiting;              // came up while another of that name is alive
  std::map<NodeId, uint64_t> epochs;               // the highest of each node
  std::optional<ClusterIdentity> identity;         // of the nodes that are up
  std::string last_refusal;                        // for tests and logs; empty: none
  std::set<NodeId> draining;                       // that will go
  std::map<KvOwner, std::set<NodeId>> holders;     // bounded by the requests and groups of open rollouts
  std::set<KvOwner> released;                      // the last kReleasedMax: word that they are held may come later still
  std::deque<KvOwner> released_order;              // the same, oldest first
  std::set<RolloutId> dropped;                     // that have died: the kDroppedMax highest; word of what they held may come later too
  std::optional<KvKeepRollouts> alive;             // as last told: others with ids up to its `last` keep nothing
  WeightVersion version;                           // of the last bump: told to nodes that come up later

  void on_node_up(const KvNodeUp& up);
  void on_node_down(const rt::down& message);
  void admit(const KvNodeUp& up);
  void refuse(const KvNodeUp& up, const std::string& why);
  void on_holds(const KvHolds& holds);
  void leave_draining(KvOwner owner, std::set<NodeId>& where);
  void on_draining(const KvDraining& node);
  void on_find(const FindHolders& find);
  void on_release(const KvRelease& release);
  void on_drop_rollout(RolloutId rollout);
  void on_keep_rollouts(const KvKeepRollouts& keep);
  void tell_release(NodeId id, const KvRelease& release);
  void on_bump(const KvBump& bump);
};

}  // namespace seer
