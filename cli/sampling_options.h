// The sampling options: one table for the flags of `seer rollout`, its file and the fields of a prompt line, so that all three
// take the same values. Used by option_tables.cpp and jsonl.cpp.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "cli/option.h"

namespace seer {

/// Responses per prompt: --group-size, and `n` in a prompt line.
inline const Range kGroupSizes = between(1, 1e6);

/// The options that are both flags and fields of prompt lines. They set the fields of `sampling`, which must outlive them.
std::vector<OptionSpec> sampling_options(SamplingParams& sampling);

/// A field of sampling, or about it, that has an effect in other programs but not in Seer.
struct ForeignField {
  std::string_view name;
  const char* instead;             // what to do instead
  const char* harmless = "null";   // the value that asks for nothing, as JSON
};
/// Null if there is none of that name.
const ForeignField* find_foreign_field(std::string_view name);

/// The text of a JSON value of such a field, as set_json_option() takes it: other programs write top_k -1 for off, which is 0.
std::string sampling_text(const std::string& field, const std::string& text);

}  // namespace seer
