#include "cli/one_line.h"

#include <doctest/doctest.h>

using namespace seer;

TEST_CASE("one line: a short sentence stays as it is, control characters are spelled out") {
  CHECK(one_line("a.json:3: \"x\" is -1: expected h\xc3\xa9llo") == "a.json:3: \"x\" is -1: expected h\xc3\xa9llo");
  CHECK(one_line("a\nb\tc\x1b[0m\r\x7f") == "a\\nb\\tc\\x1b[0m\\x0d\\x7f");
  CHECK(one_line(std::string(1, '\0')) == "\\x00");
  CHECK(one_line("") == "");
  CHECK(one_line(std::string(kOneLineBytesMax, 'x')) == std::string(kOneLineBytesMax, 'x'));
}

TEST_CASE("one line: the middle of a long sentence is left out, never half a character") {
  for (const std::string& filling : {std::string("x"), std::string("\n"), std::string("\xf0\x9f\x98\x80"), std::string("\xe2\x82\xac")}) {
    CAPTURE(filling);
    for (size_t count = 200; count < 1400; count += 7) {
      std::string text = "begin ";
      for (size_t i = 0; i < count; ++i) text += filling;
      const std::string line = one_line(text + " end");
      CHECK(line.size() <= kOneLineBytesMax);
      CHECK(line.starts_with("begin "));
      CHECK(line.ends_with(" end"));
      CHECK(line.find('\n') == std::string::npos);
      const bool is_cut = line.find(" ... ") != std::string::npos;
      CHECK(is_cut == (text.size() + 4 > kOneLineBytesMax || (filling == "\n" && 2 * count + 10 > kOneLineBytesMax)));
      if (filling.size() < 2) continue;
      size_t characters = 0;  // whole ones
      for (size_t at = 0; (at = line.find(filling, at)) != std::string::npos; at += filling.size()) ++characters;
      CHECK(line.size() == 10 + (is_cut ? 5 : 0) + characters * filling.size());
    }
  }
}
