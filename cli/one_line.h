// one_line(): turns a sentence into one line of bounded length, whatever text of a file or an argument is in it.
// Used by seer.cpp. Pure.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace seer {

inline constexpr size_t kOneLineBytesMax = 1000;

/// Control characters become \n, \t or \x1b. If the text is too long, "..." replaces whole characters in the middle: the
/// beginning names the place, and the end says what was expected.
std::string one_line(std::string_view text);

}  // namespace seer
