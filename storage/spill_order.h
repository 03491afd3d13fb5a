// SpillOrder: which block leaves DRAM next when room is short. It holds exactly the blocks that may leave (sealed, nobody
// reads them), grouped by the owner that keeps them. A second one, of blocks that are in the cold tier alone, says whose blocks
// come back first. Used by BlockIndex only. Pure data; O(log n) per call, n = blocks.
// Single owner, not thread-safe.
//
// Order of the groups, first to leave first (blocks of released owners are not here: they are freed at once):
//   1. parked:        own blocks of an owner that does not run; the one whose next use is furthest goes first
//   2. running:       own blocks of a pinned owner. Its engine still has them in device memory, so a copy that moved to the
//                     cold tier is not needed before the chunk ends
//   3. shared:        prompts, and blocks with several owners: one read back serves many. Furthest next use first
//   4. shared, running
// Blocks of guests (they came from a machine whose DRAM was full) are ranked like others, and first_at_home() skips them.
// Within a group the block with the largest chain index goes first, so that what remains is a prefix. The smaller owner id
// wins ties: the order is total and the same on every run.
#pragma once
#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "protocols/kv.h"
#include "protocols/pool.h"

namespace seer {

/// Who wants blocks to be kept: a request, or the prompt of a group.
using OwnerId = KvOwner;

/// How soon an owner needs its blocks.
struct Urgency {
  bool pinned = false;    // runs at present
  uint64_t next_use = 0;  // rank given by the scheduler: larger = used later
  bool guest = false;     // its blocks came from another machine, and must not be moved to a third one
  bool operator==(const Urgency&) const = default;
};

enum class SpillClass : uint8_t { kParked = 0, kRunning, kShared, kSharedRunning };

struct SpillCandidate {
  BlockKey key;
  OwnerId owner;
  SpillClass spill_class = SpillClass::kParked;
  uint64_t next_use = 0;
};

/// An owner, and when it needs its blocks next.
struct ParkedOwner {
  OwnerId owner;
  uint64_t next_use = 0;
};

/// The place of a block in the order.
struct SpillPlace {
  OwnerId owner;
  bool shared = false;
  uint32_t index = 0;  // in the owner's chain
  auto operator<=>(const SpillPlace&) const = default;
};

class SpillOrder {
 public:
  /// Urgency of an owner, from now on (default: not pinned, next_use 0).
  void set_urgency(OwnerId owner, Urgency urgency);
  /// REQUIRES: the owner has no blocks here.
  void forget(OwnerId owner);
  /// REQUIRES: the place is not taken.
  void add(const SpillPlace& place, const BlockKey& key);
  /// REQUIRES: the place is taken.
  void remove(const SpillPlace& place);

  /// The block that should leave next.
  std::optional<SpillCandidate> first() const;
  /// The same, but skips guests.
  std::optional<SpillCandidate> first_at_home() const;
  /// The same, but skips the own (not shared) blocks of one owner.
  std::optional<SpillCandidate> first_not_of(OwnerId owner) const;
  /// The parked owner with own blocks here whose next use is nearest.
  std::optional<ParkedOwner> last_parked() const;
  int64_t size() const { return size_; }

 private:
  struct Rank {  // of a group; sorted first = leaves first
    SpillClass spill_class;
    uint64_t next_use;
    OwnerId owner;
    bool guest;
    bool operator==(const Rank&) const = default;
    bool operator<(const Rank& o) const {
      if (spill_class != o.spill_class) return spill_class < o.spill_class;
      if (next_use != o.next_use) return next_use > o.next_use;
      return owner < o.owner;
    }
  };
  /// Blocks of one owner by chain index. A vector, because chains are short and every lease takes blocks out and puts them
  /// back.
  class Blocks {
   public:
    bool empty() const { return by_index_.empty(); }
    /// The one with the largest index. REQUIRES: not empty.
    const BlockKey& tail() const { return *by_index_.back(); }
    /// False: the place is taken.
    bool add(uint32_t index, const BlockKey& key);
    /// False: there is none.
    bool remove(uint32_t index);

   private:
    std::vector<std::optional<BlockKey>> by_index_;  // the last one is set
  };
  struct Group {
    Urgency urgency;
    Blocks own, shared;
    std::optional<Rank> own_rank, shared_rank;  // those in ranks_
    bool is_stale = false;                      // its ranks may be out of date: its owner is in stale_
  };
  static Rank rank(OwnerId owner, Urgency urgency, bool shared);
  SpillCandidate candidate(const Rank& rank) const;
  template <class Fits>
  std::optional<SpillCandidate> first_that(Fits fits) const;
  void changed(OwnerId owner, Group& group);
  void sort() const;

  // While there is room, groups change all the time and nobody asks which block leaves first. So they are sorted only when
  // somebody asks.
  mutable std::unordered_map<OwnerId, Group> groups_;  // never iterated
  mutable std::array<std::set<Rank>, 2> ranks_;        // of the non-empty lists: of owners at home, and of guests
  mutable std::vector<OwnerId> stale_;                 // at most a few times as many as groups_
  int64_t size_ = 0;
};

}  // namespace seer
