#include "gpu/text/tokenizer_sentencepiece.h"

#include <doctest/doctest.h>

#include "gpu/text/text_vectors.h"
#include "gpu/tiny_model.h"

namespace seer {
namespace {

using Ids = std::vector<int32_t>;

TEST_CASE("sentencepiece tokenizer: gives the library's ids and texts, or says what to install") {
  const auto loaded = load_tokenizer(text_data("sentencepiece"));
  if (!loaded.ok()) {
    CHECK(loaded.error().code == Code::kUnavailable);
    CHECK(loaded.error().detail.find("apt-get install libsentencepiece-dev") != std::string::npos);
    MESSAGE("skipped: this build has no SentencePiece");
    return;
  }
  const Tokenizer& tokenizer = **loaded;
  const auto vectors = read_vectors("sentencepiece/vectors.json");
  REQUIRE(vectors.size() > 100);
  for (const auto& vector : vectors) {
    CAPTURE(vector["text"].dump());
    const auto ids = tokenizer.encode(vector["text"].get<std::string>());
    REQUIRE(ids.ok());
    CHECK(*ids == vector["ids"].get<Ids>());
    CHECK(tokenizer.decode(*ids) == vector["decoded"].get<std::string>());
  }
}

TEST_CASE("sentencepiece tokenizer: pieces, special tokens and odd ids") {
  const auto loaded = load_tokenizer(text_data("sentencepiece"));
  if (!loaded.ok()) {
    MESSAGE("skipped: this build has no SentencePiece");
    return;
  }
  const Tokenizer& tokenizer = **loaded;
  const Ids ids = *tokenizer.encode("the tokens\xff");
  std::string joined;
  for (const int32_t id : ids) joined += tokenizer.piece(id);
  CHECK(joined == " the tokens\uFFFD");  // the first space is the model's own; the bad byte became U+FFFD

  const auto bos = tokenizer.id_of("<s>");
  REQUIRE(bos);
  CHECK(tokenizer.is_special(*bos));
  CHECK(tokenizer.piece(*bos) == "<s>");
  CHECK(tokenizer.encode("the", {.add_special = true})->front() == *bos);
  CHECK(tokenizer.encode("x<mask>")->back() == *tokenizer.id_of("<mask>"));
  CHECK_FALSE(tokenizer.id_of("no such piece"));
  CHECK(tokenizer.id_of("<unk>") == 0);
  CHECK(tokenizer.piece(*tokenizer.id_of("<0x0A>")) == "\n");
  CHECK(tokenizer.decode(Ids{-1, INT32_MAX, tokenizer.vocab_size()}) == "");
}

TEST_CASE("sentencepiece tokenizer: cuts a text at control symbols and at the tokens that the folder adds") {
  TestFolder folder;
  std::filesystem::copy(text_data("sentencepiece/tokenizer.model"), folder.path());
  const auto load = [&](const std::string& config) {
    write_file(folder.path() / "tokenizer_config.json", config);
    return load_sentencepiece_tokenizer(folder.path());
  };
  const auto plain = load("{}");
  if (!plain.ok()) {
    MESSAGE("skipped: this build has no SentencePiece");
    return;
  }
  const Ids the = *(*plain)->encode("the");
  const Ids tokens = *(*plain)->encode("tokens");
  const int32_t eos = *(*plain)->id_of("</s>");
  const auto join = [](const Ids& before, int32_t id, const Ids& behind) {
    Ids all = before;
    all.push_back(id);
    all.insert(all.end(), behind.begin(), behind.end());
    return all;
  };
  CHECK(*(*plain)->encode("the</s>tokens") == join(the, eos, tokens));
  CHECK((*plain)->decode(join(the, eos, tokens)) == "the</s> tokens");
  CHECK((*plain)->decode(join(the, eos, tokens), {.skip_special = true}) == "the tokens");

  const int32_t size = (*plain)->vocab_size();
  const auto with_added =
      load(cat(R"({"added_tokens_decoder": {")", size + 1, R"(": {"content": "<|end|>", "special": true, "rstrip": true}}})"));
  REQUIRE(with_added.ok());
  CHECK((*with_added)->vocab_size() == size + 2);
  CHECK((*with_added)->id_of("<|end|>") == size + 1);
  CHECK((*with_added)->is_special(size + 1));
  CHECK(*(*with_added)->encode("the<|end|> \n tokens") == join(the, size + 1, tokens));
  CHECK((*with_added)->decode(Ids{size, size + 1}) == "<|end|>");

  const auto unspaced = load(R"({"legacy": false})");
  REQUIRE(unspaced.ok());
  const Ids ids = *(*unspaced)->encode("the</s>tokens");
  CHECK(Ids(ids.begin(), ids.begin() + the.size()) == the);
  CHECK((*unspaced)->decode(ids) == "the</s>tokens");

  const auto bad_key = load(R"({"added_tokens_decoder": {"x": {"content": "<|end|>"}}})");
  REQUIRE_FALSE(bad_key.ok());
  CHECK(bad_key.error().detail.find("added_tokens_decoder has the key 'x'; expected a token id") != std::string::npos);
}

TEST_CASE("sentencepiece tokenizer: a text grows with its tokens, also in the middle of a character; the settings say what frames it") {
  const auto loaded = load_tokenizer(text_data("sentencepiece"));
  if (!loaded.ok()) {
    MESSAGE("skipped: this build has no SentencePiece");
    return;
  }
  const Tokenizer& tokenizer = **loaded;
  const std::string text = "the \U0001F600 tokens \u4e2d\u00e9 the";
  const Ids ids = *tokenizer.encode(text);
  CHECK(tokenizer.decode(ids) == text);
  std::string before;
  for (size_t count = 1; count <= ids.size(); ++count) {
    const std::string part = tokenizer.decode(std::span(ids).first(count));
    CHECK(part.starts_with(before));
    before = part;
  }

  // Indented lines: newlines are byte tokens, too.
  const int32_t line = *tokenizer.id_of("<0x0A>"), space = *tokenizer.id_of("\u2581");
  Ids lines = *tokenizer.encode("the");
  lines.insert(lines.end(), {line, space, space, space});
  const Ids behind_spaces = *tokenizer.encode("tokens");
  lines.insert(lines.end(), behind_spaces.begin(), behind_spaces.end());
  CHECK(tokenizer.decode(lines) == "the\n    tokens");

  TestFolder folder;
  std::filesystem::copy(text_data("sentencepiece/tokenizer.model"), folder.path());
  const Ids framed = *(*load_sentencepiece_tokenizer(folder.path()))->encode("the", {.add_special = true});
  CHECK(framed.front() == *tokenizer.id_of("<s>"));  // LlamaTokenizer's default
  CHECK(framed.back() == tokenizer.encode("the")->back());
  write_file(folder.path() / "tokenizer_config.json", R"({"add_bos_token": false, "add_eos_token": true})");
  const Ids behind = *(*load_sentencepiece_tokenizer(folder.path()))->encode("the", {.add_special = true});
  CHECK(behind.front() == tokenizer.encode("the")->front());
  CHECK(behind.back() == *tokenizer.id_of("</s>"));
}

TEST_CASE("sentencepiece tokenizer: a file that is no model is an error that names it") {
  const auto loaded = load_sentencepiece_tokenizer("/nonexistent");
  REQUIRE_FALSE(loaded.ok());
  CHECK(loaded.error().detail.find("/nonexistent/tokenizer.model") != std::string::npos);
}

}  // namespace
}  // namespace seer
