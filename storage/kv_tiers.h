// KvTiers: the DRAM and the cold tier of one node as one store. kv_node_actor owns one and translates messages into its
// calls; instances of the machine read and write the slots they were granted or leased directly in the shared HostArena.
// Event-driven: no call blocks. Single owner, not thread-safe: every call, and every function handed to hooks.post, runs
// on the owner's thread. Deterministic: the same calls and completions give the same grants.
//
// WRITING  reserve() answers per block. Granted: fill arena.span(slot) with block_bytes, then seal(token, crc32c of them),
//          or abort(token) when giving up: until one of the two is called the slot stays taken, whatever happens to the
//          owner or the weights. Both promise that the writer does not touch the slot any more. A token ends once; later
//          completions with it are kStale and do nothing.
// READING  open() leases the longest prefix of the keys that is here; blocks in the cold tier are read back first. So the
//          answer comes by callback, always through hooks.post, never from inside open(). Blocks do not move or change
//          until close(lease); a result with blocks must be closed even if it is no longer needed.
// OWNING   A block lives while an owner holds it. reserve() makes the owner hold blocks that are already here; open() does not.
//          release(owner) frees at once the blocks that nobody else holds (one being read, written or copied: as soon as
//          that ends; until then its key is answered with kLater).
// NO ROOM  In this order: blocks that also have a cold copy give up their slot; others leave in SpillOrder (whole chains, tail
//          first), for another machine if one has room, else for the cold tier; without a cold tier, or when it is full, parked
//          chains whose next use is further away than the asking owner's are dropped, tail first, together with their cold blocks
//          (hooks.lost names them). kLater: room is being made, ask again when hooks.room is called. kRefused: there will be none;
//          an owner that finds blocks missing re-prefills them. Blocks of running owners and prompts may be spilled, but not dropped.
// AHEAD    What parked owners use next comes back from the cold tier before it is asked for; what is used later leaves for it.
// LEAVING  For another machine: hooks.find_away_room asks, away_room() answers, hooks.move_away names the blocks, which are leased
//          until close(lease, taken). Those taken are given up then, unless somebody else wants them by now. Guests, which came
//          from another machine in this way, do not leave for a third one.
// WEIGHTS  After bump_version(v) nothing below v is granted, sealed or opened, and its data is gone.
//
// Invariants (check_invariants()): slots taken == blocks with a slot <= slot_count; a slot is not reused while a write,
// read or cold transfer of it is outstanding; cold_used_bytes == bytes of blocks with a cold copy; when all owners have
// been released and all operations have ended nothing is left; no open crosses weight versions.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "protocols/pool.h"
#include "storage/block_index.h"
#include "storage/cold_store.h"
#include "storage/host_arena.h"

