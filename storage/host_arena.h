// HostArena: the DRAM tier's memory: one mapping, cut into slots of one KV block each. Shared by the kv node of a machine
// (which alone takes and frees slots) and by the instances and transports of that machine, which read and write the bytes
// of the slots that the node granted or leased to them.
//
// Invariants:
//  (1) bytes mapped <= dram_bytes, and memory is only touched when a slot is first used;
//  (2) a slot is either free or taken; its generation rises each time it is freed, so that whoever remembers an older one
//      can tell that the bytes are no longer those.
//
// take() and free() belong to one owner thread. span() and generation() may be called from any thread; who may touch the
// bytes is decided by tokens and leases (KvTiers).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "protocols/result.h"

namespace seer {

struct HostArenaConfig {
  int64_t dram_bytes = 0;   // upper bound of the mapping
  int64_t block_bytes = 0;  // bytes of one KV block; a slot is this, rounded up to 64 (a cache line)
};

class HostArena {
 public:
  /// kInvalidArgument when not one block fits; kIo when the system refuses the mapping.
  static Result<std::shared_ptr<HostArena>> create(const HostArenaConfig& config);
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
  uint32_t free_count() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t taken_count() const { return slot_count_ - free_count(); }
  bool is_taken(uint32_t slot) const { return taken_[slot] != 0; }

 private:
  HostArena(std::byte* memory, int64_t mapped_bytes, const HostArenaConfig& config, int64_t slot_bytes);

  std::byte* memory_;
  int64_t mapped_bytes_;
  int64_t block_bytes_;
  int64_t slot_bytes_;
  uint32_t slot_count_;
  std::unique_ptr<std::atomic<uint64_t>[]> generations_;  // from 1; read by transports on other threads
  std::vector<uint32_t> free_;                            // a stack, lowest slot on top at first
  std::vector<char> taken_;
};

}  // namespace seer
