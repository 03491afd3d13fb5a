// KeyBuckets: a hash table of nodes by BlockKey. The caller owns the nodes and does not move them while they are in the
// table; each has a `BlockKey key` and a link, `Node* next_in_bucket`. So a lookup touches only the bucket and the node, and
// nothing is allocated per node. Not thread-safe.
//
// The order of buckets depends on hashing: nothing may be decided by walking over them.
#pragma once
#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

#include "protocols/kv.h"

namespace seer {

template <class Node>
class KeyBuckets {
 public:
  explicit KeyBuckets(size_t expected_nodes = 64) : first_(std::bit_ceil(expected_nodes + 1)) {}

  /// Null if no node has that key.
  Node* find(const BlockKey& key) const {
    Node* node = first_[bucket_of(key)];
    while (node != nullptr && node->key != key) node = node->next_in_bucket;
    return node;
  }
  /// REQUIRES: no other node has its key.
  void add(Node& node) {
    if (++size_ > first_.size()) grow();
    node.next_in_bucket = std::exchange(first_[bucket_of(node.key)], &node);
  }
  /// REQUIRES: the node is in the table.
  void remove(Node& node) {
    Node** at = &first_[bucket_of(node.key)];
    while (*at != &node) at = &(*at)->next_in_bucket;
    *at = node.next_in_bucket;
    --size_;
  }
  size_t size() const { return size_; }
  template <class Visit>
  void for_each_unordered(Visit&& visit) const {
    for (Node* first : first_)
      for (Node* node = first; node != nullptr; node = node->next_in_bucket) visit(*node);
  }

 private:
  size_t bucket_of(const BlockKey& key) const { return std::hash<BlockKey>()(key) & (first_.size() - 1); }
  void grow() {
    std::vector<Node*> before(2 * first_.size());
    before.swap(first_);
    for (Node* node : before) {
      while (node != nullptr) {
        Node* const next = node->next_in_bucket;
        node->next_in_bucket = std::exchange(first_[bucket_of(node->key)], node);
        node = next;
      }
    }
  }

  std::vector<Node*> first_;  // of each bucket; a power of two, at least size_
  size_t size_ = 0;
};

}  // namespace seer
