// DraftHistory: counts of drafts over the time of a rollout, in at most kDraftSlicesMax slices of equal length. When time passes
// the last slice, all slices become twice as long. Used by instance_actor, which fills one, and by reports, which add those of
// all instances. Pure functions over DraftFigures (protocols/chunk.h).
#pragma once
#include <cstdint>

#include "protocols/chunk.h"

namespace seer {

inline constexpr size_t kDraftSlicesMax = 64;
inline constexpr int64_t kDraftSliceUs = 100'000;  // at first; later this times a power of 2

/// Halves their number.
void double_slices(DraftHistory& history);
/// REQUIRES: t_us >= 0.
void add_drafts(DraftHistory& history, int64_t t_us, const DraftCounts& drafts);
/// Adds the figures of another instance, slice by slice.
void add_figures(DraftFigures& figures, const DraftFigures& more);

}  // namespace seer
