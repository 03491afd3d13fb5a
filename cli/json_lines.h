// JSON Lines as a file is read: text of bounded length, an object per line, no name twice in one object. Every error is one
// sentence in our own words that names file and line, for malformed JSON the column too, and echoes little of the line.
// Used by jsonl.cpp only.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "protocols/result.h"

namespace seer {

inline constexpr size_t kLineBytesMax = size_t{64} << 20;  // a response of a million tokens has 25 MB

/// Calls `take(line number, text)` for every line that is not blank, until it returns an error or false. A byte order mark
/// of UTF-8 is skipped; folders, UTF-16 and compressed files are named as such.
Status for_each_line(const std::string& path, const std::function<Result<bool>(int64_t line, const std::string& text)>& take);

/// What for_each_line() does to a line before it is taken: other formats and lines that are too long are an error, a byte
/// order mark is removed.
Status check_line(const std::string& path, int64_t line, std::string& text);
bool is_blank(const std::string& text);

/// A member of the object on a line. Its value is compact JSON with numbers as they were written.
struct JsonMember {
  std::string name;
  std::string text;
};
/// The object's members in their order.
Result<std::vector<JsonMember>> json_members(const std::string& path, int64_t line, const std::string& text);
/// Whether json_members() would accept the line.
Status check_object(const std::string& path, int64_t line, const std::string& text);

/// A text as a JSON string. Bytes that are no UTF-8 (a response may end inside a character) become U+FFFD.
std::string json_string(std::string_view text);
/// At most 60 bytes of valid UTF-8, for a message.
std::string shown(std::string_view text);

}  // namespace seer
