// KvMoves: moves the KV of an instance's sequences between the device (DeviceBlocks) and the pool of its machine. It finds
// the KV of a chunk's prefix (device, pool), imports blocks, offers what was computed, and parks the KV of a chunk that ends
// unfinished. Part of instance_actor, which decides when. It has no actors and no clock: messages to the pool go through a
// callback, copies through the EngineQueue. Single owner, not thread-safe.
//
// A chunk whose KV is in the pool is an *arrival* while the device has no room for it. The engine does a copy after the steps
// submitted before it. So a block may be released as soon as the last work that reads it was submitted.
//
// Always true:
//  (1) each question to the pool has an entry here until its answer comes. An answer without an entry was for a chunk that is
//      gone; what it grants is given back;
//  (2) a parking sequence is answered only when its parking_ops is 0 again;
//  (3) every lease is closed; every granted write is sealed or aborted.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "actors/instance/engine_queue.h"
#include "actors/instance/sequence.h"
#include "gpu/device_blocks.h"
#include "protocols/pool.h"
#include "storage/host_arena.h"

namespace seer {

struct KvMovesConfig {
  int32_t headroom_tokens = 32;  // as in InstanceConfig
  int32_t offer_blocks = 8;
};

struct KvMoveFigures {
  int64_t imported_blocks = 0;  // from the pool to the device
  int64_t exported_blocks = 0;  // from the device to the pool
  int64_t corrupt_blocks = 0;   // imports whose checksum did not match; recomputed
};

// ---- names of blocks: free functions, which change only the sequence -------------------------------------------------------

/// Names of the first `blocks` blocks. The last token gets no name: it is always fed again.
/// REQUIRES: no token of the sequence was fed yet.
std::span<const BlockRef> names_of(Sequence& s, int64_t blocks, const EngineInfo& info);
/// Extends `chain`, the names of the first whole blocks of the sequence, to its first `tokens`.
void extend_names(const Sequence& s, std::vector<BlockRef>& chain, int64_t tokens, const EngineInfo& info);

class KvMoves {
 public:
  using ToPool = std::variant<KvOpening, KvReservation, KvClose, KvAbort, KvSeal>;
  using Tell = std::function<void(ToPool)>;

  /// The references must outlive it. `arena`: the pool's; null without a pool.
  KvMoves(KvMovesConfig config, const EngineInfo& info, DeviceBlocks& devices, const SequenceTable& sequences,
          EngineQueue& engine, std::shared_ptr<HostArena> arena, Tell tell);

  // -- bringing KV in. `running`: how many sequences run; each must keep room to grow

  /// Takes what the device has of the prefix after s.table, and asks the pool for the rest. The last token is always fed
  /// again: its row gives the next token. True: the sequence can run now.
  bool find(Sequence& s);
  /// Handles the pool's answer. Imports the blocks at once if all of them fit beside the running sequences. Otherwise closes
  /// the lease and makes the chunk an arrival, which asks again later: a lease held meanwhile could stop another chunk from
  /// parking and so from freeing device blocks. Returns the sequence that can run because the pool has nothing; null: none.
  Sequence* opened(const KvOpened& opened, int64_t running);
  /// Returns the sequence that can run now; null: its chunk is gone. Damaged blocks are prefilled again.
  Sequence* imported(const CopyResult& result);

  /// Makes the sequence wait like those whose KV was found in the pool.
  void add_arrival(Sequence& s);
  bool has_arrivals() const { return !arrivals_.empty(); }
  /// True: the first arrival waits for room, or the room for both is not there. Then the sequence waits behind it.
  bool is_behind_arrivals(const Sequence& s, int64_t running) const;
  bool first_arrival_fits(int64_t running) const;
  /// While there is room, takes out the oldest arrivals that can run at once, because the device has all of their KV by now, and
  /// returns them. The first of the others asks the pool again.
  std::vector<Sequence*> admit(int64_t running);
  /// Lets the last arrival that holds blocks run without waiting; it can then give way like others. This breaks a deadlock in
  /// which arrivals wait for blocks that only other arrivals hold. Null: none holds any.
  Sequence* release_last_arrival();
  /// REQUIRES: has_arrivals().
  Sequence& take_first_arrival();
  bool is_opening() const { return !openings_.empty(); }

