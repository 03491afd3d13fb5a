#include "gpu/model_config.h"

#include <doctest/doctest.h>

#include "tiny_model.h"

namespace seer {
namespace {

Result<ModelConfig> read(const nlohmann::json& config, const std::string& generation = "") {
  TestFolder folder;
  write_file(folder.path() / "config.json", config.dump());
  if (!generation.empty()) write_file(folder.path() / "generation_config.json", generation);
  return read_model_config(folder.path());
}

TEST_CASE("model config: families, defaults and end tokens") {
  auto llama = read(tiny_config("llama", {{"num_key_value_heads", nullptr}, {"head_dim", nullptr}}));
  REQUIRE(llama.ok());
  CHECK(llama->kv_heads == 4);
  CHECK(llama->head_dim == 16);
  CHECK(!llama->qkv_bias);
  CHECK(llama->eos_ids == std::vector<int32_t>{1});
  CHECK(read(tiny_config("qwen2"))->qkv_bias);
  CHECK(read(tiny_config("qwen3"))->qk_norm);
  CHECK(read(tiny_config("qwen3"), R"({"eos_token_id": [7, 2, 7]})")->eos_ids == std::vector<int32_t>{2, 7});
  CHECK(read(tiny_config("qwen3"), R"({"temperature": 0.6})")->eos_ids == std::vector<int32_t>{1});
  const nlohmann::json newer = {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}};
  CHECK(read(tiny_config("qwen3", newer))->rope.theta == 5e5);
}

TEST_CASE("model config: rope scaling changes frequencies as it should") {
  const nlohmann::json llama3 = {{"rope_scaling",
                                  {{"rope_type", "llama3"},
                                   {"factor", 8.0},
                                   {"low_freq_factor", 1.0},
                                   {"high_freq_factor", 4.0},
                                   {"original_max_position_embeddings", 64}}}};
  const auto plain = rope_frequencies(*read(tiny_config("llama"))),
             slowed = rope_frequencies(*read(tiny_config("llama", llama3)));
  REQUIRE(plain.size() == 8);
  CHECK(plain[0] == 1.0);
  CHECK(slowed[0] == plain[0]);        // a short wave is kept
  CHECK(slowed[7] == plain[7] / 8.0);  // a long one is slowed by the factor
  const nlohmann::json yarn = {
      {"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}}}};
  const auto config = read(tiny_config("qwen2", yarn));
  REQUIRE(config.ok());
  CHECK(config->context_tokens_max == 2048);
  CHECK(config->rope.attention_factor == doctest::Approx(1.1386294361));
  CHECK(rope_frequencies(*config)[7] == doctest::Approx(plain[7] / 4.0));
}

TEST_CASE("model config: what is wrong is said in one sentence") {
  const auto detail = [](const std::string& kind, const nlohmann::json& changes) {
    const auto result = read(tiny_config(kind, changes));
    REQUIRE(!result.ok());
    CHECK(result.error().code == Code::kInvalidArgument);
    const std::string& text = result.error().detail;
    return text.substr(text.find("config.json") + 11);
  };
  CHECK(detail("llama", {{"architectures", {"MixtralForCausalLM"}}}) ==
        ": architectures names the unknown architecture MixtralForCausalLM; known: LlamaForCausalLM, Qwen2ForCausalLM, "
        "Qwen3ForCausalLM");
  CHECK(detail("llama", {{"hidden_size", nullptr}}) == ": hidden_size is missing");
  CHECK(detail("llama", {{"hidden_size", -3}}) == ": hidden_size must be an integer from 1 to 65536, found -3");
  CHECK(detail("llama", {{"vocab_size", "many"}}) ==
        ": vocab_size must be an integer from 1 to 16777216, found \"many\"");
  CHECK(detail("llama", {{"num_attention_heads", 3}}) ==
        ": num_attention_heads must be a multiple of num_key_value_heads, found 3 and 2");
  CHECK(detail("llama", {{"head_dim", 15}}) == ": head_dim must be even, found 15");
  CHECK(detail("qwen2", {{"use_sliding_window", true}}) ==
        ": use_sliding_window is true: sliding window attention is not supported");
  CHECK(detail("qwen3", {{"layer_types", {"full_attention", "sliding_attention"}}}) ==
        ": layer_types holds \"sliding_attention\": only \"full_attention\" is supported");
  CHECK(detail("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}) ==
        ": rope_scaling: rope_type is linear; known: default, llama3, yarn");
  CHECK(detail("llama", {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 2}}}}) ==
        ": rope_scaling: low_freq_factor is missing");
  CHECK(detail("llama", {{"quantization_config", {{"bits", 4}}}}) ==
        ": quantization_config is set: quantized weights are not supported");
  CHECK(detail("llama", {{"hidden_act", "gelu"}}) == ": hidden_act must be silu, found gelu");
  CHECK(detail("llama", {{"eos_token_id", 96}}) == ": eos_token_id must be ids from 0 to 95, found 96");
  CHECK(detail("llama", {{"eos_token_id", 18446744073709551615ull}})
            .starts_with(": eos_token_id must be ids from 0 to 95"));
}

TEST_CASE("model config: missing and malformed files") {
  TestFolder folder;
  CHECK(read_model_config(folder.path()).error().code == Code::kNotFound);
  for (const std::string text : {"", "{", "[]", "\"x\"", "{\"a\": 1,}", "\xff\xfe{}"}) {
    CAPTURE(text);
    write_file(folder.path() / "config.json", text);
    CHECK(read_model_config(folder.path()).error().code == Code::kInvalidArgument);
  }
  write_file(folder.path() / "config.json", std::string(100'000, '['));  // deep nesting must not exhaust the stack
  CHECK(read_model_config(folder.path()).error().code == Code::kInvalidArgument);
  write_file(folder.path() / "config.json", tiny_config("llama").dump());
  write_file(folder.path() / "generation_config.json", "not json");
  CHECK(read_model_config(folder.path()).error().detail.ends_with("generation_config.json:1 is not valid JSON"));
}

}  // namespace
}  // namespace seer
