#include "gpu/text/pretokenizer.h"

#include <doctest/doctest.h>

#include "gpu/text/byte_level.h"
#include "gpu/text/text_vectors.h"

namespace seer {
namespace {

std::vector<std::string> cut(const nlohmann::json& field, const std::string& text, bool show_bytes = true) {
  const auto pretokenizer = Pretokenizer::parse(JsonAt(field, "test"));
  REQUIRE_MESSAGE(pretokenizer.ok(), field.dump());
  PatternScratch scratch;
  Words words{text, {}};
  REQUIRE(pretokenizer->cut(words, /*at_start=*/true, scratch).ok());
  std::vector<std::string> texts;
  for (const TextRange& range : words.ranges) {
    const std::string word = words.text.substr(range.begin, range.end - range.begin);
    texts.push_back(pretokenizer->byte_level() && show_bytes ? byte_chars(word) : word);
  }
  return texts;
}

std::string refusal(const char* field) {
  const auto document = nlohmann::json::parse(field);
  const auto pretokenizer = Pretokenizer::parse(JsonAt(document, "tokenizer.json").at("pre_tokenizer"));
  return pretokenizer.ok() ? "accepted" : pretokenizer.error().detail;
}

TEST_CASE("pretokenizer: cuts every text where the reference does") {
  const auto vectors = read_vectors("pretokenizers.json");
  const auto texts = vectors["texts"].get<std::vector<std::string>>();
  REQUIRE(vectors["cases"].size() > 40);
  for (const auto& test : vectors["cases"]) {
    for (size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(test["pre_tokenizer"].dump());
      CAPTURE(texts[i]);
      CHECK(cut(test["pre_tokenizer"], texts[i]) == test["expected"][i].get<std::vector<std::string>>());
    }
  }
}

TEST_CASE("pretokenizer: null keeps a text as one word, and an empty text has none") {
  CHECK(cut(nullptr, "a b") == std::vector<std::string>{"a b"});
  CHECK(cut(nullptr, "").empty());
}

TEST_CASE("pretokenizer: the words of ByteLevel are raw bytes") {
  const nlohmann::json field = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  CHECK(cut(field, "né a", /*show_bytes=*/false) == std::vector<std::string>{"né", " a"});
}

TEST_CASE("pretokenizer: an unsupported setting is refused with file, field and name") {
  CHECK(refusal(R"({"pre_tokenizer": {"type": "BertPreTokenizer"}})")
            .starts_with("tokenizer.json: pre_tokenizer.type is 'BertPreTokenizer', which is not supported"));
  CHECK(refusal(R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Sideways",
                "pattern": {"String": "a"}}]}})") ==
        "tokenizer.json: pre_tokenizer.pretokenizers[0].behavior is 'Sideways', which is not a behavior of Split");
  CHECK(refusal(R"({"pre_tokenizer": {"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "a\\b"}}})") ==
        "tokenizer.json: pre_tokenizer.pattern.Regex 'a\\b' uses the escape \\b (byte 1), which is not supported");
  CHECK(refusal(R"({"pre_tokenizer": {"type": "Split", "behavior": "Isolated", "pattern": {"String": ""}}})") ==
        "tokenizer.json: pre_tokenizer.pattern.String must not be empty");
  CHECK(refusal(R"({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "last"}})") ==
        "tokenizer.json: pre_tokenizer.prepend_scheme is 'last', which is none of never, first and always");
  CHECK(refusal(R"({"pre_tokenizer": {"type": "ByteLevel", "use_regex": 1}})") ==
        "tokenizer.json: pre_tokenizer.use_regex must be true or false");
  CHECK(refusal(R"({"pre_tokenizer": "ByteLevel"})") == "tokenizer.json: pre_tokenizer.type must be a string");
}

}  // namespace
}  // namespace seer
