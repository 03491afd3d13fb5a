// KvTransport: the seam over which KV blocks move between machines (UCX; memory copies inside one process; a simulation).
// Used by kv_node_actor only: it fetches a block from another node's arena into its own. The reader holds a lease on the
// remote slot for as long as the fetch is open. `done` runs on a thread of the transport and must only hand over.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "protocols/ids.h"
#include "protocols/result.h"

namespace seer {

/// Where a sealed block lies in another node's arena. Epoch and generation are checked before a byte is trusted.
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
  std::span<std::byte> to;  // valid and untouched until done
};

class KvTransport {
 public:
  using Done = std::function<void(std::vector<Status>)>;  // one per fetch, in order
  virtual ~KvTransport() = default;
  /// Starts the fetches; kFull when too many are open. Every fetch ends: with its bytes, or with an error by its deadline.
  virtual Status fetch(std::vector<Fetch> fetches, Done done) = 0;
};

}  // namespace seer
