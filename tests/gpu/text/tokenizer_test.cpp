#include "gpu/text/tokenizer.h"

#include <doctest/doctest.h>

#include "gpu/text/text_vectors.h"
#include "gpu/tiny_model.h"

namespace seer {
namespace {

TEST_CASE("tokenizer: a folder with neither file is kNotFound, with the folder's name") {
  const auto missing = load_tokenizer("/nonexistent");
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.error().code == Code::kNotFound);
  CHECK(missing.error().detail == "no tokenizer.json and no tokenizer.model in /nonexistent");
}

TEST_CASE("tokenizer: a folder with both files is read by tokenizer.json, even where that cannot be read") {
  TestFolder folder;
  std::filesystem::copy(text_data("sentencepiece/tokenizer.model"), folder.path());
  const auto sentencepiece = load_tokenizer(folder.path());
  if (!sentencepiece.ok()) CHECK(sentencepiece.error().code == Code::kUnavailable);  // built without it
  std::filesystem::copy(text_data("gpt2_like/tokenizer.json"), folder.path());
  const auto both = load_tokenizer(folder.path());
  REQUIRE(both.ok());
  CHECK((*both)->id_of("Ġ"));  // the byte alphabet
  write_file(folder.path() / "tokenizer.json", "{");
  const auto broken = load_tokenizer(folder.path());
  REQUIRE_FALSE(broken.ok());
  CHECK(broken.error().detail.find((folder.path() / "tokenizer.json").string()) != std::string::npos);
}

}  // namespace
}  // namespace seer
