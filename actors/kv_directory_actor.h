// kv_directory_actor: knows which KV nodes hold blocks of which owner, so that what the rollout decides (release, new
// weights) reaches exactly those nodes. One per shard of groups; today one shard.
#pragma once
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "protocols/actors.h"

namespace seer {

struct KvDirectoryActor {
  using handle = KvDirectoryHandle;
  static constexpr const char* kActorName = "kv_directory";

  static constexpr size_t kReleasedMax = 1 << 16;  // about 7 MB

  explicit KvDirectoryActor(rt::self_ptr<KvDirectoryActor> self_in);
  handle::behavior_type make_behavior();

  rt::self_ptr<KvDirectoryActor> self;
  std::map<NodeId, KvNodeHandle> nodes;            // ordered: the same run gives the same messages
  std::map<NodeId, uint64_t> epochs;               // the highest of each node
  std::map<KvOwner, std::set<NodeId>> holders;     // bounded by the requests and groups of open rollouts
  std::set<KvOwner> released;                      // the last kReleasedMax: word that they are held may come later still
  std::deque<KvOwner> released_order;              // the same, oldest first
  WeightVersion version;                           // of the last bump: told to nodes that come up later

  void on_node_up(const KvNodeUp& up);
  void on_holds(const KvHolds& holds);
  void on_find(const FindHolders& find);
  void on_release(const KvRelease& release);
  void on_bump(const KvBump& bump);
};

}  // namespace seer
