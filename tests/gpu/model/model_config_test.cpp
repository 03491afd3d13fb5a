#include "gpu/model/model_config.h"

#include <doctest/doctest.h>

#include "gpu/tiny_model.h"

namespace seer {
namespace {

Result<ModelConfig> read(const nlohmann::json& config, const std::string& generation = "") {
  TestFolder folder;
  write_file(folder.path() / "config.json", config.dump());
  if (!generation.empty()) write_file(folder.path() / "generation_config.json", generation);
  return read_model_config(folder.path());
}

TEST_CASE("model config: the tokenizer's end token is one too, where tokenizer_config.json tells its id") {
  const auto eos_ids = [](const std::string& tokenizer_config) {
    TestFolder folder;
    write_tiny_model(folder.path(), tiny_config("qwen2"), "BF16", 1);
    std::ofstream(folder.path() / "tokenizer_config.json") << tokenizer_config;
    return read_model_config(folder.path())->eos_ids;
  };
  const std::string decoder = R"("added_tokens_decoder": {"0": {"content": "<unk>"}, "7": {"content": "<|im_end|>"}, "95": {"content": "</s>"}, "96": {"content": "far"}})";
  CHECK(eos_ids("{" + decoder + R"(, "eos_token": "<|im_end|>"})") == std::vector<int32_t>{1, 7});
  CHECK(eos_ids("{" + decoder + R"(, "eos_token": {"content": "</s>", "lstrip": false}})") == std::vector<int32_t>{1, 95});
  CHECK(eos_ids("{" + decoder + R"(, "eos_token": "<unk>"})") == std::vector<int32_t>{0, 1});
  for (const std::string& other : {"{" + decoder + "}", "{" + decoder + R"(, "eos_token": "far"})", "{" + decoder + R"(, "eos_token": 5})",
                                   std::string(R"({"eos_token": "</s>"})"), std::string("[]"), std::string("{")})
    CHECK(eos_ids(other) == std::vector<int32_t>{1});
}

TEST_CASE("model config: as transformers 5 saves it, the end token's id is in tokenizer.json") {
  const auto eos_ids = [](const std::string& tokenizer_config, const std::string& tokenizer) {
    TestFolder folder;
    write_tiny_model(folder.path(), tiny_config("qwen2"), "BF16", 1);
    std::ofstream(folder.path() / "tokenizer_config.json") << tokenizer_config;
    std::ofstream(folder.path() / "tokenizer.json") << tokenizer;
    return read_model_config(folder.path())->eos_ids;
  };
  const std::string added = R"("added_tokens": [{"id": 5, "content": "a"}, {"id": 7, "content": "<|im_end|>", "special": true}, {"id": 96, "content": "far"}])";
  const std::string whole = R"({"version": "1.0", "model": {"vocab": {"x": 1, "<|im_end|>": 9}, "added_tokens": [{"id": 8, "content": "<|im_end|>"}]}, )" + added + "}";
  const std::string chat = R"({"eos_token": "<|im_end|>"})";
  CHECK(eos_ids(chat, whole) == std::vector<int32_t>{1, 7});
  CHECK(eos_ids(R"({"eos_token": {"content": "<|im_end|>"}})", "{" + added + R"(, "model": {}})") == std::vector<int32_t>{1, 7});
  CHECK(eos_ids(R"({"eos_token": "<|im_end|>", "added_tokens_decoder": {"5": {"content": "<|im_end|>"}}})", whole) == std::vector<int32_t>{1, 5});
  CHECK(eos_ids(R"({"eos_token": "far"})", whole) == std::vector<int32_t>{1});
  {  // as transformers 4 saved older ones, its name is in special_tokens_map.json
    TestFolder folder;
    write_tiny_model(folder.path(), tiny_config("qwen2"), "BF16", 1);
    std::ofstream(folder.path() / "special_tokens_map.json") << chat;
    std::ofstream(folder.path() / "tokenizer.json") << whole;
    CHECK(read_model_config(folder.path())->eos_ids == std::vector<int32_t>{1, 7});
  }
  for (const char* const other : {"", "[]", "{", R"({"added_tokens": 7})", R"({"added_tokens": [7, {"content": "<|im_end|>"}]})"})
    CHECK(eos_ids(chat, other) == std::vector<int32_t>{1});
}

TEST_CASE("model config: attention that sees what follows is refused; in chunks, the context ends where one chunk and its neighbours do") {
  CHECK(read(tiny_config("qwen2", {{"is_causal", true}})).ok());
  CHECK(read(tiny_config("qwen2", {{"is_causal", false}})).error().detail.find("is_causal is false") != std::string::npos);
  CHECK(read(tiny_config("qwen2", {{"head_dim", nullptr}, {"hidden_size", 4096}, {"num_attention_heads", 2}, {"num_key_value_heads", 2}}))
            .error().detail.find("head_dim must be at most 1024, found 2048") != std::string::npos);
  const int64_t plain = read(tiny_config("qwen2"))->context_tokens_max;
  const auto chunks = [](const nlohmann::json& config) { return read(tiny_config("qwen2", {{"dual_chunk_attention_config", config}})); };
  CHECK(chunks(nullptr)->context_tokens_max == plain);
  CHECK(chunks({{"chunk_size", 300}, {"local_size", 100}})->context_tokens_max == 200);
  CHECK(chunks({{"chunk_size", 1 << 20}})->context_tokens_max == plain);
  CHECK(chunks({{"chunk_size", 10}, {"local_size", 10}}).error().detail.find("local_size must be less than chunk_size") != std::string::npos);
  CHECK(!chunks({{"local_size", 10}}).ok());
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
  const nlohmann::json newer = {{"rope_theta", nullptr},
                                {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}};
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

// What is said of a tiny config with these changes, after the file's name; "" if it is accepted.
std::string detail(const std::string& kind, const nlohmann::json& changes) {
  const auto result = read(tiny_config(kind, changes));
  if (result.ok()) return "";
  CHECK(result.error().code == Code::kInvalidArgument);
  const std::string& text = result.error().detail;
  return text.substr(text.find("config.json") + 11);
}

TEST_CASE("model config: an error is one sentence") {
  CHECK(detail("llama", {{"architectures", {"MixtralForCausalLM"}}}) ==
        ": architectures names the unknown architecture MixtralForCausalLM; known: LlamaForCausalLM, MistralForCausalLM, "
        "Qwen2ForCausalLM, Qwen3ForCausalLM");
  CHECK(detail("llama", {{"hidden_size", nullptr}}) == ": hidden_size is missing");
  CHECK(detail("llama", {{"hidden_size", -3}}) == ": hidden_size must be an integer from 1 to 65536, found -3");
  CHECK(detail("llama", {{"vocab_size", "many"}}) ==
        ": vocab_size must be an integer from 1 to 16777216, found \"many\"");
  CHECK(detail("llama", {{"num_attention_heads", 3}}) ==
        ": num_attention_heads must be a multiple of num_key_value_heads, found 3 and 2");
  CHECK(detail("llama", {{"head_dim", 15}}) == ": head_dim must be even, found 15");
  CHECK(detail("qwen2", {{"use_sliding_window", true}}) ==
        ": use_sliding_window is true: sliding window attention is not supported");
  CHECK(detail("qwen2", {{"use_sliding_window", true}, {"max_window_layers", 1}}) ==
        ": use_sliding_window is true: sliding window attention is not supported");
  CHECK(detail("qwen2", {{"use_sliding_window", true}, {"max_window_layers", 28}}).empty());
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

const nlohmann::json kYarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 256}};

nlohmann::json with(nlohmann::json object, const char* key, const nlohmann::json& value) {
  object[key] = value;
  return object;
}

TEST_CASE("model config: rope_parameters, flat or nested by kind of layer, says what rope_scaling says") {
  const auto older = read(tiny_config("qwen3", {{"rope_theta", 5e5}, {"rope_scaling", kYarn}}));
  REQUIRE(older.ok());
  const nlohmann::json newer = with(kYarn, "rope_theta", 5e5);
  const std::vector<nlohmann::json> same = {
      {{"rope_theta", nullptr}, {"rope_parameters", newer}},
      {{"rope_theta", 5e5}, {"rope_parameters", newer}},
      {{"rope_theta", nullptr}, {"rope_parameters", {{"full_attention", newer}}}},
      {{"rope_theta", 5e5}, {"rope_parameters", {{"full_attention", kYarn}}}, {"rope_scaling", kYarn}},
      {{"rope_theta", 5e5}, {"rope_parameters", newer}, {"rope_scaling", nlohmann::json::object()}},
      {{"rope_theta", 5e5}, {"rope_scaling", with(with(kYarn, "rope_type", nullptr), "type", "yarn")}},
      {{"rope_theta", 5e5}, {"rope_scaling", with(kYarn, "type", "yarn")}},
      {{"rope_theta", 5e5}, {"rope_scaling", with(kYarn, "partial_rotary_factor", 1.0)}},
      {{"rope_theta", 5e5},
       {"original_max_position_embeddings", 256},
       {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}}},
  };
  for (size_t i = 0; i < same.size(); ++i) {
    CAPTURE(same[i].dump());
    nlohmann::json config = tiny_config("qwen3", same[i]);
    if (i == 5) config["rope_scaling"].erase("rope_type");
    const auto read_again = read(config);
    REQUIRE_MESSAGE(read_again.ok(), read_again.error().detail);
    CHECK(read_again->rope == older->rope);
    CHECK(read_again->context_tokens_max == older->context_tokens_max);
    CHECK(rope_frequencies(*read_again) == rope_frequencies(*older));
  }
  // DeepSeek-R1-0528-Qwen3-8B's factor undoes the one that follows from `factor`; a key of fine-tuned models changes nothing.
  const auto undone = read(tiny_config("qwen3", {{"rope_theta", 5e5}, {"rope_scaling", with(with(kYarn, "attn_factor", 0.8782488562869419), "finetuned", true)}}));
  REQUIRE(undone.ok());
  CHECK(undone->rope.attention_factor == doctest::Approx(1.0));
  // Without a field for it, the context before yarn is the model's own.
  const auto own = read(tiny_config("qwen3", {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}}}));
  CHECK(own->rope.original_context_tokens == 1024);
}

