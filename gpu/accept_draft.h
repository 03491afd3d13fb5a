// Which tokens of a draft are accepted (speculative decoding, path or tree). A draft token is accepted when it equals the
// token sampled at its position and all before it are accepted. So the output is, token for token, that of decoding without
// drafts.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/engine.h"

namespace seer {

/// The acceptance length of one verify: how many of `sampled` it gains, 1 to draft.size() + 1. First come the accepted draft
/// tokens, last the bonus token, which was sampled after them. The same number of verify rows hold the KV of output tokens; KV
/// of later rows will be overwritten. REQUIRES: sampled.size() == draft.size() + 1: row 0 fed the last known token, row i + 1
/// fed draft[i].
int32_t acceptance_length(std::span<const int32_t> draft, std::span<const SampledToken> sampled);

/// The accepted rows of a draft tree, in order, starting with the root (row 0). Every other one feeds the token that was sampled
/// at its parent. The verify gains sampled[r] for each accepted row r. Of children with the same token, the first counts.
/// REQUIRES: a tree as SequenceStep says; one sampled token per row.
std::vector<int32_t> accepted_path(std::span<const int32_t> tokens, std::span<const int32_t> parents,
                                   std::span<const SampledToken> sampled);

/// The rows that a verify would have accepted, had the text gone on with `came`, for a draft that was not verified. `tokens`,
/// `parents`: without those of row 0. REQUIRES: no path of the draft is longer than `came`.
std::vector<int32_t> path_of_text(std::span<const int32_t> tokens, std::span<const int32_t> parents, std::span<const int32_t> came);

}  // namespace seer
