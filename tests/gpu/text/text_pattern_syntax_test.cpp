// These tests check the rewritten pattern itself; text_pattern_test.cpp checks that it means the same.
#include <doctest/doctest.h>

#include "gpu/text/text_pattern.h"

namespace seer {
namespace {

std::string rewritten(const std::string& pattern) {
  const auto result = pcre2_from_oniguruma(pattern);
  return result.ok() ? *result : result.error().detail;
}

std::string uses(const std::string& pattern, const std::string& what, int byte) {
  return cat("'", pattern, "' uses ", what, " (byte ", byte, "), which is not supported");
}

TEST_CASE("text pattern syntax: syntax that means the same in both is left unchanged") {
  for (const char* same : {"", "a|b*+c?", "(?i)a(b)(?:c)", "(?i:'s|'t)|(?<!a)b(?!\\d)", "[^\\r\\n\\p{L}\\p{N}]?+", "a{2,3}?",
                           "a{,}{x}", "\\x{3000}\\x41\\.\\-\\[", "[a&b\\]]", "模{2}", "\\A\\z\\Z"})
    CHECK(rewritten(same) == same);
}

TEST_CASE("text pattern syntax: syntax that differs is rewritten") {
  CHECK(rewritten("\\s[\\S]") == "\\p{White_Space}[\\P{White_Space}]");
  CHECK(rewritten("\\w[\\w-]\\W") ==
        "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}][\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}-][^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]");
  CHECK(rewritten("\\h[\\h]\\v\\u3000") == "[0-9A-Fa-f][0-9A-Fa-f]\\x0b\\x{3000}");
  CHECK(rewritten("\\p{Han}\\P{Han}\\p{^Greek}\\p{Lu}\\p{Alphabetic}") ==
        "\\p{sc:Han}\\P{sc:Han}\\p{^sc:Greek}\\p{Lu}\\p{Alphabetic}");
}

TEST_CASE("text pattern syntax: an interval before + repeats the one thing it follows") {
  CHECK(rewritten("xa{1,3}+") == "x(?:a{1,3})+");
  CHECK(rewritten("x模{2}+y") == "x(?:模{2})+y");
  CHECK(rewritten("x(?:ab|c(d)){2}+") == "x(?:(?:ab|c(d)){2})+");
  CHECK(rewritten("[ab]{,3}+") == "(?:[ab]{0,3})+");
  CHECK(rewritten("\\s{2}+") == "(?:\\p{White_Space}{2})+");
}

TEST_CASE("text pattern syntax: syntax that would mean something else is refused by name and place") {
  CHECK(rewritten("[a&&b]") == uses("[a&&b]", "an intersection of classes", 2));
  CHECK(rewritten("[a[b]]") == uses("[a[b]]", "a class within a class", 2));
  CHECK(rewritten("[]a]") == uses("[]a]", "']' at the start of a class", 1));
  CHECK(rewritten("[\\W]") == uses("[\\W]", "\\W in a class", 1));
  CHECK(rewritten("a(?m:b)") == uses("a(?m:b)", "the group '(?m:'", 1));
  CHECK(rewritten("a(?i)b|c") == uses("a(?i)b|c", "the group '(?i)'", 1));
  CHECK(rewritten("\\p{L}{3}?") == uses("\\p{L}{3}?", "an interval {n}?", 5));
  CHECK(rewritten("\\pL") == uses("\\pL", "a property without braces", 0));
  CHECK(rewritten("\\u12") == uses("\\u12", "\\u without four digits", 0));
  for (const char* escape : {"\\b", "\\1", "\\G", "[\\A]"}) CHECK(rewritten(escape).find("uses the escape \\") != std::string::npos);
  CHECK(rewritten("\\").starts_with("'\\' uses the escape"));
}

}  // namespace
}  // namespace seer
