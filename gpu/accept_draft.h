// How much of a draft stands (speculative decoding, linear or tree). A draft token stands when it equals the token
// sampled at its position, and all before it stand: so the output is, token for token, what decoding without a draft
// gives.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/engine.h"

namespace seer {

/// The acceptance length of one verify: it gains the first so many of `sampled`, the accepted draft tokens first, the
/// bonus token (sampled behind them) last. 1 to draft.size() + 1. Also the number of verify rows whose KV is that of
/// output tokens: what later rows wrote is written again. REQUIRES: sampled.size() == draft.size() + 1: row 0 fed the
/// last known token, row i + 1 fed draft[i].
int32_t acceptance_length(std::span<const int32_t> draft, std::span<const SampledToken> sampled);

/// The rows of a draft tree that stand, in order, from the root (row 0) on: each but the root feeds the token that was
/// sampled at its parent. The verify gains sampled[r] of each of them. Where children of a row are equal, the first
/// counts. REQUIRES: a tree as SequenceStep says; one sampled token per row.
std::vector<int32_t> accepted_path(std::span<const int32_t> tokens, std::span<const int32_t> parents,
                                   std::span<const SampledToken> sampled);

}  // namespace seer
