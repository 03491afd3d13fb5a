// Mutator: makes damaged copies of a text, the same for the same seed. It damages bytes, numbers, quotes and nesting, so that most
// copies pass the first checks of a parser.
#pragma once
#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

namespace seer {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : rng_(seed) {}

  /// One to four changes to the text.
  std::string mutated(std::string text) {
    for (uint64_t changes = 1 + below(4); changes > 0; --changes) change(text);
    return text;
  }

 private:
  static constexpr std::array<std::string_view, 40> kPieces{
      "null", "true", "false", "-1", "0", "1e999", "-0.0", "NaN", "9223372036854775808", "-9223372036854775809", "1e-400",
      "18446744073709551616", "3.5", "{", "}", "[", "]", "\"", "\\", "\n", "\r\n", ",", ":", "=", "#", "''", "\"\"", "{}", "[]",
      "\\ud800", "\\u0000", "\xff\xfe", "\xc3", "\xe2\x82", "\xf0\x9f\x98\x80", "../../etc/passwd", "[[[[[[[[", "{\"a\":",
      "0123456789012345678901234567890123456789012345678901234567890123456789", "\"x\": [1, 2, {\"y\": null}],"};

  uint64_t below(uint64_t end) { return end == 0 ? 0 : rng_() % end; }
  size_t place(const std::string& text) { return below(text.size() + 1); }
  /// Mostly short, now and then long.
  size_t length(const std::string& text, size_t from) {
    return below(std::min<uint64_t>(text.size() - from, below(8) == 0 ? text.size() : 24) + 1);
  }
  std::string_view piece() { return kPieces[below(kPieces.size())]; }

  void change(std::string& text) {
    const size_t at = place(text), count = length(text, at);
    switch (below(10)) {
      case 0: text.erase(at, count); break;
      case 1: text.insert(place(text), text.substr(at, count)); break;
      case 2: text.insert(at, piece()); break;
      case 3: if (!text.empty()) text[below(text.size())] = static_cast<char>(below(256)); break;
      case 4: if (!text.empty()) text[below(text.size())] ^= static_cast<char>(1 << below(8)); break;
      case 5: text.resize(at); break;
      case 6: text.replace(at, count, piece()); break;
      case 7: repeat(text, at); break;
      case 8: replace_number(text, at); break;
      default: replace_string(text, at); break;
    }
  }
  /// Deep nesting and long values.
  void repeat(std::string& text, size_t at) {
    std::string many;
    const std::string_view one = piece();
    for (uint64_t n = below(below(4) == 0 ? 20'000 : 200); n > 0; --n) many += one;
    text.insert(at, many);
  }
  /// The next number after `at`.
  void replace_number(std::string& text, size_t at) {
    const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
    const auto begin = std::find_if(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(), is_digit);
    const auto end = std::find_if_not(begin, text.end(), is_digit);
    text.replace(begin, end, piece());
  }
  /// The next text in quotes after `at`, the quotes staying: another name, or a name twice.
  void replace_string(std::string& text, size_t at) {
    const size_t open = text.find('"', at), close = open == text.npos ? open : text.find('"', open + 1);
    if (close == text.npos) return;
    const size_t other = text.find('"', place(text)), end = other == text.npos ? other : text.find('"', other + 1);
    const std::string name = end == text.npos || below(3) == 0 ? std::string(piece()) : text.substr(other + 1, end - other - 1);
    text.replace(open + 1, close - open - 1, name);
  }

  std::mt19937_64 rng_;
};

}  // namespace seer
