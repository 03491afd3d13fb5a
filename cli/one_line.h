// one_line(): makes a sentence one line of bounded length, whatever a file or an argument put into it.
// Used by seer.cpp. Pure.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace seer {

inline constexpr size_t kOneLineBytesMax = 1000;

/// Control characters become \n, \t or \x1b. In a longer text "..." replaces the middle, at whole characters: the beginning
/// names the place, and the end says what was expected.
std::string one_line(std::string_view text);

}  // namespace seer
