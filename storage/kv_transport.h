// KvTransport: the seam over which KV blocks move between machines (UCX; memory copies inside one process; a simulation).
// Used by kv_node_actor only: it fetches blocks from another node's arena into slots of its own, under a lease on the
// remote slots.
//
// A node publishes its arena and announces the address that it gets. Another node opens that address as a peer and fetches.
//
// What is always true of a fetch that was accepted:
//  (1) `done` is called exactly once: when the bytes have arrived, after an error, when nothing came from its peer for its timeout,
//      after close_peer() or at the end of the transport. A fetch that waits behind others is not late while these come;
//  (2) a fetch that timed out has failed, even if its bytes arrive later. If they may, the result says `still_writing`, and
//      `quiet` is called once, when the transport will no longer write to the slots. Until then the slots must not be used
//      for anything else;
//  (3) without `still_writing` nothing is written after `done`, and `quiet` is not called.
// Both run on a thread of the transport, or inside a call to it, and must only hand over (Outbox in protocols/workers.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "protocols/ids.h"
#include "protocols/result.h"
#include "storage/host_arena.h"

namespace seer {

/// The place of a sealed block in another node's arena. Epoch and generation are checked before a byte is trusted.
struct RemoteSlot {
  NodeId node;
  uint64_t epoch = 0;       // of the node: rises when it restarts
  uint32_t slot = 0;
  uint64_t generation = 0;  // of the slot: rises each time it is reused
  uint32_t crc32c = 0;      // of the block's bytes; a mismatch is kCorrupt
  SEER_FIELDS(RemoteSlot, node, epoch, slot, generation, crc32c)
};

struct Fetch {
  RemoteSlot from;
  std::span<std::byte> to;  // valid and untouched by others until done, or quiet
};

struct FetchResult {
  std::vector<Status> statuses;  // one per fetch, in order
  bool still_writing = false;    // bytes may still arrive in the slots of fetches that failed
};

/// The error of a fetch that timed out.
inline Error late_fetch(NodeId node, int64_t timeout_us) {
  return fail(Code::kUnavailable, "transport: node ", node, " sent nothing within ", timeout_us, " us");
}

struct FetchEvents {
  std::function<void(FetchResult)> done;
  std::function<void()> quiet;
};

class KvTransport {
 public:
  virtual ~KvTransport() = default;

  /// Other nodes can fetch from this arena from now on; a later epoch of the node replaces an earlier one. Returns the
  /// address by which they open it.
  virtual std::string publish(NodeId node, uint64_t epoch, std::shared_ptr<HostArena> arena) = 0;
  /// Other nodes cannot fetch from it any more. Ignored if `epoch` is not the published one.
  virtual void withdraw(NodeId node, uint64_t epoch) = 0;

  /// Makes a node's arena reachable, or keeps it so: opening again what is open changes nothing, a later epoch replaces an
  /// earlier one. kInvalidArgument: not an address of this kind of transport. kUnavailable, kStale: it cannot be reached.
  virtual Status open_peer(NodeId node, uint64_t epoch, const std::string& address) = 0;
  /// Ends the fetches from this peer: open ones end soon with an error, late ones become quiet. Ignored if `epoch` is not
  /// the opened one.
  virtual void close_peer(NodeId node, uint64_t epoch) = 0;

  /// A text for users: how blocks arrive from an open peer, and why. Empty if it is not open.
  virtual std::string peer_info(NodeId node) const = 0;

  /// Starts fetches from one peer, for as long as something comes from it at least every timeout_us. After an error (kFull: too many are
  /// open) nothing was started, and no event comes. REQUIRES: all are from the same node and epoch.
  virtual Status fetch(std::vector<Fetch> fetches, int64_t timeout_us, FetchEvents events) = 0;
};

}  // namespace seer
