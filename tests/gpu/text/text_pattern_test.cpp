#include "gpu/text/text_pattern.h"

#include <doctest/doctest.h>

namespace seer {
namespace {

std::vector<std::string> find(const TextPattern& pattern, const std::string& text) {
  PatternScratch scratch;
  std::vector<TextRange> matches;
  REQUIRE(pattern.find_all(text, scratch, matches).ok());
  std::vector<std::string> found;
  for (const TextRange& match : matches) found.push_back(text.substr(match.begin, match.end - match.begin));
  return found;
}

std::vector<std::string> find(const char* regex, const std::string& text) {
  return find(TextPattern::known_regex(regex), text);
}

std::string refusal(const char* regex) {
  const auto pattern = TextPattern::regex(regex);
  return pattern.ok() ? "accepted" : pattern.error().detail;
}

using Texts = std::vector<std::string>;

TEST_CASE("text pattern: means what it means to Oniguruma, not what it means to PCRE2") {
  CHECK(find("\\p{N}{1,3}+", "1234567") == Texts{"1234567"});
  CHECK(find("(?:ab|c){2}+", "abcab cc") == Texts{"abc", "cc"});
  CHECK(find("a{,2}", "aaa") == Texts{"aa", "a"});
  CHECK(find("\\s", "a\u180e\u0085b") == Texts{"\u0085"});
  CHECK(find("^b|b$", "b\nab") == Texts{"b", "b"});
  CHECK(find("(?i)a|b", "AB") == Texts{"A", "B"});
  CHECK(find("\\v", "\n\x0b") == Texts{"\x0b"});
}

TEST_CASE("text pattern: lookarounds, possessive quantifiers, properties and scripts work") {
  CHECK(find("\\s+(?!\\S)|\\s", "a   b  ") == Texts{"  ", " ", "  "});
  CHECK(find("[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++", "+ab 12cd") == Texts{"+ab", "cd"});
  CHECK(find("\\p{Han}+", "漢字ー仮名") == Texts{"漢字", "仮名"});
  CHECK(find("(?i:'s|'t)", "'S 'ſ 't") == Texts{"'S", "'ſ", "'t"});
}

TEST_CASE("text pattern: finds fixed strings and empty matches without standing still") {
  CHECK(find(TextPattern::literal("aa"), "aaaaa") == Texts{"aa", "aa"});
  CHECK(find("x*", "xé") == Texts{"x", ""});
}

TEST_CASE("text pattern: replaces with the content as it is") {
  PatternScratch scratch;
  CHECK(*replace_all("a  b", TextPattern::known_regex("\\s+"), "$0", scratch, 100) == "a$0b");
  CHECK(*replace_all("", TextPattern::literal("x"), "y", scratch, 100) == "");
}

TEST_CASE("text pattern: what PCRE2 cannot read is refused with its reason") {
  CHECK(refusal("[a&&b]").starts_with("'[a&&b]' uses an intersection"));
  CHECK(refusal("(a").starts_with("'(a' is not a pattern PCRE2 can read: missing closing parenthesis"));
  CHECK(refusal("\\p{Klingon}").find("unknown property") != std::string::npos);
}

TEST_CASE("text pattern: a search that would take for ever fails with a sentence") {
  PatternScratch scratch;
  std::vector<TextRange> matches;
  const Status found = TextPattern::known_regex("(?:a+)+b|(?:a|a)+c").find_all(std::string(40, 'a'), scratch, matches);
  REQUIRE_FALSE(found.ok());
  CHECK(found.error().detail.starts_with("the tokenizer's pattern gave up on this text: match limit"));
}

TEST_CASE("text pattern: a deep match goes on where the JIT's stack ends") {
  const std::string text(200'000, 'a');
  CHECK(find("(?:a|(b))+", text) == Texts{text});
}

}  // namespace
}  // namespace seer