namespace seer {

struct KvTiersConfig {
  int64_t spill_batch_bytes = 32 << 20;  // written to the cold tier together, as one file, and so freed together
  int32_t spill_batches_max = 4;         // in flight at most
  int32_t reads_max = 4;                 // batches being read back at most, each up to spill_batch_bytes
  double free_share = 0.05;              // parked blocks are spilled ahead of need to keep this share of the slots free
  bool reads_ahead = true;               // blocks of the parked owners that are used next are read back before they are asked for
  int32_t cold_retry_reserves = 64;      // after the cold tier refused: tried again after this many reserves that lack room,
                                         // in case others freed space; space freed by erasing is used at once
  int32_t opens_max = 4096;              // opens waiting for cold reads; beyond that an open gets only what is in DRAM
};

struct LeavingBlocks;

struct KvTiersHooks {
  /// Hands a function to the owner's thread, to be run there later. Called from any thread, also the cold store's.
  std::function<void(std::function<void()>)> post;
  /// Called through post after reserve() answered kLater: there may be room now, ask again. May be empty.
  std::function<void()> room = {};
  /// Called inside other calls, so it may only take a note: this block was dropped for room, or is corrupt, and must be
  /// computed again. Not called for released or outdated blocks. May be empty, as in a KvNodeActor: who misses a block computes it.
  std::function<void(const BlockKey&)> lost = {};
  /// Also called inside other calls: the first error of a read or write of the cold store. The tiers go on without the blocks.
  /// May be empty.
  std::function<void(const Error&)> cold_failed = {};
  /// Called inside other calls too: asks for room on another machine, for this many blocks. Empty: there is no other machine.
  std::function<void(int64_t blocks)> find_away_room = {};
  /// Likewise: these blocks shall move there. May be empty if find_away_room is.
  std::function<void(const LeavingBlocks&)> move_away = {};
};

struct ReserveOptions {
  uint32_t first_index = 0;  // index of the first given block in the owner's whole chain
  bool prompt = false;       // blocks of a group's prompt: they leave DRAM last
};

struct Reservation {
  GrantState state = GrantState::kRefused;
  uint32_t slot = kNoSlot;  // kWrite, like the next
  uint64_t generation = 0;
  WriteToken token;
};

struct OpenBlock {
  BlockKey key;
  uint32_t slot = kNoSlot;
  uint64_t generation = 0;
  uint32_t crc32c = 0;  // what the writer computed
  uint32_t tokens = 0;
};

struct OpenResult {
  Status status;                  // kStale: the weights changed; blocks is empty then
  LeaseId lease;                  // of all blocks; 0 if there are none
  std::vector<OpenBlock> blocks;  // the longest prefix of the keys that is available
};

/// Consecutive blocks of an owner that leave for another machine.
struct LeavingBlocks {
  LeaseId lease;  // of all of them
  OwnerId owner;
  uint32_t first_index = 0;
  bool prompt = false;
  uint64_t next_use = 0;  // of the owner
  std::vector<OpenBlock> blocks;
};

/// What open() would find for a list of keys.
struct ProbeResult {
  uint32_t dram_blocks = 0;
  uint32_t cold_blocks = 0;  // in the cold tier only
};

struct KvTiersStats {
  int64_t dram_capacity_bytes = 0;
  int64_t dram_used_bytes = 0;         // slots taken, quarantined ones included
  int64_t dram_peak_bytes = 0;
  int64_t dram_quarantined_bytes = 0;
  int64_t cold_used_bytes = 0;
  int64_t spilled_bytes = 0;           // written to the cold tier, total
  int64_t promoted_bytes = 0;          // read back
  int64_t ahead_blocks = 0;            // those of them that nobody had asked for yet
  int64_t moved_blocks = 0;            // taken by other machines, total
  int64_t reserved = 0;                // blocks granted to writers, total
  int64_t sealed = 0;
  int64_t aborted = 0;
  int64_t stale_completions = 0;       // seal or abort of a token that had ended, or of discarded blocks
  int64_t later_blocks = 0;
  int64_t refused_blocks = 0;
  int64_t dropped_blocks = 0;          // dropped to make room
  int64_t corrupt_blocks = 0;          // bytes that differed from their checksum
  int64_t cold_errors = 0;             // cold reads and writes that failed otherwise
  int64_t cold_full = 0;               // cold writes refused for lack of space
  int64_t open_cold_blocks = 0;        // blocks that opens found in the cold tier only
  int64_t open_cut = 0;                // opens answered with less than was here, for lack of slots or after a bad read
};

class KvTiers {
 public:
  /// `cold` may be null: no cold tier. The arena must be empty and used by this KvTiers alone for taking slots.
  KvTiers(const KvTiersConfig& config, std::shared_ptr<HostArena> arena, std::unique_ptr<ColdStore> cold,
          KvTiersHooks hooks);
  ~KvTiers();

