#include "storage/arena_registry.h"

#include <cstring>
#include <utility>

#include "protocols/kv.h"

namespace seer {

void ArenaRegistry::add_node(NodeId node, uint64_t epoch, std::shared_ptr<HostArena> arena) {
  std::lock_guard lock(mutex_);
  Node& known = nodes_[node];
  if (epoch >= known.epoch) known = {epoch, std::move(arena)};
}

void ArenaRegistry::remove_node(NodeId node) {
  std::lock_guard lock(mutex_);
  nodes_.erase(node);
}

Status ArenaRegistry::copy(const Fetch& fetch) {
  const RemoteSlot& from = fetch.from;
  std::shared_ptr<HostArena> arena;
  {
    std::lock_guard lock(mutex_);
    const auto it = nodes_.find(from.node);
    if (it == nodes_.end()) return fail(Code::kUnavailable, "transport: node ", from.node, " is not reachable");
    if (it->second.epoch != from.epoch)
      return fail(Code::kStale, "transport: node ", from.node, " is in epoch ", it->second.epoch, ", not ", from.epoch);
    arena = it->second.arena;
  }
  if (from.slot >= arena->slot_count() || fetch.to.size() != static_cast<size_t>(arena->block_bytes()))
    return fail(Code::kInvalidArgument, "transport: slot ", from.slot, " of ", arena->slot_count(), ", ",
                fetch.to.size(), " bytes of ", arena->block_bytes());
  const auto moved_on = [&] { return arena->generation(from.slot) != from.generation; };
  if (moved_on()) return fail(Code::kStale, "transport: slot ", from.slot, " of node ", from.node, " was reused");
  std::memcpy(fetch.to.data(), arena->span(from.slot).data(), fetch.to.size());
  if (moved_on()) return fail(Code::kStale, "transport: slot ", from.slot, " of node ", from.node, " was reused");
  if (crc32c(fetch.to) != from.crc32c)
    return fail(Code::kCorrupt, "transport: slot ", from.slot, " of node ", from.node, " does not match its checksum");
  return {};
}

}  // namespace seer
