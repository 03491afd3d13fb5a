#include "gpu/text/utf8.h"

#include <doctest/doctest.h>

#include <map>
#include <random>

using namespace seer;

namespace {

bool is_scalar(uint32_t value) { return value <= 0x10ffff && (value < 0xd800 || value > 0xdfff); }

}  // namespace

TEST_CASE("utf8: every character of Unicode comes back from its bytes, and no two have the same") {
  size_t differ = 0;
  std::map<size_t, size_t> of_size;
  for (uint32_t value = 0; value <= 0x10ffff; ++value) {
    if (!is_scalar(value)) continue;
    std::string text = "a";
    utf8_append(text, value);
    const CodePoint c = utf8_at(text, 1), last = utf8_last(text);
    differ += c.value != value || c.bytes != text.size() - 1 || last.value != value ? 1 : 0;
    ++of_size[c.bytes];
  }
  CHECK(differ == 0);
  CHECK(of_size == std::map<size_t, size_t>{{1, 0x80}, {2, 0x800 - 0x80}, {3, 0x10000 - 0x800 - 0x800}, {4, 0x100000}});
}

TEST_CASE("utf8: of all sequences of three bytes, those are characters that a character is written as") {
  size_t characters = 0;
  for (uint32_t bits = 0; bits < 0x1000000; ++bits) {
    const char bytes[] = {static_cast<char>(bits >> 16), static_cast<char>(bits >> 8), static_cast<char>(bits)};
    const CodePoint c = utf8_at({bytes, 3}, 0);
    if (c.bytes < 3) continue;
    std::string written;
    utf8_append(written, c.value);
    if (written != std::string_view(bytes, 3)) FAIL("overlong or wrong: " << bits);
    ++characters;
  }
  CHECK(characters == 0x10000 - 0x800 - 0x800);
}

TEST_CASE("utf8: overlong forms, surrogates, values beyond Unicode, stray and missing bytes are not valid") {
  for (const std::string_view bad : {"\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\xed\xa0\x80", "\xed\xbf\xbf",
                                     "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\x80", "\xc3", "\xe2\x82", "\xc3(", "\xe2(\xa1"}) {
    CHECK(utf8_at(bad, 0).bytes == 0);
    CHECK(utf8_valid_bytes(bad) == 0);
  }
}

TEST_CASE("utf8: the valid prefix ends where the first wrong byte is, wherever it is") {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    const int characters = static_cast<int>(random() % 30);
    for (int i = 0; i < characters; ++i) {
      const uint32_t value = random() % 3 > 0 ? random() % 128 : random() % 0x110000;
      utf8_append(text, is_scalar(value) ? value : 'x');
    }
    CHECK(utf8_valid_bytes(text) == text.size());
    const size_t valid = text.size();
    text += "\xffmore";
    CHECK(utf8_valid_bytes(text) == valid);
  }
}

TEST_CASE("utf8: a text is ASCII when no byte of it has the highest bit") {
  for (size_t bytes = 0; bytes < 20; ++bytes) {
    std::string text(bytes, 'a');
    CHECK(is_ascii(text));
    for (size_t at = 0; at < bytes; ++at) {
      text[at] = static_cast<char>(0x80);
      CHECK_FALSE(is_ascii(text));
      text[at] = 'a';
    }
  }
}

TEST_CASE("utf8: white space is what Unicode says it is") {
  size_t count = 0;
  for (uint32_t value = 0; value <= 0x10ffff; ++value) count += is_white_space(value) ? 1 : 0;
  CHECK(count == 25);  // code points with the property White_Space
  for (const uint32_t value : {0x9u, 0xdu, 0x20u, 0x85u, 0xa0u, 0x2003u, 0x3000u}) CHECK(is_white_space(value));
  for (const uint32_t value : {0x8u, 0xeu, 0x180eu, 0x200bu, 0xfeffu}) CHECK_FALSE(is_white_space(value));
}
