// ArenaRegistry: the arenas of one process by node, and the checked copy out of one of them: what LocalTransport and
// SimTransport have in common. Thread-safe.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "storage/host_arena.h"
#include "storage/kv_transport.h"

namespace seer {

class ArenaRegistry {
 public:
  /// The node's memory can be fetched from now on; a later epoch replaces an earlier one.
  void add_node(NodeId node, uint64_t epoch, std::shared_ptr<HostArena> arena);
  /// The node is gone: copies from it answer kUnavailable.
  void remove_node(NodeId node);

  /// Checked as a remote read would be: the node and its epoch, the slot and its generation before and after the copy,
  /// the checksum of the copied bytes.
  Status copy(const Fetch& fetch);

 private:
  struct Node {
    uint64_t epoch = 0;
    std::shared_ptr<HostArena> arena;
  };
  std::mutex mutex_;  // guards nodes_; not held while bytes are copied
  std::map<NodeId, Node> nodes_;
};

}  // namespace seer
