// BlockIndex: which KV blocks this node holds, in which state and tier, who owns them and who is reading them; and, from
// that, which of them may leave DRAM (SpillOrder). Pure data: no I/O and no bytes of blocks. Used by KvTiers only.
// Single owner, not thread-safe.
//
// Invariants:
//  (1) every block has owners, or is QUARANTINED and waits for its last operation to end;
//  (2) a block is in the spill order exactly while it is SEALED, owned and not leased, and in the cold order exactly while it is
//      SPILLED, owned and not leased;
//  (3) an owner holds at most one block per chain index; holding another one there releases the first (a partial tail
//      block gets a new key when it is filled up);
//  (4) a slot belongs to at most one block; blocks with a slot == slots taken in the arena.
#pragma once
#include <array>
#include <deque>
#include <functional>
#include <unordered_map>
#include <vector>

#include "protocols/key_buckets.h"
#include "storage/kv_lifecycle.h"
#include "storage/spill_order.h"

namespace seer {

using WriteToken = Id<struct WriteTokenTag>;  // permission to fill one slot once; never reused
using LeaseId = Id<struct LeaseTag>;          // of the blocks of one open(); never reused
using OpenId = Id<struct OpenTag>;            // an open() whose cold reads are not finished

inline constexpr uint32_t kNoSlot = 0xffffffffu;

struct Block {
  BlockKey key;
  uint32_t tokens = 0;
  uint32_t index = 0;            // in the chain of every owner
  BlockState state = BlockState::kFree;
  uint32_t slot = kNoSlot;
  uint32_t crc32c = 0;           // known once sealed
  bool has_cold_copy = false;    // stays valid while the block is in DRAM too: blocks never change
  bool prompt = false;
  bool writing = false;          // a write token is outstanding, even if the block is quarantined
  bool in_cold_io = false;       // the cold store is reading or writing the slot
  uint32_t leases = 0;
  WriteToken token;
  std::vector<OwnerId> owners;   // in the order in which they came; the first one keeps the block
  std::vector<OpenId> waiting;   // opens that wait until the block is back in DRAM
  uint64_t promote_ticket = 0;   // position in the queue for a slot; 0: not queued
  Block* next_in_bucket = nullptr;  // see KeyBuckets

  bool has_outstanding_operation() const { return writing || in_cold_io || leases > 0; }
};

class BlockIndex {
 public:
  struct Counts {
    std::array<int64_t, kBlockStateCount> by_state{};
    int64_t leased = 0;  // blocks with at least one lease
    int64_t cold = 0;    // blocks with a copy in the cold tier
  };

  Block* find(const BlockKey& key) { return by_key_.find(key); }
  const Block* find(const BlockKey& key) const { return by_key_.find(key); }
  Block* in_slot(uint32_t slot);

  /// A new block, RESERVED, without owner. REQUIRES: the key is not here.
  Block& add(const BlockRef& ref, uint32_t index, bool prompt);
  /// Forgets a FREE block. REQUIRES: no owner, no operation, no slot.
  void remove(Block& block);

  void apply(Block& block, BlockEvent event);  // REQUIRES: allowed by next_state()
  void set_slot(Block& block, uint32_t slot);  // kNoSlot: gives it up
  void set_cold_copy(Block& block, bool has);
  void add_lease(Block& block);
  void drop_lease(Block& block);

  /// The owner holds the block from now on. Returns the block it held at that index before, if that now has no owner.
  Block* retain(OwnerId owner, Block& block);
  /// Lets go of one block: true if it now has no owner.
  bool release(OwnerId owner, Block& block);
  /// Lets go of everything and forgets the owner. Returns the blocks that now have no owner, tail first.
  std::vector<Block*> release_all(OwnerId owner);
  /// Forgets the owners that hold nothing.
  void forget_idle_owners();
  /// Blocks that an owner holds from this chain index on, tail first.
  std::vector<Block*> held_from(OwnerId owner, uint32_t index) const;
  bool holds(OwnerId owner, const Block& block) const;

  void set_urgency(OwnerId owner, Urgency urgency);
  Urgency urgency(OwnerId owner) const;

  const SpillOrder& spill_order() const { return order_; }
  const SpillOrder& cold_order() const { return cold_order_; }
  const Counts& counts() const { return counts_; }
  int64_t block_count() const { return static_cast<int64_t>(by_key_.size()); }
  int64_t owner_count() const { return static_cast<int64_t>(owners_.size()); }
  /// Every owned block, by owner and chain index (a shared block comes up once per owner).
  void for_each_owned(const std::function<void(OwnerId, Block&)>& visit);
  /// Every block, in no fixed order: only for work that does not depend on the order.
  void for_each_unordered(const std::function<void(Block&)>& visit);

 private:
  struct Owner {
    Urgency urgency;
    std::vector<Block*> chain;  // by index; null where it holds no block here (another node may have it)
    size_t held = 0;            // blocks in it
  };
  static void let_go(Owner& owner, uint32_t index);
  /// The order that the block belongs to now; null: none.
  SpillOrder* order_of(const Block& block);
  static SpillPlace place(const Block& block);
  /// Runs `change` with the block out of its order, and puts it into the one to which it belongs then.
  template <class F>
  void change(Block& block, F&& change);

  KeyBuckets<Block> by_key_;
  std::deque<Block> memory_;     // of all blocks; their addresses are stable
  std::vector<Block*> unused_;   // free entries of memory_
  std::vector<Block*> slots_;    // by slot
  std::unordered_map<OwnerId, Owner> owners_;  // never iterated: the order would depend on hashing
  SpillOrder order_, cold_order_;
  Counts counts_;
};

}  // namespace seer
