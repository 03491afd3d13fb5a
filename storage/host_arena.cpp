#include "storage/host_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace seer {

Result<std::shared_ptr<HostArena>> HostArena::create(const HostArenaConfig& config) {
  if (config.block_bytes <= 0) return fail(Code::kInvalidArgument, "KV block of ", config.block_bytes, " bytes");
  const int64_t slot_bytes = (config.block_bytes + 63) / 64 * 64;
  // Slot numbers are 32 bits; the largest one means "no slot".
  const int64_t slots = std::min<int64_t>(config.dram_bytes / slot_bytes, 0xfffffffe);
  if (slots < 1)
    return fail(Code::kInvalidArgument, "dram_bytes = ", config.dram_bytes, " holds not one KV block of ",
                config.block_bytes, " bytes");
  const int64_t mapped_bytes = slots * slot_bytes;
  void* memory = mmap(nullptr, static_cast<size_t>(mapped_bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return fail(Code::kIo, "cannot map ", mapped_bytes, " bytes for the DRAM tier: ", std::strerror(errno));
  // Only a hint: fewer TLB misses when whole blocks are copied.
  (void)madvise(memory, static_cast<size_t>(mapped_bytes), MADV_HUGEPAGE);
  return std::shared_ptr<HostArena>(new HostArena(static_cast<std::byte*>(memory), mapped_bytes, config, slot_bytes));
}

HostArena::HostArena(std::byte* memory, int64_t mapped_bytes, const HostArenaConfig& config, int64_t slot_bytes)
    : memory_(memory),
      mapped_bytes_(mapped_bytes),
      block_bytes_(config.block_bytes),
      slot_bytes_(slot_bytes),
      slot_count_(static_cast<uint32_t>(mapped_bytes / slot_bytes)),
      generations_(new std::atomic<uint64_t>[slot_count_]),
      free_(slot_count_),
      taken_(slot_count_, 0) {
  for (uint32_t i = 0; i < slot_count_; ++i) {
    generations_[i].store(1, std::memory_order_relaxed);
    free_[i] = slot_count_ - 1 - i;
  }
}

HostArena::~HostArena() { munmap(memory_, static_cast<size_t>(mapped_bytes_)); }

std::span<std::byte> HostArena::span(uint32_t slot) const {
  SEER_CHECK(slot < slot_count_, slot, slot_count_);
  return {memory_ + static_cast<int64_t>(slot) * slot_bytes_, static_cast<size_t>(block_bytes_)};
}

uint64_t HostArena::generation(uint32_t slot) const {
  SEER_CHECK(slot < slot_count_, slot, slot_count_);
  return generations_[slot].load(std::memory_order_acquire);
}

std::optional<uint32_t> HostArena::take() {
  if (free_.empty()) return std::nullopt;
  const uint32_t slot = free_.back();
  free_.pop_back();
  taken_[slot] = 1;
  return slot;
}

void HostArena::free(uint32_t slot) {
  SEER_CHECK(slot < slot_count_, slot, slot_count_);
  SEER_CHECK(taken_[slot] != 0, slot);
  taken_[slot] = 0;
  generations_[slot].fetch_add(1, std::memory_order_acq_rel);
  free_.push_back(slot);
}

}  // namespace seer
