// HostArena: the DRAM tier's memory: one slab, cut into slots of one KV block each. Shared by the kv node of a machine
// (which alone takes and frees slots) and by the instances and transports of that machine, which read and write the bytes
// of the slots that the node granted or leased to them.
//
// Invariants:
//  (1) bytes of slots <= dram_bytes, and memory is only touched when a slot is first used: its own bytes, and 13 B of
//      bookkeeping (generation, flag, entry in the list of free slots);
//  (2) a slot is either free or taken; its generation rises each time it is freed, so that a reader with an older generation
//      knows that the bytes have changed.
//
// take() and free() belong to one owner thread. span() and generation() may be called from any thread; tokens and leases
// (KvTiers) decide who may touch the bytes.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "protocols/result.h"
#include "storage/slab.h"

namespace seer {

struct HostArenaConfig {
  int64_t dram_bytes = 0;   // upper bound of the slab
  int64_t block_bytes = 0;  // bytes of one KV block; a slot is this, rounded up to 64 (a cache line)
};

class HostArena {
 public:
  /// kInvalidArgument if not even one block fits; otherwise the error of the slab's maker.
  static Result<std::shared_ptr<HostArena>> create(const HostArenaConfig& config, const SlabMaker& maker = {});
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;
  ~HostArena();

  /// The block_bytes of a slot. REQUIRES: slot < slot_count().
  std::span<std::byte> span(uint32_t slot) const;
  uint64_t generation(uint32_t slot) const;
  uint32_t slot_count() const { return slot_count_; }
  int64_t slot_bytes() const { return slot_bytes_; }
  int64_t block_bytes() const { return block_bytes_; }

  /// Takes a free slot (the one freed last, whose memory is warm), or nothing when all are taken.
  std::optional<uint32_t> take();
  /// REQUIRES: the slot is taken.
  void free(uint32_t slot);
  uint32_t free_count() const { return slot_count_ - taken_count(); }
  uint32_t taken_count() const { return static_cast<uint32_t>(taken_.size() - freed_.size()); }
  bool is_taken(uint32_t slot) const { return slot < taken_.size() && taken_[slot] != 0; }

 private:
  HostArena(Slab slots, Slab generations, int64_t slot_count, int64_t block_bytes, int64_t slot_bytes);
  std::atomic_ref<uint64_t> times_freed(uint32_t slot) const;

  Slab slots_;
  Slab generations_;  // by slot: how often it was freed; read by transports on other threads
  int64_t block_bytes_;
  int64_t slot_bytes_;
  uint32_t slot_count_;
  std::vector<char> taken_;      // for each slot that was ever taken; these are the first slots
  std::vector<uint32_t> freed_;  // those of them that are free now: a stack
};

}  // namespace seer
