// DeviceBlocks: which KV blocks of one instance's engine are free, in use or cached, who uses them, and which content
// they hold. Pure bookkeeping, no I/O: the engine owns the memory, this says which index may be written by whom.
// Used by instance_actor only. Single owner, not thread-safe.
//
// A block is in use while sequences hold it, in their block tables. Once filled it may get a name (its BlockKey), by
// which later sequences with the same prefix find and share it. Without users, a named block stays cached until its room
// is needed; an unnamed one is free at once.
//
// Full blocks are never written again, so they may have many users. A partial block (the tail of a parked sequence) can
// be named too, but has one user at most: when the user writes more tokens into it, it loses its name.
// The engine runs its work in order, so a block may be given to a new user as soon as the last step or copy that reads
// it was submitted.
//
// Invariants:
//  (1) free + cached + in_use == total;
//  (2) a block has users > 0 exactly when it is in use; a block without users is cached exactly when it has a name;
//  (3) no two blocks have the same name: a second copy of the same content stays unnamed;
//  (4) a partial block with a name has at most one user;
//  (5) allocate() takes a cached block only when none is free, and then the one released longest ago.
// The order of all choices depends on the calls alone, so that a simulation can be repeated.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gpu/engine.h"
#include "protocols/key_buckets.h"
#include "protocols/kv.h"
#include "protocols/result.h"

namespace seer {

struct BlockCounts {
  int32_t total = 0;
  int32_t free = 0;
  int32_t cached = 0;  // named, without users: allocate() may take them
  int32_t in_use = 0;
  int32_t in_use_peak = 0;  // since construction
  int32_t available() const { return free + cached; }
};

class DeviceBlocks {
 public:
  /// REQUIRES: total_blocks >= 0, block_tokens > 0.
  DeviceBlocks(int32_t total_blocks, uint32_t block_tokens);
  DeviceBlocks(const DeviceBlocks&) = delete;
  DeviceBlocks& operator=(const DeviceBlocks&) = delete;

  /// Appends `count` blocks to `table`, each with one user and no name: free ones first, then cached ones, whose
  /// content is forgotten. kFull if there are too few; nothing is taken then.
  Status allocate(int32_t count, std::vector<DeviceBlockId>& table);

  /// Appends the blocks of the longest run of `chain`, from its start, that is here, with one more user each, and
  /// returns how many. A partial block is taken only when nobody uses it; otherwise the run ends before it, and the
  /// caller copies or prefills that tail.
  int32_t retain_run(std::span<const BlockRef> chain, std::vector<DeviceBlockId>& table);

  /// Takes one user off each block of a sequence's table, from back to front, so that the tail of a cached chain is evicted
  /// before the prefix, without which it is useless.
  /// REQUIRES: all in use.
  void release(std::span<const DeviceBlockId> table);

  /// Gives a block the name of its content. False if another block has that name: this one stays unnamed. No change if it
  /// has the name already.
  /// REQUIRES: in use, and unnamed or already with this name; ref.tokens is 1..block_tokens; a partial one has one user.
  bool name(DeviceBlockId block, const BlockRef& ref);

  /// Says that its user will write into the block: a partial block loses its name.
  /// REQUIRES: exactly one user; not named as full.
  void will_write(DeviceBlockId block);

  /// Forgets a name: the block is not found again, and is freed if it has no users. False if there is no such name.
  bool drop_name(const BlockKey& key);
  /// Forgets all names of weights older than `version`; returns how many.
  int32_t drop_names_below(WeightVersion version);

  BlockCounts counts() const;
  /// Blocks that become available when this table is released: those with no other user.
  int32_t sole_user_count(std::span<const DeviceBlockId> table) const;
  int32_t users(DeviceBlockId block) const { return at(block).users; }
  /// Name of a block, and how many of its tokens are filled.
  std::optional<BlockRef> name_of(DeviceBlockId block) const;
  std::optional<DeviceBlockId> find(const BlockKey& key) const;

 private:
  struct Block {
    BlockKey key;
    uint32_t named_tokens = 0;  // 0: no name
    int32_t users = 0;
    DeviceBlockId older = kNoBlock;  // neighbours in the list of cached blocks
    DeviceBlockId newer = kNoBlock;
    Block* next_in_bucket = nullptr;  // see KeyBuckets
  };
  static constexpr DeviceBlockId kNoBlock = -1;

  const Block& at(DeviceBlockId block) const;
  Block& at(DeviceBlockId block) { return const_cast<Block&>(static_cast<const DeviceBlocks*>(this)->at(block)); }
  void add_user(DeviceBlockId block);
  DeviceBlockId id_of(const Block& block) const { return static_cast<DeviceBlockId>(&block - blocks_.data()); }
  void drop_name_of(DeviceBlockId block);
  void append_cached(DeviceBlockId block);
  void unlink_cached(DeviceBlockId block);

  const uint32_t block_tokens_;
  std::vector<Block> blocks_;
  std::vector<DeviceBlockId> free_;  // a stack: the block freed last is given out first
  KeyBuckets<Block> named_;          // of blocks_, which never grows
  DeviceBlockId oldest_cached_ = kNoBlock, newest_cached_ = kNoBlock;
  int32_t cached_count_ = 0;
  int32_t in_use_peak_ = 0;
};

}  // namespace seer
