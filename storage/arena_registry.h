// ArenaRegistry: the arenas of one process by node, and the checked copy out of one of them: what LocalTransport and
// SimTransport have in common. An arena can be copied from once its node was published and opened as a peer. Thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "storage/host_arena.h"
#include "storage/kv_transport.h"

namespace seer {

class ArenaRegistry {
 public:
  // As in KvTransport.
  std::string publish(NodeId node, uint64_t epoch, std::shared_ptr<HostArena> arena);
  void withdraw(NodeId node, uint64_t epoch);
  Status open_peer(NodeId node, uint64_t epoch, const std::string& address);
  /// False: not open in this epoch.
  bool close_peer(NodeId node, uint64_t epoch);

  /// The node whose published arena the bytes lie in, if any.
  std::optional<NodeId> node_of(std::span<const std::byte> bytes);
  /// The published arena that holds the slot, after checking node, epoch, slot, block size and generation.
  Result<std::shared_ptr<HostArena>> lend(const RemoteSlot& slot, size_t block_bytes);
  /// Copies with the checks of a remote read: the peer and its epoch, the slot and its generation before and after the copy,
  /// the checksum of the copied bytes.
  Status copy(const Fetch& fetch);

 private:
  struct Published {
    uint64_t epoch = 0;
    std::shared_ptr<HostArena> arena;
  };
  Result<std::shared_ptr<HostArena>> arena_of(NodeId node, uint64_t epoch);
  Status is_open(NodeId node, uint64_t epoch);

  std::mutex mutex_;  // guards all below; not held while bytes are copied
  std::map<NodeId, Published> published_;
  std::map<NodeId, uint64_t> peers_;  // epoch of each opened peer
};

}  // namespace seer