  /// Asks for slots for blocks of an owner; chain[0] is its block number options.first_index. One answer per block, in
  /// order. After the first kLater or kRefused no block is granted, so the granted blocks are a prefix of the missing ones.
  std::vector<Reservation> reserve(OwnerId owner, std::span<const BlockRef> chain, const ReserveOptions& options = {});
  Status seal(WriteToken token, uint32_t crc32c);
  Status abort(WriteToken token);
  /// The write failed, but a late transfer may still write to the slot. Nobody gets the block, and its slot stays taken until
  /// abort(token) or seal(token); seal() then answers kStale.
  void quarantine(WriteToken token);

  /// All keys must have one weight version. `owner` is who reads: its own blocks are not dropped to make room for it.
  void open(OwnerId owner, std::span<const BlockKey> keys, std::function<void(OpenResult)> done);
  bool has_waiting_opens() const { return !opens_.empty(); }  // for cold reads or slots
  /// Rises whenever a cold read or write, or a lease, ends: what opens wait for.
  uint64_t progress() const { return progress_; }
  /// Nothing of that has ended for too long, as on a disk that hangs: answers these opens with what is in DRAM. Until a read ends opens do
  /// not wait for one, and until a write ends nobody waits for its room.
  void note_silence();
  /// `taken`: of blocks that leave, those that the other machine keeps. kStale: not an open lease.
  Status close(LeaseId lease, std::span<const BlockKey> taken = {});
  /// The answer to hooks.find_away_room. 0: no machine has room; it is asked again after look_for_away_room().
  void away_room(int64_t blocks);
  /// What was known of room elsewhere may be out of date.
  void look_for_away_room();
  /// A reader found that a block's bytes in DRAM do not match its checksum: nobody gets it any more. Call it before closing
  /// the lease.
  void report_corrupt(const BlockKey& key);
  /// What open() would find; changes nothing.
  ProbeResult probe(std::span<const BlockKey> keys) const;

  void release(OwnerId owner);
  /// Owners that hold a block, or had their urgency set, and were not released.
  int64_t owner_count() const { return index_.owner_count(); }
  /// Pinned while it runs; next_use ranks parked owners (larger = later). Kept until release(owner).
  void set_urgency(OwnerId owner, Urgency urgency);
  void pin(OwnerId owner) { set_urgency(owner, {.pinned = true}); }
  void unpin(OwnerId owner, uint64_t next_use) { set_urgency(owner, {.pinned = false, .next_use = next_use}); }

  /// REQUIRES: v >= version().
  void bump_version(WeightVersion v);
  WeightVersion version() const { return version_; }

  /// Slots that are free and not promised to opens.
  int64_t free_for_writers() const;
  bool cold_writable() const { return cold_ != nullptr && !cold_full_ && !writes_hang_; }
  KvTiersStats stats() const;
  ColdStoreStats cold_stats() const { return cold_ != nullptr ? cold_->stats() : ColdStoreStats{}; }
  /// True if nothing is held, read, written or copied.
  bool is_drained() const;
  void check_invariants();

 private:
  struct OpenOp {
    OwnerId owner;
    std::vector<Block*> blocks;  // each leased; cut when one is lost
    size_t missing = 0;          // of them, not in DRAM yet
    std::function<void(OpenResult)> done;
  };

  // Writing.
  Reservation grant(OwnerId owner, const BlockRef& ref, uint32_t index, bool prompt);
  Block* end_write(WriteToken token);

  // Reading.
  void finish_open(OpenId id);
  void fail_open(OpenId id);                       // kStale. REQUIRES: it has no blocks
  void deliver(std::function<void(OpenResult)> done, OpenResult result);
  void shorten_open(OpenId id, size_t length);
  void cut_open(OpenId id, size_t length);         // shortens it, and ends it when nothing is missing any more
  void cut_opens_at(Block& block);                 // those that wait for the block
  void cut_last_open();                            // cuts the tail of the newest one that waits for a slot
  void leave_promote_queue(Block& block);

  // Owning.
  void release_from_all(Block& block);
  void discard(Block& block);                      // REQUIRES: no owner
  void drain(Block& block);                        // frees a QUARANTINED block if nothing is outstanding
  void free_slot(Block& block);
  void forget_cold_copy(Block& block);
  void flush_erases();
  void lose(Block& block);                         // for all its owners

