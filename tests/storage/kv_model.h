// KvModel: the slowest and plainest model of a KV node: the blocks that have an owner, whatever their tier. The random schedules of
// KvTiers compare the real node with it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <span>

#include "storage/block_index.h"

namespace seer {

class KvModel {
 public:
  struct Held {
    uint32_t index = 0, tokens = 0;
    bool sealed = false;
    std::set<OwnerId> owners;
  };
  const Held* find(const BlockKey& key) const {
    const auto at = blocks_.find(key);
    return at == blocks_.end() ? nullptr : &at->second;
  }
  /// Of its owner, who lets go of what it held at that index. A new block is being written.
  void retain(OwnerId owner, const BlockRef& ref, uint32_t index) {
    const auto is_replaced = [&](const auto& entry) { return entry.second.index == index && entry.first != ref.key; };
    let_go(owner, is_replaced);
    Held& held = blocks_[ref.key];
    held.index = index;
    held.tokens = ref.tokens;
    held.owners.insert(owner);
  }
  void release(OwnerId owner) {
    let_go(owner, [](const auto&) { return true; });
  }
  void seal(const BlockKey& key) { blocks_.at(key).sealed = true; }
  void forget(const BlockKey& key) { blocks_.erase(key); }
  void forget_below(WeightVersion version) {
    std::erase_if(blocks_, [&](const auto& entry) { return entry.first.version < version; });
  }
  /// How many of the keys a reader would find, from the first one on.
  size_t readable_prefix(std::span<const BlockKey> keys) const {
    size_t length = 0;
    for (; length < keys.size(); ++length)
      if (const Held* held = find(keys[length]); held == nullptr || !held->sealed) break;
    return length;
  }
  const std::map<BlockKey, Held>& blocks() const { return blocks_; }

 private:
  template <class Which>
  void let_go(OwnerId owner, const Which& which) {
    for (auto at = blocks_.begin(); at != blocks_.end();) {
      if (which(*at)) at->second.owners.erase(owner);
      at = at->second.owners.empty() ? blocks_.erase(at) : std::next(at);
    }
  }
  std::map<BlockKey, Held> blocks_;
};

}  // namespace seer
