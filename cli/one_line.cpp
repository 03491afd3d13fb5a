#include "cli/one_line.h"

namespace seer {
namespace {

constexpr std::string_view kCut = " ... ";
constexpr size_t kEndBytes = 300;  // kept of the end of a long text

bool is_inside_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }  // of UTF-8

}  // namespace

std::string one_line(std::string_view text) {
  std::string line;
  const auto append = [&line](std::string_view part) {
    constexpr std::string_view kHex = "0123456789abcdef";
    for (const char c : part) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '\n')
        line += "\\n";
      else if (c == '\t')
        line += "\\t";
      else if (byte < 0x20 || byte == 0x7f)
        line += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      else
        line += c;
    }
  };
  // Cut before control characters are spelled out, and again after: spelling out a very long text would be slow.
  if (text.size() > kOneLineBytesMax) {
    append(text.substr(0, kOneLineBytesMax - kEndBytes));
    append(text.substr(text.size() - kEndBytes));
  } else {
    append(text);
  }
  if (text.size() <= kOneLineBytesMax && line.size() <= kOneLineBytesMax) return line;
  size_t begin = kOneLineBytesMax - kEndBytes - kCut.size(), end = line.size() - kEndBytes;
  while (begin > 0 && is_inside_character(line[begin])) --begin;
  while (end < line.size() && is_inside_character(line[end])) ++end;
  return line.substr(0, begin) + std::string(kCut) + line.substr(end);
}

}  // namespace seer
