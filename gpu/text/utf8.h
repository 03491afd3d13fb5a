// The few UTF-8 functions that tokenizers need. Pure functions.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace seer {

constexpr std::string_view kReplacementChar = "\uFFFD";  // for bytes that are no text

struct CodePoint {
  uint32_t value = 0;
  uint32_t bytes = 0;  // length in UTF-8; 0: no valid character starts here
};

/// The character that starts at byte `at`. Overlong forms, surrogates and values over U+10FFFF are not valid.
/// REQUIRES: at < text.size().
CodePoint utf8_at(std::string_view text, size_t at);
/// The last character of a text. REQUIRES: text is valid and not empty.
CodePoint utf8_last(std::string_view text);
/// Bytes of the longest prefix that is valid UTF-8.
size_t utf8_valid_bytes(std::string_view text);
/// REQUIRES: value is a Unicode scalar value.
void utf8_append(std::string& text, uint32_t value);

/// Unicode's White_Space property.
bool is_white_space(uint32_t value);
bool is_ascii(std::string_view text);

}  // namespace seer
