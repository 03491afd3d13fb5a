#include "gpu/text/text_normalizer.h"

#include <doctest/doctest.h>

#include "gpu/text/text_vectors.h"

namespace seer {
namespace {

Result<std::string> normalize(const nlohmann::json& field, const std::string& text) {
  SEER_ASSIGN_OR_RETURN(const TextNormalizer normalizer, TextNormalizer::parse(JsonAt(field, "tokenizer.json")));
  PatternScratch scratch;
  SEER_ASSIGN_OR_RETURN(NormalText normal, normalizer.apply(text, scratch));
  return std::move(normal.text);
}

TEST_CASE("text normalizer: gives what the reference gives") {
  const auto vectors = read_vectors("normalizers.json");
  const auto texts = vectors["texts"].get<std::vector<std::string>>();
  REQUIRE(vectors["cases"].size() > 10);
  int skipped = 0;
  for (const auto& test : vectors["cases"]) {
    for (size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(test["normalizer"].dump());
      CAPTURE(texts[i]);
      const auto normal = normalize(test["normalizer"], texts[i]);
      if (!normal.ok() && normal.error().code == Code::kUnavailable) {
        ++skipped;
        continue;
      }
      REQUIRE(normal.ok());
      CHECK(*normal == test["expected"][i].get<std::string>());
    }
  }
  if (skipped > 0) MESSAGE("skipped: ", skipped, " texts that need utf8proc, but this build was made without it");
}

TEST_CASE("text normalizer: a sequence applies in order, and ASCII needs no Unicode library") {
  const nlohmann::json field = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "NFC"}}, {{"type", "Lowercase"}}, {{"type", "Strip"}}, {{"type", "Prepend"}, {"prepend", "_"}}}}};
  const auto normal = normalize(field, "  AbC ");
  REQUIRE(normal.ok());
  CHECK(*normal == "_abc");
  CHECK(*normalize(field, " ") == "");
}

TEST_CASE("text normalizer: steps that make a text ever longer are refused") {
  const nlohmann::json replace = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(50, 'a')}};
  nlohmann::json field = {{"type", "Sequence"}, {"normalizers", {replace, replace}}};
  CHECK(normalize(field, "a")->size() == 2500);
  for (int i = 0; i < 6; ++i) field["normalizers"].push_back(replace);  // 50^8 bytes
  const auto refused = normalize(field, "a");
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == Code::kFull);
}

TEST_CASE("text normalizer: an unsupported setting is refused by name") {
  const auto refused = normalize({{"type", "Precompiled"}}, "a");
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().detail.starts_with("tokenizer.json: type is 'Precompiled', which is not supported"));
}

}  // namespace
}  // namespace seer
