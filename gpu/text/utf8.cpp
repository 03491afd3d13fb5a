#include "gpu/text/utf8.h"

#include <cstring>

namespace seer {
namespace {

uint32_t byte_at(std::string_view text, size_t at) { return static_cast<unsigned char>(text[at]); }

/// Bytes of the ASCII run at the start of `text`, eight at a time.
size_t ascii_prefix_bytes(std::string_view text) {
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    if (word & 0x8080808080808080ull) break;
  }
  while (at < text.size() && byte_at(text, at) < 0x80) ++at;
  return at;
}

}  // namespace

CodePoint utf8_at(std::string_view text, size_t at) {
  const uint32_t lead = byte_at(text, at);
  if (lead < 0x80) return {lead, 1};
  const uint32_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() - at < bytes) return {};
  uint32_t value = lead & (0x7fu >> bytes);
  for (uint32_t i = 1; i < bytes; ++i) {
    const uint32_t next = byte_at(text, at + i);
    if ((next & 0xc0) != 0x80) return {};
    value = value << 6 | (next & 0x3f);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kSmallest[bytes] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return {};
  return {value, bytes};
}

CodePoint utf8_last(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (byte_at(text, at) & 0xc0) == 0x80) --at;
  return utf8_at(text, at);
}

size_t utf8_valid_bytes(std::string_view text) {
  size_t at = 0;
  while (true) {
    at += ascii_prefix_bytes(text.substr(at));
    if (at == text.size()) return at;
    const CodePoint c = utf8_at(text, at);
    if (c.bytes == 0) return at;
    at += c.bytes;
  }
}

void utf8_append(std::string& text, uint32_t value) {
  const auto put = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (value < 0x80) return put(value);
  if (value < 0x800) {
    put(0xc0 | value >> 6);
  } else {
    if (value < 0x10000) {
      put(0xe0 | value >> 12);
    } else {
      put(0xf0 | value >> 18);
      put(0x80 | (value >> 12 & 0x3f));
    }
    put(0x80 | (value >> 6 & 0x3f));
  }
  put(0x80 | (value & 0x3f));
}

bool is_white_space(uint32_t value) {
  if (value < 0x80) return value == ' ' || (value >= '\t' && value <= '\r');
  return value == 0x85 || value == 0xa0 || value == 0x1680 || (value >= 0x2000 && value <= 0x200a) || value == 0x2028 ||
         value == 0x2029 || value == 0x202f || value == 0x205f || value == 0x3000;
}

bool is_ascii(std::string_view text) { return ascii_prefix_bytes(text) == text.size(); }

}  // namespace seer
