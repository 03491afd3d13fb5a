// The sampling options: one table for the flags of `seer rollout`, its file and the fields of a prompt line, so that all three
// take the same values. Used by config.cpp and jsonl.cpp.
#pragma once
#include <vector>

#include "cli/option.h"

namespace seer {

/// Responses per prompt: --group-size, and `n` in a prompt line.
inline const Range kGroupSizes = between(1, 1e6);

/// The options that are both flags and fields of prompt lines. They set the fields of `sampling`, which must outlive them.
std::vector<OptionSpec> sampling_options(SamplingParams& sampling);

}  // namespace seer
