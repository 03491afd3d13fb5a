#include "gpu/text/tokenizer_config.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "gpu/tiny_model.h"

using namespace seer;

TEST_CASE("tokenizer config: special_tokens_map.json has the last word where no added tokens are listed") {
  TestFolder folder;
  const auto write = [&](const char* name, const char* text) { std::ofstream(folder.path() / name) << text; };
  CHECK(read_tokenizer_config(folder.path())->is_null());
  write("special_tokens_map.json", R"({"bos_token": "C"})");
  CHECK(read_tokenizer_config(folder.path()).value() == nlohmann::json{{"bos_token", "C"}});
  write("tokenizer_config.json", R"({"bos_token": "B", "eos_token": "E"})");
  CHECK(read_tokenizer_config(folder.path()).value() == nlohmann::json{{"bos_token", "C"}, {"eos_token", "E"}});
  write("tokenizer_config.json", R"({"bos_token": "B", "added_tokens_decoder": {}})");
  CHECK((*read_tokenizer_config(folder.path()))["bos_token"] == "B");
  write("tokenizer_config.json", "{}");
  write("special_tokens_map.json", "[]");
  CHECK(read_tokenizer_config(folder.path()).error().detail == (folder.path() / "special_tokens_map.json").string() + ": expected a JSON object");
}
