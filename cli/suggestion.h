// Suggestions for mistyped names: the nearest known name by edit distance.
// Used for options, commands, values of options and keys of files. Pure.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace seer {

/// The known name nearest to `typed`, or empty. A name is near if a few characters differ (one in up to four characters, three in
/// long names), or if it is the only one that begins with `typed`.
std::string nearest_name(std::string_view typed, const std::vector<std::string>& known);

/// "; did you mean NAME?", with `prefix` before the name; empty if nothing is near.
std::string did_you_mean(std::string_view typed, const std::vector<std::string>& known, std::string_view prefix = "");

/// The value as an error shows it: cut to 60 characters, control characters as '?'.
std::string shown_value(std::string_view value);

}  // namespace seer
