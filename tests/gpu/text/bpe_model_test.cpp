#include "gpu/text/bpe_model.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace seer {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

/// A vocabulary of these tokens, ids in their order, with merges by rank.
Json file(const std::vector<std::string>& tokens, const std::vector<std::array<std::string, 2>>& merges,
          const Json& fields = Json::object()) {
  Json json = {{"type", "BPE"}, {"vocab", Json::object()}, {"merges", merges}};
  for (size_t id = 0; id < tokens.size(); ++id) json["vocab"][tokens[id]] = id;
  json.update(fields);
  return json;
}

BpeModel parsed(const Json& json, bool byte_level = false) {
  auto model = BpeModel::parse({json, "t.json"}, byte_level);
  REQUIRE_MESSAGE(model.ok(), (model.ok() ? "" : model.error().detail));
  return *std::move(model);
}

Ids encode(const BpeModel& model, const std::string& word) {
  BpeScratch scratch;
  Ids ids;
  const Status status = model.encode_word(word, scratch, ids);
  REQUIRE_MESSAGE(status.ok(), (status.ok() ? "" : status.error().detail));
  return ids;
}

TEST_CASE("bpe model: merges apply lowest rank first, then leftmost, as in a search of the whole word each time") {
  const std::vector<std::string> tokens = {"a", "b", "c", "ab", "bc", "aa", "aab", "abc", "aaab", "bcab"};
  const std::vector<std::array<std::string, 2>> merges = {{"b", "c"},  {"a", "a"},   {"a", "b"},  {"aa", "b"},
                                                          {"a", "bc"}, {"a", "aab"}, {"bc", "ab"}};
  const BpeModel model = parsed(file(tokens, merges));
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    std::string word(1 + rng() % 12, 'a');
    for (char& c : word) c = static_cast<char>('a' + rng() % 3);
    std::vector<std::string> parts;
    for (const char c : word) parts.emplace_back(1, c);
    for (size_t rank = 0; rank < merges.size();) {
      size_t i = 0;
      while (i + 1 < parts.size() && !(parts[i] == merges[rank][0] && parts[i + 1] == merges[rank][1])) ++i;
      if (i + 1 >= parts.size()) {
        ++rank;
        continue;
      }
      parts[i] += parts[i + 1];
      parts.erase(parts.begin() + static_cast<ptrdiff_t>(i) + 1);
      rank = 0;
    }
    Ids expected;
    for (const std::string& part : parts)
      expected.push_back(static_cast<int32_t>(std::ranges::find(tokens, part) - tokens.begin()));
    CHECK(encode(model, word) == expected);
  }
}

TEST_CASE("bpe model: a token that its own merges do not build is not found as a whole word, unless merges are ignored") {
  const std::vector<std::string> tokens = {"a", "b", "c", "ab", "bc", "abc"};
  const std::vector<std::array<std::string, 2>> merges = {{"a", "b"}, {"b", "c"}, {"a", "bc"}};
  CHECK(encode(parsed(file(tokens, merges)), "abc") == Ids{3, 2});
  CHECK(encode(parsed(file(tokens, merges, {{"ignore_merges", true}})), "abc") == Ids{5});
}

TEST_CASE("bpe model: an unknown character gives the unknown token, one per run if fused; without such a token it is an error") {
  const auto with = [](const Json& fields) { return parsed(file({"<unk>", "a", "<0xC3>", "<0xA9>"}, {}, fields)); };
  CHECK(encode(with({{"unk_token", "<unk>"}}), "xya模") == Ids{0, 0, 1, 0});
  CHECK(encode(with({{"unk_token", "<unk>"}, {"fuse_unk", true}}), "xya模") == Ids{0, 1, 0});
  CHECK(encode(with({{"unk_token", "<unk>"}, {"byte_fallback", true}}), "éx") == Ids{2, 3, 0});
  BpeScratch scratch;
  Ids ids;
  const Status status = with(Json::object()).encode_word("a模", scratch, ids);
  CHECK(status.error().detail == "the tokenizer has no token for '模' and no unknown token");
}

TEST_CASE("bpe model: bytes that are no text are their fallback ids, all of them or none") {
  const BpeModel model = parsed(file({"a", "<0xFE>", "<0xFF>"}, {}, {{"byte_fallback", true}}));
  Ids ids = {7};
  CHECK(model.encode_bytes("\xff\xfe", ids));
  CHECK(ids == Ids{7, 2, 1});
  CHECK_FALSE(model.encode_bytes("\xff\xc0", ids));
  CHECK(ids == Ids{7, 2, 1});
  CHECK_FALSE(parsed(file({"a", "<0xFE>"}, {})).encode_bytes("\xfe", ids));
}

TEST_CASE("bpe model: byte-level words are raw bytes, whatever they are in UTF-8") {
  const BpeModel model = parsed(file({"Ã", "©", "Ġ", "ÿ", "Ã©"}, {{"Ã", "©"}}), /*byte_level=*/true);
  CHECK(encode(model, "é") == Ids{4});
  CHECK(encode(model, " \xff\xc3") == Ids{2, 3, 0});
}

TEST_CASE("bpe model: tokens are by id, empty where the file has none") {
  Json json = file({}, {});
  json["vocab"] = {{"x", 3}, {"y", 1}};
  CHECK(parsed(json).tokens() == std::vector<std::string>{"", "y", "", "x"});
}

}  // namespace
}  // namespace seer
