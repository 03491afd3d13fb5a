#include "storage/arena_registry.h"

#include <cstring>
#include <functional>
#include <utility>

#include "protocols/kv.h"

namespace seer {
namespace {

std::string local_address(NodeId node) { return cat("local:", node); }

}  // namespace

std::string ArenaRegistry::publish(NodeId node, uint64_t epoch, std::shared_ptr<HostArena> arena) {
  std::lock_guard lock(mutex_);
  Published& known = published_[node];
  if (epoch >= known.epoch) known = {epoch, std::move(arena)};
  return local_address(node);
}

void ArenaRegistry::withdraw(NodeId node, uint64_t epoch) {
  std::lock_guard lock(mutex_);
  if (const auto it = published_.find(node); it != published_.end() && it->second.epoch == epoch) published_.erase(it);
}

Status ArenaRegistry::open_peer(NodeId node, uint64_t epoch, const std::string& address) {
  if (address != local_address(node))
    return fail(Code::kInvalidArgument, "transport: the address of node ", node, " is \"", address.substr(0, 60),
                "\", expected \"", local_address(node), "\": it must run in this process");
  std::lock_guard lock(mutex_);
  const auto it = published_.find(node);
  if (it == published_.end()) return fail(Code::kUnavailable, "transport: node ", node, " is not reachable");
  if (it->second.epoch != epoch)
    return fail(Code::kStale, "transport: node ", node, " is in epoch ", it->second.epoch, ", not ", epoch);
  peers_[node] = epoch;
  return {};
}

bool ArenaRegistry::close_peer(NodeId node, uint64_t epoch) {
  std::lock_guard lock(mutex_);
  const auto it = peers_.find(node);
  if (it == peers_.end() || it->second != epoch) return false;
  peers_.erase(it);
  return true;
}

std::optional<NodeId> ArenaRegistry::node_of(std::span<const std::byte> bytes) {
  std::lock_guard lock(mutex_);
  for (const auto& [node, published] : published_) {
    const HostArena& arena = *published.arena;
    if (arena.slot_count() == 0) continue;
    const std::byte* begin = arena.span(0).data();
    const std::byte* end = arena.span(arena.slot_count() - 1).data() + arena.block_bytes();
    if (!std::less<>{}(bytes.data(), begin) && std::less<>{}(bytes.data(), end)) return node;
  }
  return std::nullopt;
}

Status ArenaRegistry::is_open(NodeId node, uint64_t epoch) {
  std::lock_guard lock(mutex_);
  const auto peer = peers_.find(node);
  if (peer == peers_.end()) return fail(Code::kUnavailable, "transport: node ", node, " is not open");
  if (peer->second != epoch)
    return fail(Code::kStale, "transport: node ", node, " was opened in epoch ", peer->second, ", not ", epoch);
  return {};
}

Result<std::shared_ptr<HostArena>> ArenaRegistry::arena_of(NodeId node, uint64_t epoch) {
  std::lock_guard lock(mutex_);
  const auto it = published_.find(node);
  if (it == published_.end()) return fail(Code::kUnavailable, "transport: node ", node, " is not reachable");
  if (it->second.epoch != epoch)
    return fail(Code::kStale, "transport: node ", node, " is in epoch ", it->second.epoch, ", not ", epoch);
  return it->second.arena;
}

Result<std::shared_ptr<HostArena>> ArenaRegistry::lend(const RemoteSlot& slot, size_t block_bytes) {
  SEER_ASSIGN_OR_RETURN(std::shared_ptr<HostArena> arena, arena_of(slot.node, slot.epoch));
  if (slot.slot >= arena->slot_count() || block_bytes != static_cast<size_t>(arena->block_bytes()))
    return fail(Code::kInvalidArgument, "transport: slot ", slot.slot, " of ", arena->slot_count(), ", ", block_bytes,
                " bytes of ", arena->block_bytes());
  if (arena->generation(slot.slot) != slot.generation)
    return fail(Code::kStale, "transport: slot ", slot.slot, " of node ", slot.node, " was reused");
  return arena;
}

Status ArenaRegistry::copy(const Fetch& fetch) {
  const RemoteSlot& from = fetch.from;
  SEER_RETURN_IF_ERROR(is_open(from.node, from.epoch));
  SEER_ASSIGN_OR_RETURN(const std::shared_ptr<HostArena> arena, lend(from, fetch.to.size()));
  std::memcpy(fetch.to.data(), arena->span(from.slot).data(), fetch.to.size());
  if (arena->generation(from.slot) != from.generation)
    return fail(Code::kStale, "transport: slot ", from.slot, " of node ", from.node, " was reused");
  if (crc32c(fetch.to) != from.crc32c)
    return fail(Code::kCorrupt, "transport: slot ", from.slot, " of node ", from.node, " does not match its checksum");
  return {};
}

}  // namespace seer
