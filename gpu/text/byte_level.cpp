#include "gpu/text/byte_level.h"

#include <array>
#include <cstdint>

#include "gpu/text/utf8.h"

namespace seer {
namespace {

constexpr uint32_t kCharEnd = 0x100 + 68;  // one past the last character of the alphabet
constexpr int kNoByte = -1;

constexpr bool keeps_its_char(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

struct Alphabet {
  std::array<uint32_t, 256> char_of{};
  std::array<int16_t, kCharEnd> byte_of{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte_of.fill(kNoByte);
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t c = keeps_its_char(byte) ? byte : next++;
    alphabet.char_of[byte] = c;
    alphabet.byte_of[c] = static_cast<int16_t>(byte);
  }
  return alphabet;
}
constexpr Alphabet kAlphabet = make_alphabet();
static_assert(kAlphabet.char_of[' '] == 0x120 && kAlphabet.char_of[0xad] == kCharEnd - 1);

}  // namespace

std::string byte_chars(std::string_view bytes) {
  std::string chars;
  for (const char byte : bytes) utf8_append(chars, kAlphabet.char_of[static_cast<unsigned char>(byte)]);
  return chars;
}

std::optional<std::string> bytes_of_chars(std::string_view chars) {
  std::string bytes;
  for (size_t at = 0; at < chars.size();) {
    const CodePoint c = utf8_at(chars, at);
    if (c.bytes == 0 || c.value >= kCharEnd || kAlphabet.byte_of[c.value] == kNoByte) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte_of[c.value]));
    at += c.bytes;
  }
  return bytes;
}

}  // namespace seer
