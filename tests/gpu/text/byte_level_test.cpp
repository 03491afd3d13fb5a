#include "gpu/text/byte_level.h"

#include <doctest/doctest.h>

#include <set>

#include "gpu/text/utf8.h"

using namespace seer;

TEST_CASE("byte level: all bytes come back from their characters, which are all different and printable") {
  std::string bytes;
  std::set<std::string> seen;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string one(1, static_cast<char>(byte)), shown = byte_chars(one);
    bytes += one;
    seen.insert(shown);
    const CodePoint c = utf8_at(shown, 0);
    CHECK(c.bytes == shown.size());
    CHECK_FALSE(is_white_space(c.value));
    CHECK(c.value > 0x20);
    CHECK(bytes_of_chars(shown) == one);
  }
  CHECK(seen.size() == 256);
  CHECK(bytes_of_chars(byte_chars(bytes)) == bytes);
}

TEST_CASE("byte level: bytes that print stay as they are, the others follow from U+0100 on") {
  CHECK(byte_chars("abc!~") == "abc!~");
  CHECK(byte_chars(" a\n") == "\u0120a\u010a");
  CHECK(byte_chars(std::string(1, '\0')) == "\u0100");
  CHECK(byte_chars("\xad") == "\u0143");  // the last of the 68
}

TEST_CASE("byte level: a text with another character stands for no bytes") {
  CHECK_FALSE(bytes_of_chars(" ").has_value());
  CHECK_FALSE(bytes_of_chars("a\u0144").has_value());
  CHECK_FALSE(bytes_of_chars("a\u4e2d").has_value());
  CHECK_FALSE(bytes_of_chars("a\xff").has_value());
  CHECK(bytes_of_chars("") == "");
}
