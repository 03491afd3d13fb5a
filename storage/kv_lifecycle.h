// The life of one KV block on one node, as a pure table: which event may happen in which state, and what comes next.
// Every change of state in BlockIndex goes through next_state(). Pure; no state of its own.
//
//   FREE -> RESERVED -> WRITING -> SEALED            a slot is promised, handed to a writer, filled
//   SEALED -> SPILLING -> SPILLED                    copied to the cold tier, slot given up
//   SPILLED -> PROMOTING -> SEALED                   read back into a slot
//   WRITING -> ABORTED -> QUARANTINED -> FREE        the writer gave up, or nobody wants the block any more
//   SEALED|SPILLING|SPILLED|PROMOTING -> QUARANTINED discarded; FREE once no read, write or copy of it is outstanding
//   any of these but FREE, QUARANTINED -> LOST -> QUARANTINED   dropped to make room, or corrupt: must be computed again
#pragma once
#include <cstdint>
#include <optional>
#include <ostream>

namespace seer {

enum class BlockState : uint8_t {
  kFree,
  kReserved,
  kWriting,      // the holder of the write token may touch the slot
  kSealed,       // complete and immutable, in DRAM
  kSpilling,     // still readable in DRAM
  kSpilled,      // in the cold tier only
  kPromoting,    // a slot is being filled from the cold tier
  kAborted,
  kQuarantined,  // belongs to nobody; the slot waits for the last outstanding operation
  kLost,
};
inline constexpr int kBlockStateCount = 10;

enum class BlockEvent : uint8_t {
  kReserve,
  kGrant,      // slot and token were handed to the writer
  kSeal,
  kAbort,
  kSpill,
  kSpilled,
  kSpillKept,  // the copy to the cold tier ended, but the slot stays: it is being read, or the cold tier refused
  kPromote,
  kPromoted,
  kLose,
  kDiscard,    // no owner is left, or the weights changed
  kDrained,    // nothing is outstanding on the slot any more
};
inline constexpr int kBlockEventCount = 12;

const char* to_string(BlockState state);
const char* to_string(BlockEvent event);
inline std::ostream& operator<<(std::ostream& out, BlockState s) { return out << to_string(s); }
inline std::ostream& operator<<(std::ostream& out, BlockEvent e) { return out << to_string(e); }

/// The state after `event`, or nothing if the event is not allowed in `state`.
std::optional<BlockState> next_state(BlockState state, BlockEvent event);

/// True in the states in which the block's bytes in DRAM are complete and may be read.
constexpr bool readable_in_dram(BlockState s) { return s == BlockState::kSealed || s == BlockState::kSpilling; }

}  // namespace seer
