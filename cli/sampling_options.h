// The sampling options: one table for the flags of `seer rollout`, its file and the fields of a prompt line, so that all three
// take the same values. Used by config.cpp and jsonl.cpp.
#pragma once
#include <string>
#include <vector>

#include "cli/option.h"

namespace seer {

/// Responses per prompt: --group-size, and `n` in a prompt line.
inline const Range kGroupSizes = between(1, 1e6);

/// The options that are both flags and fields of prompt lines. They set the fields of `sampling`, which must outlive them.
std::vector<OptionSpec> sampling_options(SamplingParams& sampling);

/// The text of a JSON value of such a field, as set_json_option() takes it: other programs write top_k -1 for off, which is 0.
std::string sampling_text(const std::string& field, const std::string& text);

}  // namespace seer
