// Two nodes of one process: blocks of the first are fetched into slots of the second. For the tests of transports.
#pragma once
#include <cstring>

#include "protocols/kv.h"
#include "storage/kv_transport.h"

namespace seer {

struct ArenaPair {
  static constexpr int64_t kBytes = 256;
  static constexpr NodeId kNode{1};
  static constexpr uint64_t kEpoch = 5;

  ArenaPair() {
    from = *HostArena::create({.dram_bytes = 4 * kBytes, .block_bytes = kBytes});
    to = *HostArena::create({.dram_bytes = 4 * kBytes, .block_bytes = kBytes});
    slot = *from->take();
    target = *to->take();
    std::memset(from->span(slot).data(), 0x5a, kBytes);
    good = {kNode, kEpoch, slot, from->generation(slot), crc32c(from->span(slot))};
  }
  /// The first arena can be fetched from.
  template <class Transport>
  Status open(Transport& transport) {
    return transport.open_peer(kNode, kEpoch, transport.publish(kNode, kEpoch, from));
  }
  Fetch fetch_of(const RemoteSlot& remote) const { return {remote, to->span(target)}; }
  bool is_copied() const { return std::memcmp(to->span(target).data(), from->span(slot).data(), kBytes) == 0; }

  std::shared_ptr<HostArena> from, to;
  uint32_t slot = 0, target = 0;
  RemoteSlot good;
};

}  // namespace seer
