// KvOwners: the owners of the blocks that a KV node keeps: requests, and groups, which own the blocks of their prompts. Tells the
// directory of each, once; from then on the directory sends the owner's release here. A new directory hears of all of them. What else
// the node tells the directory goes through here too. Part of kv_node_actor. Single owner, not thread-safe.
#pragma once
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocols/actors.h"
#include "storage/kv_tiers.h"

namespace seer {

class KvOwners {
 public:
  /// `me`: without its handle. `tiers` must outlive it. The directory hears of this node at once.
  KvOwners(rt::self_of<KvNodeHandle> self, KvNodeUp me, KvTiers& tiers, KvDirectoryHandle directory);

  // -- the directory

  /// False from its death until another one is up: it answers nothing then, and nobody has blocks or room.
  bool has_directory() const { return !directory_gone_; }
  template <class Message>
  void tell_directory(Message&& message) {
    rt::tell(self_, directory_, std::forward<Message>(message));
  }
  /// A new one: it hears of this node.
  void directory_up(KvDirectoryHandle directory);
  /// And of all owners.
  void tell_all();
  /// True: it was the directory.
  bool directory_down(const rt::down& message);

  // -- owners

  bool has(KvOwner owner) const { return kept_.contains(owner); }
  /// Its blocks came from a node whose DRAM was full, and it has not run here since. REQUIRES: has(owner).
  bool is_guest(KvOwner owner) const { return kept_.at(owner); }
  /// Reports the owner to the directory, once, and again when a guest runs here.
  void keep(KvOwner owner, bool guest = false);
  /// To be called when its blocks are released. False: it was not kept.
  bool forget(KvOwner owner) { return kept_.erase(owner) > 0; }
  size_t size() const { return kept_.size(); }
  /// Those that are requests.
  int64_t request_count() const;

  /// Makes the request an owner of the first `here` blocks, which it finds here and will not write again. Another request may have
  /// written them (responses that begin alike have equal blocks), and its release would free them. `keeps`: as in reserve().
  void own(const KvOpening& what, size_t here, bool keeps);
  /// Reserves room for blocks [first, end). Without `keeps` nobody hears that this node has blocks of the request: others may drop
  /// theirs then. REQUIRES: all are the group's prompt, or none is.
  std::vector<Reservation> reserve(const KvOpening& what, size_t first, size_t end, bool keeps);

 private:
  void announce();

  const rt::self_of<KvNodeHandle> self_;
  const KvNodeUp me_;
  KvTiers& tiers_;
  KvDirectoryHandle directory_;
  bool directory_gone_ = false;
  std::unordered_map<KvOwner, bool> kept_;  // true: as guests
};

/// How many of the blocks belong to the group's prompt; those come first.
size_t prompt_blocks_of(const KvOpening& what);

}  // namespace seer
