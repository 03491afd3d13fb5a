#include "gpu/text/tokenizer_sentencepiece.h"

#include <doctest/doctest.h>

#include "gpu/text/text_vectors.h"

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
  CHECK(tokenizer.piece(*bos) == "");
  CHECK(tokenizer.encode("the", {.add_special = true})->front() == *bos);
  CHECK(tokenizer.encode("x<mask>")->back() == *tokenizer.id_of("<mask>"));
  CHECK_FALSE(tokenizer.id_of("no such piece"));
  CHECK(tokenizer.id_of("<unk>") == 0);
  CHECK(tokenizer.piece(*tokenizer.id_of("<0x0A>")) == "\n");
  CHECK(tokenizer.decode(Ids{-1, INT32_MAX, tokenizer.vocab_size()}) == "");
}

TEST_CASE("sentencepiece tokenizer: a file that is no model is an error that names it") {
  const auto loaded = load_sentencepiece_tokenizer("/nonexistent");
  REQUIRE_FALSE(loaded.ok());
  CHECK(loaded.error().detail.find("/nonexistent/tokenizer.model") != std::string::npos);
}

}  // namespace
}  // namespace seer
