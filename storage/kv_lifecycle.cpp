#include "storage/kv_lifecycle.h"

namespace seer {

const char* to_string(BlockState state) {
  switch (state) {
    case BlockState::kFree: return "free";
    case BlockState::kReserved: return "reserved";
    case BlockState::kWriting: return "writing";
    case BlockState::kSealed: return "sealed";
    case BlockState::kSpilling: return "spilling";
    case BlockState::kSpilled: return "spilled";
    case BlockState::kPromoting: return "promoting";
    case BlockState::kAborted: return "aborted";
    case BlockState::kQuarantined: return "quarantined";
    case BlockState::kLost: return "lost";
  }
  return "unknown";
}

const char* to_string(BlockEvent event) {
  switch (event) {
    case BlockEvent::kReserve: return "reserve";
    case BlockEvent::kGrant: return "grant";
    case BlockEvent::kSeal: return "seal";
    case BlockEvent::kAbort: return "abort";
    case BlockEvent::kSpill: return "spill";
    case BlockEvent::kSpilled: return "spilled";
    case BlockEvent::kSpillKept: return "spill_kept";
    case BlockEvent::kPromote: return "promote";
    case BlockEvent::kPromoted: return "promoted";
    case BlockEvent::kLose: return "lose";
    case BlockEvent::kDiscard: return "discard";
    case BlockEvent::kDrained: return "drained";
  }
  return "unknown";
}

std::optional<BlockState> next_state(BlockState state, BlockEvent event) {
  using S = BlockState;
  const auto only_from = [state](S from, S to) { return state == from ? std::optional(to) : std::nullopt; };
  switch (event) {
    case BlockEvent::kReserve: return only_from(S::kFree, S::kReserved);
    case BlockEvent::kGrant: return only_from(S::kReserved, S::kWriting);
    case BlockEvent::kSeal: return only_from(S::kWriting, S::kSealed);
    case BlockEvent::kAbort: return only_from(S::kWriting, S::kAborted);
    case BlockEvent::kSpill: return only_from(S::kSealed, S::kSpilling);
    case BlockEvent::kSpilled: return only_from(S::kSpilling, S::kSpilled);
    case BlockEvent::kSpillKept: return only_from(S::kSpilling, S::kSealed);
    case BlockEvent::kPromote: return only_from(S::kSpilled, S::kPromoting);
    case BlockEvent::kPromoted: return only_from(S::kPromoting, S::kSealed);
    case BlockEvent::kDrained: return only_from(S::kQuarantined, S::kFree);
    case BlockEvent::kLose:
      if (state == S::kFree || state == S::kLost || state == S::kQuarantined) return std::nullopt;
      return S::kLost;
    case BlockEvent::kDiscard:
      switch (state) {
        case S::kSealed:
        case S::kSpilling:
        case S::kSpilled:
        case S::kPromoting:
        case S::kAborted:
        case S::kLost: return S::kQuarantined;
        default: return std::nullopt;  // a block being written is aborted first
      }
  }
  return std::nullopt;
}

}  // namespace seer
