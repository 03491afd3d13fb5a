// one_line(): a sentence as it is printed, whatever a file or an argument put into it: one line, and not a screenful.
// Used by seer.cpp. Pure.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace seer {

inline constexpr size_t kLineBytesMax = 1000;

/// Control characters are written as \n, \t or \x1b. Of a longer text the middle is left out, at whole characters, and
/// "..." says so: its beginning names the place, its end what was expected.
std::string one_line(std::string_view text);

}  // namespace seer
