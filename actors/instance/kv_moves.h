// KvMoves: the KV of an instance's sequences on its way between the device, where DeviceBlocks counts it, and the pool of its
// machine. It finds the KV of a chunk's prefix (device, pool), brings blocks in, offers what was computed, and parks what a
// chunk leaves. Part of instance_actor, which decides when; no actors and no clock in here: what is to be said to the pool
// goes through a callback, copies go to the EngineQueue. Single owner, not thread-safe.
//
// A chunk whose KV is in the pool is an *arrival* while the device has no room for it. Copies are done after the steps that
// were submitted before them, so that a block may be given away as soon as its last reader was submitted.
//
// Always true:
//  (1) each message that asks the pool for something has an entry here until its answer comes; an answer without one was for
//      a chunk that is gone, and what it grants is given back;
//  (2) a sequence is answered for only when its parking_ops is 0 again;
//  (3) every lease is closed, every granted write sealed or aborted.
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

/// Names of the first blocks of all but the last token that it came with. REQUIRES: none of these tokens was fed yet.
std::span<const BlockRef> names_of(Sequence& s, int64_t blocks, const EngineInfo& info);
/// `chain` names the first whole blocks of the sequence; it becomes that of its first `tokens`.
void extend_names(const Sequence& s, std::vector<BlockRef>& chain, int64_t tokens, const EngineInfo& info);

class KvMoves {
 public:
  using ToPool = std::variant<KvOpening, KvReservation, KvClose, KvAbort, KvSeal>;
  using Tell = std::function<void(ToPool)>;

  /// All but the arena must outlive it. `arena`: of the pool; null without one.
  KvMoves(KvMovesConfig config, const EngineInfo& info, DeviceBlocks& devices, const SequenceTable& sequences,
          EngineQueue& engine, std::shared_ptr<HostArena> arena, Tell tell);

  // -- bringing KV in. `running` in these: sequences that run, which must keep room to grow

  /// Takes what the device has of the prefix after s.table, and asks the pool for the rest. The last token is always fed
  /// anew: its row gives the next token. True: nothing is to be waited for, the sequence can run.
  bool find(Sequence& s);
  /// The pool's answer. Blocks come to the device at once if there is room for all of them beside those that run. Otherwise
  /// the chunk becomes an arrival, which will ask again: a lease that waited for device blocks could keep those from parking
  /// that would free them. Returns the sequence that can run because nothing was found; null: none.
  Sequence* opened(const KvOpened& opened, int64_t running);
  /// Returns the sequence that can run now; null: its chunk is gone. What was damaged is prefilled again.
  Sequence* imported(const CopyResult& result);

  /// It waits like those whose KV was found in the pool.
  void add_arrival(Sequence& s);
  bool has_arrivals() const { return !arrivals_.empty(); }
  bool first_arrival_fits(int64_t running) const;
  /// Asks again for the oldest arrivals, as long as there is room. Returns those that can run, all of their KV being on the
  /// device by now. Running chunks go on meanwhile; as they finish or give way, room comes.
  std::vector<Sequence*> admit(int64_t running);
  /// So that no chunk waits for room that only other waiting ones could give: the last arrival that holds any blocks goes on
  /// without waiting, and can give way like the others. Null: none holds any.
  Sequence* release_last_arrival();
  /// REQUIRES: has_arrivals().
  Sequence& take_first_arrival();
  bool is_opening() const { return !openings_.empty(); }

  // -- giving KV to the pool

  /// Names the blocks that became full. Not those of draft tokens accepted after the end of the response: they are not in
  /// its log.
  void name_filled_blocks(Sequence& s);
  /// After the step: full blocks go to the pool while the chunk runs on, the prompt's at once (its group may start
  /// elsewhere), the others offer_blocks at a time. Without room there they stay here, and are offered again when the chunk
  /// parks.
  void offer_filled_blocks(Sequence& s);
  /// The chunk ends unfinished: all that the pool lacks of it is moved there, the partial last block included. What the pool
  /// has no room for is recomputed later. False: nothing is to be moved. REQUIRES: s.has_pool.
  bool park(Sequence& s);
  /// The pool's answer. Returns the sequence for which a parking operation ended with it; null: none.
  Sequence* reserved(const KvReserved& reserved);
  /// Likewise.
  Sequence* exported(const CopyResult& result);
  bool is_parking(uint64_t export_id) const { return exports_.at(export_id).parking; }
  /// The KV of the response will not be looked for again; the prompt's blocks stay cached for the rest of the group.
  void forget_response(const Sequence& s);

  /// The chunk is gone. What is under way for it ends by itself, for nobody.
  void drop(ChunkId chunk);

  const KvMoveFigures& figures() const { return figures_; }
  /// Operations under way, and chunks that wait.
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
    int32_t blocks = 0;   // that the pool had for it
    bool asked = false;   // once more, since there was room
  };

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
