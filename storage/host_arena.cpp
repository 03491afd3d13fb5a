#include "storage/host_arena.h"

#include <algorithm>

namespace seer {

Result<std::shared_ptr<HostArena>> HostArena::create(const HostArenaConfig& config, const SlabMaker& maker) {
  if (config.block_bytes <= 0) return fail(Code::kInvalidArgument, "KV block of ", config.block_bytes, " bytes");
  const int64_t slot_bytes = (config.block_bytes + 63) / 64 * 64;
  // Slot numbers are 32 bits; the largest one means "no slot".
  const int64_t slots = std::min<int64_t>(config.dram_bytes / slot_bytes, 0xfffffffe);
  if (slots < 1)
    return fail(Code::kInvalidArgument, "dram_bytes = ", config.dram_bytes, " does not hold one KV block of ",
                config.block_bytes, " bytes");
  auto memory = make_slab(slots * slot_bytes, maker);
  if (!memory.ok()) return fail(memory.error().code, "no memory for the DRAM tier: ", memory.error().detail);
  auto generations = map_slab(slots * static_cast<int64_t>(sizeof(uint64_t)));
  if (!generations.ok()) return fail(generations.error().code, "no memory for the DRAM tier: ", generations.error().detail);
  return std::shared_ptr<HostArena>(
      new HostArena(*std::move(memory), *std::move(generations), slots, config.block_bytes, slot_bytes));
}

HostArena::HostArena(Slab slots, Slab generations, int64_t slot_count, int64_t block_bytes, int64_t slot_bytes)
    : slots_(std::move(slots)),
      generations_(std::move(generations)),
      block_bytes_(block_bytes),
      slot_bytes_(slot_bytes),
      slot_count_(static_cast<uint32_t>(slot_count)) {}

HostArena::~HostArena() = default;

std::span<std::byte> HostArena::span(uint32_t slot) const {
  SEER_CHECK(slot < slot_count_, slot, slot_count_);
  return slots_.bytes().subspan(static_cast<size_t>(slot * slot_bytes_), static_cast<size_t>(block_bytes_));
}

std::atomic_ref<uint64_t> HostArena::times_freed(uint32_t slot) const {
  return std::atomic_ref(reinterpret_cast<uint64_t*>(generations_.bytes().data())[slot]);
}

uint64_t HostArena::generation(uint32_t slot) const {
  SEER_CHECK(slot < slot_count_, slot, slot_count_);
  return 1 + times_freed(slot).load(std::memory_order_acquire);
}

std::optional<uint32_t> HostArena::take() {
  if (freed_.empty()) {
    if (taken_.size() == slot_count_) return std::nullopt;
    taken_.push_back(1);
    return static_cast<uint32_t>(taken_.size() - 1);
  }
  const uint32_t slot = freed_.back();
  freed_.pop_back();
  taken_[slot] = 1;
  return slot;
}

void HostArena::free(uint32_t slot) {
  SEER_CHECK(is_taken(slot), slot, slot_count_);
  taken_[slot] = 0;
  times_freed(slot).fetch_add(1, std::memory_order_acq_rel);
  freed_.push_back(slot);
}

}  // namespace seer
