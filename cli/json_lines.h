// Reads JSON Lines: an object per line, lines of bounded length, no name twice in an object. Every error is one sentence of our
// own with file and line, for malformed JSON the column too; it quotes little of the line.
// Used by jsonl.cpp and prompt_stream.cpp.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "protocols/result.h"

namespace seer {

inline constexpr size_t kLineBytesMax = size_t{64} << 20;  // a response of a million tokens takes 25 MB

/// Calls `take(line number, text)` for every line that is not blank, until it returns an error or false. Skips a UTF-8 byte
/// order mark. The error for a folder, a UTF-16 file or a compressed file says what it is.
Status for_each_line(const std::string& path, const std::function<Result<bool>(int64_t line, const std::string& text)>& take);

/// Refuses other formats and lines that are too long, and removes a byte order mark, as for_each_line() does before it calls
/// `take`. For callers that read lines themselves.
Status check_line(const std::string& path, int64_t line, std::string& text);
bool is_blank(const std::string& text);

/// A member of the object on a line.
struct JsonMember {
  std::string name;
  std::string text;  // its value: compact JSON, with numbers as written
};
/// The object's members, in order.
Result<std::vector<JsonMember>> json_members(const std::string& path, int64_t line, const std::string& text);
/// Checks that json_members() would accept the line.
Status check_object(const std::string& path, int64_t line, const std::string& text);

/// A text as a JSON string. Bytes that are not UTF-8 (a response may end inside a character) become U+FFFD.
std::string json_string(std::string_view text);
/// The text for a message: cut to 60 bytes, never inside a character.
std::string shown(std::string_view text);

}  // namespace seer
