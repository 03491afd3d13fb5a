#include "gpu/text/token_decoder.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

namespace seer {
namespace {

using Json = nlohmann::json;

TokenDecoder parsed(const Json& field) {
  auto decoder = TokenDecoder::parse({field, "t.json"});
  REQUIRE_MESSAGE(decoder.ok(), (decoder.ok() ? "" : decoder.error().detail));
  return *std::move(decoder);
}

std::string refusal(const Json& field) {
  const auto decoder = TokenDecoder::parse({field, "t.json"});
  return decoder.ok() ? "accepted" : decoder.error().detail;
}

/// Llama 2's: fallback bytes, one text of all tokens, without the space that its start was given.
const Json kLlama2 = Json::parse(R"({"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");

TEST_CASE("token decoder: without a decoder, tokens are joined with spaces") {
  const TokenDecoder decoder = parsed(nullptr);
  CHECK(decoder.decode({{"a"}, {"b"}}) == "a b");
  CHECK(decoder.piece({"a"}) == "a");
  CHECK_FALSE(decoder.pieces_join());
}

TEST_CASE("token decoder: the byte alphabet becomes bytes, but not in added tokens or other characters") {
  const TokenDecoder decoder = parsed({{"type", "ByteLevel"}});
  CHECK(decoder.decode({{"Ġa"}, {"Ã"}, {"©"}}) == " aé");
  CHECK(decoder.piece({"Ã"}) == "\xc3");  // half a character: bytes are kept
  CHECK(decoder.decode({{"Ġ", /*added=*/true}}) == "Ġ");
  CHECK(decoder.piece({"模"}) == "模");
  CHECK(decoder.pieces_join());
}

TEST_CASE("token decoder: <0xNN> is a byte, and nothing that only looks like it") {
  const TokenDecoder decoder = parsed({{"type", "ByteFallback"}});
  CHECK(decoder.decode({{"<0xE6>"}, {"<0xff>"}, {"a"}}) == "\xe6\xff" "a");
  for (const char* text : {"<0xG0>", "<0x0G>", "<0x123>", "<0x1>", "0x41"}) CHECK(decoder.piece({text}) == text);
}

TEST_CASE("token decoder: a Replace that would make a text far too long changes nothing") {
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(50, 'a')}};
  Json field = {{"type", "Sequence"}, {"decoders", Json::array()}};
  for (int i = 0; i < 8; ++i) field["decoders"].push_back(replace);  // 50^8 bytes
  CHECK(parsed(field).piece({"a"}).size() == 2500);  // 50^3 are too many
}

TEST_CASE("token decoder: a Strip after a Fuse is done to the whole text, one before it to each token") {
  const TokenDecoder llama2 = parsed(kLlama2);
  CHECK(llama2.decode({{"▁▁the"}, {"▁x"}, {"<0xFF>"}}) == " the x\xff");
  CHECK(llama2.piece({"▁the"}) == " the");
  CHECK_FALSE(llama2.pieces_join());

  const TokenDecoder each = parsed({{"type", "Strip"}, {"content", "_"}, {"start", 1}, {"stop", 2}});
  CHECK(each.decode({{"__a___"}, {"_b_"}}) == "_a_b");
  CHECK(each.piece({"__a___"}) == "_a_");
  CHECK(each.pieces_join());
}

TEST_CASE("token decoder: Metaspace drops the first token's spaces, unless the file never put them there") {
  const TokenDecoder always = parsed({{"type", "Metaspace"}, {"replacement", "▁"}});
  CHECK(always.decode({{"▁a"}, {"▁b▁c"}}) == "a b c");
  CHECK(always.piece({"▁a"}) == " a");
  CHECK_FALSE(always.pieces_join());
  for (const Json& field : {Json{{"type", "Metaspace"}, {"prepend_scheme", "never"}},
                            Json{{"type", "Metaspace"}, {"add_prefix_space", false}}}) {
    const TokenDecoder never = parsed(field);
    CHECK(never.decode({{"▁a"}, {"▁b"}}) == " a b");
    CHECK(never.pieces_join());
  }
}

TEST_CASE("token decoder: what it does not know is refused with its field") {
  CHECK(refusal({{"type", "Sequence"}, {"decoders", {{{"type", "CTC"}}}}})
            .starts_with("t.json: decoders[0].type is 'CTC', which is not supported (ByteLevel,"));
  CHECK(refusal(Json::object()) == "t.json: type must be a string");
  CHECK(refusal({{"type", "Strip"}, {"content", ""}, {"start", 1}, {"stop", 0}}) == "t.json: content must be one character");
  CHECK(refusal({{"type", "Strip"}, {"content", " "}, {"start", 1}}) == "t.json: stop must be a whole number");
  CHECK(refusal({{"type", "Metaspace"}, {"replacement", ""}}) == "t.json: replacement must not be empty");
}

}  // namespace
}  // namespace seer
