// The byte alphabet of byte-level BPE (GPT-2): each byte is shown as one printable character, so that a vocabulary of
// bytes can be written as text. Bytes that print keep their Latin-1 character, the other 68 become U+0100, U+0101, ...
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace seer {

/// Bytes as characters of the alphabet: " a\n" gives "ĠaĊ".
std::string byte_chars(std::string_view bytes);
/// The bytes that a text of alphabet characters means; nothing if it has any other character.
std::optional<std::string> bytes_of_chars(std::string_view chars);

}  // namespace seer