  // -- giving KV to the pool

  /// Names the blocks that became full. Draft tokens accepted after the end of the response are not in the log, so their
  /// blocks get no name.
  void name_filled_blocks(Sequence& s);
  /// Offers full blocks to the pool while the chunk runs on: the prompt's at once (its group may start elsewhere), the others
  /// offer_blocks at a time. Blocks that the pool has no room for are offered again when the chunk parks.
  void offer_filled_blocks(Sequence& s);
  /// Moves to the pool all KV of an unfinished chunk that the pool lacks, the partial last block included. What the pool has
  /// no room for is recomputed later. False: there is nothing to move. REQUIRES: s.has_pool.
  bool park(Sequence& s);
  /// Handles the pool's answer. Returns the sequence whose parking operation ended with it; null: none.
  Sequence* reserved(const KvReserved& reserved);
  /// Likewise, for a copy that is done.
  Sequence* exported(const CopyResult& result);
  bool is_parking(uint64_t export_id) const { return exports_.at(export_id).parking; }
  /// Drops the names of the response's blocks: nobody will ask for them again. The prompt's blocks stay cached for the group.
  void forget_response(const Sequence& s);

  /// Forgets a chunk that is gone. Results of its open operations are ignored.
  void drop(ChunkId chunk);

  const KvMoveFigures& figures() const { return figures_; }
  /// Open operations and waiting chunks.
  size_t open_count() const {
    return openings_.size() + reserves_.size() + exports_.size() + imports_.size() + arrivals_.size();
  }
  /// Blocks that the first arrival waits for. REQUIRES: has_arrivals().
  int32_t first_arrival_blocks() const { return arrivals_.front().blocks; }
  size_t arrival_count() const { return arrivals_.size(); }

 private:
  struct Opening {
    ChunkId chunk = kNoChunk;
    std::vector<BlockRef> wanted;
  };
  struct Import {
    ChunkId chunk;
    KvOpened opened;
    std::vector<BlockRef> blocks;  // the names of opened.blocks
  };
  struct Reservation {
    ChunkId chunk = kNoChunk;
    KvReservation ask;
    size_t first_block = 0;  // ask.blocks[0] is in the sequence's table[first_block]
  };
  struct Export {
    ChunkId chunk;
    std::vector<uint64_t> tokens;
    bool parking = false;
  };
  struct Arrival {
    ChunkId chunk;
    int32_t blocks = 0;   // device blocks that it waits for
    bool asked = false;   // the pool was asked again and has not answered yet
  };

  int32_t blocks_of(const Sequence& s) const;
  bool fits_beside_running(int32_t blocks, int64_t running) const;
  void import(Sequence& s, const KvOpened& opened, std::vector<BlockRef> wanted);
  int32_t reserve_from(const Sequence& s, const std::vector<BlockRef>& blocks, size_t from, bool parking);
  void reserve(ChunkId id, KvReservation ask, size_t first_block);

  const KvMovesConfig config_;
  const EngineInfo& info_;
  DeviceBlocks& devices_;
  const SequenceTable& sequences_;
  EngineQueue& engine_;
  const std::shared_ptr<HostArena> arena_;
  const Tell tell_;
  uint64_t next_op_ = 1;
  std::map<uint64_t, Opening> openings_;
  std::map<uint64_t, Import> imports_;
  std::map<uint64_t, Reservation> reserves_;
  std::map<uint64_t, Export> exports_;
  std::deque<Arrival> arrivals_;  // at most rows_max of InstanceConfig
  KvMoveFigures figures_;
};

}  // namespace seer