  // Room.
  void advance();                                  // after every event: slots for opens, spills, the room hook
  void serve_opens();
  void make_room(int64_t slots, OwnerId for_owner, const Urgency& for_urgency);
  /// Until that many slots are free, or will be. Only blocks that are used after `used_after`.
  void spill(int64_t slots, SpillClass up_to, std::optional<uint64_t> used_after = {});
  void leave_to_cold_copy(Block& block);
  bool add_to_spill(Block& block, std::vector<Block*>& batch);
  bool submit_spill(const std::vector<Block*>& batch);
  void on_spilled(const std::vector<uint32_t>& slots, const std::vector<Status>& statuses);
  void drop_cold_duplicates();
  bool drop_next_chain(OwnerId for_owner, const Urgency& for_urgency);
  void promote_queued();
  void read_ahead();
  bool submit_read(const std::vector<Block*>& batch);
  int64_t batch_blocks() const;                    // most of one read or write of the cold tier
  int64_t kept_free() const { return static_cast<int64_t>(config_.free_share * arena_->slot_count()); }
  void on_promoted(const std::vector<uint32_t>& slots, const std::vector<Status>& statuses,
                   const std::vector<uint32_t>& crcs);
  std::optional<SpillCandidate> next_to_move() const;
  bool move_or_ask(const SpillCandidate& tail, int64_t blocks_max);
  void move_away(const SpillCandidate& tail, int64_t blocks_max);
  bool is_away_pending() const { return leaving_slots_ > 0 || away_ == AwayRoom::kAsked; }
  bool cold_io_is_under_way() const;
  bool room_is_under_way() const;
  bool others_give_room() const;                   // slots that others read come free, and their blocks can leave
  int64_t free_soon() const;                       // counting those of blocks that leave
  void note_peak();

  const KvTiersConfig config_;
  KvTiersHooks hooks_;
  std::shared_ptr<HostArena> arena_;
  BlockIndex index_;
  WeightVersion version_;

  uint64_t last_token_ = 0, last_lease_ = 0, last_open_ = 0, last_promote_ = 0;
  std::map<WriteToken, Block*> writes_;
  std::map<LeaseId, std::vector<Block*>> leases_;
  std::map<OpenId, OpenOp> opens_;
  std::map<uint64_t, Block*> promote_queue_;  // SPILLED blocks that opens wait for, oldest first
  int64_t spilling_slots_ = 0;                // slots that come free when the writes in flight succeed
  int32_t spills_in_flight_ = 0;
  int32_t reads_in_flight_ = 0;
  uint64_t progress_ = 0;
  bool reads_hang_ = false, writes_hang_ = false;  // there was silence while some were in flight; none has ended since
  int64_t wanted_slots_ = 0;                  // for blocks that were answered with kLater
  bool slot_freed_ = false;                   // a slot came free since the last kLater
  bool cold_full_ = false;                    // the last write was refused and nothing was erased since
  int32_t asked_while_full_ = 0;
  bool ahead_failed_ = false;                 // a read failed: nothing is read ahead until one that is waited for succeeds
  enum class AwayRoom : uint8_t { kNotAsked, kAsked, kFound, kNone };
  AwayRoom away_ = AwayRoom::kNotAsked;
  int64_t away_blocks_ = 0;                   // with kFound: how many more blocks may leave
  std::map<LeaseId, int64_t> leaving_;        // leases of LeavingBlocks, and how many blocks each has
  int64_t leaving_slots_ = 0;                 // their sum
  std::vector<BlockKey> erased_;              // copies to be erased at the end of this call
  KvTiersStats stats_;

  std::shared_ptr<KvTiers*> self_;            // completions that come after our destruction find it empty
  // Last, so that it is destroyed first: its threads read and write slots of the arena.
  std::unique_ptr<ColdStore> cold_;
};

}  // namespace seer
