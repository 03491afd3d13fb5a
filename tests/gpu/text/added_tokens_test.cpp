#include "gpu/text/added_tokens.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

namespace seer {
namespace {

using Json = nlohmann::json;

Result<AddedTokens> parse(const Json& tokens, const Json& normalizer = nullptr) {
  return AddedTokens::parse({tokens, "t.json"}, *TextNormalizer::parse({normalizer, "t.json"}));
}

/// The parts of a text, added tokens as "[id:text]" and a bar between parts.
std::string cut(const AddedTokens& tokens, const std::string& text, bool normalized = false) {
  PatternScratch scratch;
  std::vector<TextPart> parts;
  REQUIRE(tokens.cut(text, normalized, scratch, parts).ok());
  std::string shown;
  for (const TextPart& part : parts) {
    if (!shown.empty()) shown += '|';
    shown += part.token_id ? cat('[', *part.token_id, ':', part.text, ']') : std::string(part.text);
  }
  return shown;
}

Json token(int id, const std::string& content, const Json& fields = Json::object()) {
  Json json = {{"id", id}, {"content", content}, {"special", true}};
  json.update(fields);
  return json;
}

TEST_CASE("added tokens: the longest at a place is taken, and the leftmost of those that overlap") {
  const auto tokens = parse({token(1, "<a>"), token(2, "<a><b"), token(3, "b>c"), token(4, "")});
  REQUIRE(tokens.ok());
  CHECK(cut(*tokens, "x<a>y") == "x|[1:<a>]|y");
  CHECK(cut(*tokens, "<a><b>c") == "[2:<a><b]|>c");
  CHECK(cut(*tokens, "<a><c>b>c") == "[1:<a>]|<c>|[3:b>c]");
  CHECK(cut(*tokens, "<a") == "<a");
  CHECK(cut(*tokens, "") == "");
  CHECK(tokens->all().size() == 3);  // the empty one matches nothing
}

TEST_CASE("added tokens: stripping takes the white space at that side, never that of the token before") {
  const auto tokens = parse({token(1, "L", {{"lstrip", true}}), token(2, "R", {{"rstrip", true}}), token(3, "N")});
  REQUIRE(tokens.ok());
  CHECK(cut(*tokens, "a \u3000L b") == "a|[1: \u3000L]| b");
  CHECK(cut(*tokens, "a R\n b") == "a |[2:R\n ]|b");
  CHECK(cut(*tokens, "a N b") == "a |[3:N]| b");
  CHECK(cut(*tokens, "R  L") == "[2:R  ]|[1:L]");
}

TEST_CASE("added tokens: a single word is found only between non-word characters; elsewhere its text is left whole") {
  const auto tokens = parse({token(1, "foo bar", {{"single_word", true}}), token(2, "bar")});
  REQUIRE(tokens.ok());
  CHECK(cut(*tokens, "(foo bar)") == "(|[1:foo bar]|)");
  for (const char* text : {"foo bar2", "foo bar_", "éfoo bar", "xfoo bar"}) CHECK(cut(*tokens, text) == text);
  CHECK(cut(*tokens, "xbar") == "x|[2:bar]");
}

TEST_CASE("added tokens: normalized ones are searched in the normalized text, by their normalized content") {
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", "_"}}}, {"content", "-"}};
  const auto tokens = parse({token(1, "a_b", {{"normalized", true}}), token(2, "c_d"), token(3, "e", {{"special", false}})},
                            replace);
  REQUIRE(tokens.ok());
  CHECK(cut(*tokens, "a_b a-b c_d e", /*normalized=*/false) == "a_b a-b |[2:c_d]| e");
  CHECK(cut(*tokens, "a_b a-b c_d e", /*normalized=*/true) == "a_b |[1:a-b]| c_d |[3:e]");  // not special: normalized
}

TEST_CASE("added tokens: bad fields are refused by name") {
  const auto refusal = [](const Json& tokens) {
    const auto parsed = parse(tokens);
    return parsed.ok() ? "accepted" : parsed.error().detail;
  };
  CHECK(refusal(nullptr) == "accepted");
  CHECK(refusal(Json::object()) == "t.json: the document must be an array");
  CHECK(refusal(Json::array({token(-1, "a")})) == "t.json: [0].id is -1, out of range");
  CHECK(refusal({token(0, "a"), token(1 << 24, "b")}) == "t.json: [1].id is 16777216, out of range");
  CHECK(refusal(Json::array({token(0, "a", {{"lstrip", 1}})})) == "t.json: [0].lstrip must be true or false");
  CHECK(refusal(Json::array({{{"id", 1}}})) == "t.json: [0].content must be a string");
}

}  // namespace
}  // namespace seer