TEST_CASE("model config: a rope that is unknown or contradicts itself is refused, with the field") {
  const auto scaling = [](const nlohmann::json& block) { return detail("llama", {{"rope_scaling", block}}); };
  CHECK(scaling({{"factor", 2.0}}) == ": rope_scaling: factor is set, but there is no rope_type");
  CHECK(scaling({{"type", nullptr}, {"factor", 2.0}}) == ": rope_scaling: type is null");
  CHECK(scaling({{"rope_type", nullptr}, {"factor", 2.0}}) == ": rope_scaling: rope_type is null");
  CHECK(scaling(with(kYarn, "type", "linear")) == ": rope_scaling: type is linear, but rope_type is yarn");
  CHECK(scaling({{"rope_type", "default"}, {"factor", 2.0}}) ==
        ": rope_scaling: factor is 2.0, which means nothing for rope_type default");
  CHECK(scaling({{"low_freq_factor", 1.0}}) ==
        ": rope_scaling: low_freq_factor is 1.0, which means nothing for rope_type default");
  CHECK(scaling(with(kYarn, "attn_factors", 2)) ==
        ": rope_scaling: attn_factors is 2, which means nothing for rope_type yarn");
  CHECK(scaling(with(with(kYarn, "attn_factor", 2), "attention_factor", 2)) ==
        ": rope_scaling: attn_factor is set, and attention_factor too: expected one of them");
  CHECK(scaling(with(kYarn, "rope_theta", 5e5)) ==
        ": rope_scaling: rope_theta is 500000, but 10000 outside of the block");
  CHECK(scaling("yarn") == ": rope_scaling must be an object, found \"yarn\"");
  for (const char* kind : {"linear", "dynamic", "longrope", "su", "mrope", "YARN"})
    CHECK(scaling({{"rope_type", kind}, {"factor", 2.0}}) ==
          cat(": rope_scaling: rope_type is ", kind, "; known: default, llama3, yarn"));
  CHECK(detail("llama", {{"original_max_position_embeddings", 512}, {"rope_scaling", kYarn}}) ==
        ": rope_scaling: original_max_position_embeddings is 256, but 512 outside of the block");
  CHECK(detail("qwen3", {{"rope_scaling", kYarn}, {"rope_parameters", {{"rope_type", "default"}}}}) ==
        ": rope_parameters says something else than rope_scaling");
  CHECK(detail("qwen3", {{"rope_parameters", {{"full_attention", kYarn}, {"sliding_attention", kYarn}}}}) ==
        ": rope_parameters has sliding_attention beside full_attention, the only kind of layer that is supported");
  CHECK(detail("qwen3", {{"rope_parameters", {{"sliding_attention", {{"rope_type", "default"}}}}}})
            .starts_with(": rope_parameters: sliding_attention is {\"rope_type\":\"default\"}, which means nothing"));
  CHECK(detail("qwen3", {{"rope_parameters", {{"full_attention", with(kYarn, "type", "linear")}}}}) ==
        ": rope_parameters.full_attention: type is linear, but rope_type is yarn");
  CHECK(detail("qwen3", {{"partial_rotary_factor", 0.5}}).starts_with(": partial_rotary_factor must be 1"));
  CHECK(detail("qwen3", {{"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}}})
            .starts_with(": rope_parameters: partial_rotary_factor must be 1"));
}

TEST_CASE("model config: a field that changes the arithmetic is refused unless its value changes nothing") {
  const std::vector<std::tuple<const char*, nlohmann::json, nlohmann::json>> fields = {
      // refused, accepted
      {"rotary_pct", 0.25, 1.0},
      {"clip_qkv", 8.0, nullptr},
      {"num_experts", 8, 0},
      {"num_local_experts", 8, nullptr},
      {"no_rope_layers", {1, 0}, {1, 1}},
      {"attn_logit_softcapping", 50.0, nullptr},
      {"final_logit_softcapping", 30.0, nullptr},
      {"logits_scaling", 8.0, 1.0},
      {"attention_multiplier", 0.0156, nullptr},
      {"embedding_multiplier", 12.0, 1},
      {"residual_multiplier", 0.22, 1.0},
      {"compression_config", {{"format", "int-quantized"}}, nullptr},
      {"quantization_config", {{"bits", 4}}, nullptr},
      {"use_qk_norm", true, false},
      {"rope_interleaved", true, false},
      {"layer_types", {"full_attention"}, {"full_attention", "full_attention"}},
      {"model_type", "qwen3", "llama"},
      {"architectures", {"LlamaForCausalLM", "Qwen3ForCausalLM"}, {"LlamaForCausalLM"}},
  };
  for (const auto& [name, refused, accepted] : fields) {
    CAPTURE(name);
    CHECK(detail("llama", {{name, accepted}}).empty());
    CHECK(detail("llama", {{name, refused}}).starts_with(cat(": ", name, " ")));
  }
  CHECK(detail("qwen2", {{"mlp_bias", true}}) == ": mlp_bias is true, but a Qwen2 model has no such biases");
  CHECK(detail("llama", {{"pretraining_tp", 2}, {"sliding_window", 4096}, {"max_window_layers", 1}}).empty());
  CHECK(detail("llama", {{"model_type", "qwen2"}}) ==
        ": model_type is qwen2, but architectures names LlamaForCausalLM");
  CHECK(detail("llama", {{"layer_types", {"full_attention"}}}) ==
        ": layer_types has 1 entries, but num_hidden_layers is 2");
  CHECK(detail("llama", {{"architectures", nullptr}}).empty());  // then model_type says it
}

TEST_CASE("model config: the published configs of Qwen2.5, Qwen3, Llama and models of their kind are read") {
  struct Published {
    const char* name;
    const char* text;
    ModelFamily family;
    RopeKind rope;
    int32_t head_dim;
  };
  const Published published[] = {
      {"Qwen2.5-0.5B-Instruct",
       R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
        "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2",
        "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers_version": "4.43.1", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})",
       ModelFamily::kQwen2, RopeKind::kDefault, 64},
      {"Qwen2.5-7B-Instruct with yarn, as its card says", R"({"architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu",
        "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 32768,
        "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.43.1", "use_cache": true,
        "use_sliding_window": false, "vocab_size": 152064,
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}})",
       ModelFamily::kQwen2, RopeKind::kYarn, 128},
      {"Qwen3-0.6B", R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
        "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
        "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
        "use_sliding_window": false, "vocab_size": 151936})",
       ModelFamily::kQwen3, RopeKind::kDefault, 128},
      {"Qwen3-4B saved again by transformers 5", R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "bos_token_id": 151643, "dtype": "bfloat16", "eos_token_id": 151645, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 9728,
        "layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 40960, "max_window_layers": 36,
        "model_type": "qwen3", "num_attention_heads": 32, "num_hidden_layers": 2, "num_key_value_heads": 8,
        "pad_token_id": null, "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "sliding_window": null,
        "tie_word_embeddings": true, "transformers_version": "5.0.0", "use_cache": true, "use_sliding_window": false,
        "vocab_size": 151936})",
       ModelFamily::kQwen3, RopeKind::kDefault, 128},
      {"Llama-2-7b-hf", R"({"_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"],
        "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": null, "tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.31.0.dev0",
        "use_cache": true, "vocab_size": 32000})",
       ModelFamily::kLlama, RopeKind::kDefault, 128},
      {"Meta-Llama-3-8B", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 8192, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 500000.0, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.40.0.dev0", "use_cache": true, "vocab_size": 128256})",
       ModelFamily::kLlama, RopeKind::kDefault, 128},
      {"Llama-3.1-8B-Instruct", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
        "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.42.3", "use_cache": true,
        "vocab_size": 128256})",
       ModelFamily::kLlama, RopeKind::kLlama3, 128},
      {"Llama-3.2-1B", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
        "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})",
       ModelFamily::kLlama, RopeKind::kLlama3, 64},
      {"SmolLM2-135M", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
        "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192, "model_type": "llama",
        "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": true,
        "vocab_size": 49152})",
       ModelFamily::kLlama, RopeKind::kDefault, 64},
  };
  for (const Published& p : published) {
    CAPTURE(p.name);
    TestFolder folder;
    write_file(folder.path() / "config.json", p.text);
    const auto config = read_model_config(folder.path());
    REQUIRE_MESSAGE(config.ok(), config.error().detail);
    CHECK(config->family == p.family);
    CHECK(config->rope.kind == p.rope);
    CHECK(config->head_dim == p.head_dim);
  }
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
  const auto said = [&](const std::string& text) {
    write_file(folder.path() / "config.json", text);
    return read_model_config(folder.path()).error().detail;
  };
  CHECK(said(R"({"vocab_size": 3, "vocab_size": 4})").ends_with("config.json: the key vocab_size is there twice"));
  CHECK(said(R"({"a": [{"b": 1}, {"b": 1, "c": {"d": 1, "d": 1}}]})").ends_with(": the key a.c.d is there twice"));
  CHECK(said("\x1f\x8b\x08").ends_with("config.json is gzip data, not JSON"));
  CHECK(said("\xff\xfe{").ends_with("config.json is UTF-16 text, not JSON"));
  CHECK(said(std::string("{\0\"\0a\0", 6)).ends_with("config.json is UTF-16 text, not JSON"));
  CHECK(said("version https://git-lfs.github.com/spec/v1\n").find("is a Git LFS pointer") != std::string::npos);
  CHECK(said("{\"architectures\": [\"" + std::string(5000, 'x') + "\"]}").size() < 300 + folder.path().string().size());
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  CHECK(said("{\"clip_qkv\": " + deep + "}").ends_with("config.json is nested deeper than 64 levels"));
  write_file(folder.path() / "config.json", tiny_config("llama").dump());
  write_file(folder.path() / "generation_config.json", "not json");
  CHECK(read_model_config(folder.path()).error().detail.ends_with("generation_config.json:1 is not valid JSON"));
}

TEST_CASE("model config: Mistral without sliding windows is computed as Llama is") {
  const auto mistral = [](nlohmann::json more) {
    more["architectures"] = {"MistralForCausalLM"};
    more["model_type"] = "mistral";
    return more;
  };
  const auto config = read(tiny_config("llama", mistral({{"sliding_window", nullptr}})));
  REQUIRE_MESSAGE(config.ok(), config.error().detail);
  CHECK(config->family == ModelFamily::kLlama);
  CHECK(detail("llama", mistral({})) == ": sliding_window is missing, which means 4096: sliding window attention is not supported");
  CHECK(detail("llama", mistral({{"sliding_window", 4096}})) == ": sliding_window is 4096: sliding window attention is not supported");
  CHECK(detail("llama", mistral({{"sliding_window", nullptr}, {"num_key_value_heads", nullptr}})) == ": num_key_value_heads is missing");
}

}  // namespace
}  // namespace seer
