// Tiny random models for tests, written in Hugging Face layout. Weights are a pure function of (seed, tensor name,
// index), the same here and in tests/oracle/tiny_model.py, and exact in F32, F16 and BF16, so that reference values can
// be committed without the weights.
//
//   k = mix64(hash_text(name, seed) + index) >> 57          (7 bits)
//   norm.weight: 1 + (k - 64) / 128     bias: (k - 64) / 64 / 8
//   matrix of K columns: (k - 64) / 64 * 2^-s, s = max(0, floor(bit_length(K - 1) / 2) - 1)
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "gpu/cpu/float_bits.h"
#include "protocols/hash.h"

namespace seer {

struct TinyTensor {
  std::string name;
  std::vector<int64_t> shape;
};

inline std::vector<TinyTensor> tiny_tensors(const nlohmann::json& c) {
  const int64_t hidden = c["hidden_size"], inner = c["intermediate_size"], heads = c["num_attention_heads"],
                kv_heads = c["num_key_value_heads"], dim = c["head_dim"], vocab = c["vocab_size"];
  const std::string kind = c["model_type"];
  const bool bias = c.value("attention_bias", false), qkv_bias = bias || kind == "qwen2";
  std::vector<TinyTensor> t = {{"model.embed_tokens.weight", {vocab, hidden}}};
  for (int i = 0; i < c["num_hidden_layers"].get<int>(); ++i) {
    const std::string p = "model.layers." + std::to_string(i) + ".";
    t.push_back({p + "input_layernorm.weight", {hidden}});
    for (const auto& [name, rows] : {std::pair{"q", heads * dim}, {"k", kv_heads * dim}, {"v", kv_heads * dim}}) {
      t.push_back({p + "self_attn." + name + "_proj.weight", {rows, hidden}});
      if (qkv_bias) t.push_back({p + "self_attn." + name + "_proj.bias", {rows}});
    }
    if (kind == "qwen3") {
      t.push_back({p + "self_attn.q_norm.weight", {dim}});
      t.push_back({p + "self_attn.k_norm.weight", {dim}});
    }
    t.push_back({p + "self_attn.o_proj.weight", {hidden, heads * dim}});
    if (bias && kind != "qwen2") t.push_back({p + "self_attn.o_proj.bias", {hidden}});
    t.push_back({p + "post_attention_layernorm.weight", {hidden}});
    for (const auto& [name, rows, columns] :
         {std::tuple{"gate", inner, hidden}, {"up", inner, hidden}, {"down", hidden, inner}}) {
      t.push_back({p + "mlp." + name + "_proj.weight", {rows, columns}});
      if (c.value("mlp_bias", false)) t.push_back({p + "mlp." + name + "_proj.bias", {rows}});
    }
  }
  t.push_back({"model.norm.weight", {hidden}});
  if (!c.value("tie_word_embeddings", false)) t.push_back({"lm_head.weight", {vocab, hidden}});
  return t;
}

/// The values of one tensor.
class TinyValues {
 public:
  TinyValues(const TinyTensor& t, uint64_t seed)
      : name_hash_(hash_text(t.name, seed)), is_norm_(t.name.ends_with("norm.weight")), scale_(1.0f / 512.0f) {
    if (t.shape.size() == 1) return;
    const int s = std::max(0, static_cast<int>(std::bit_width(static_cast<uint64_t>(t.shape[1] - 1))) / 2 - 1);
    scale_ = std::ldexp(1.0f / 64.0f, -s);
  }
  float at(uint64_t index) const {
    const auto k = static_cast<float>(static_cast<int>(mix64(name_hash_ + index) >> 57) - 64);
    return is_norm_ ? 1.0f + k / 128.0f : k * scale_;  // both exact
  }

 private:
  uint64_t name_hash_;
  bool is_norm_;
  float scale_;  // a power of two
};
inline float tiny_value(const TinyTensor& t, uint64_t seed, uint64_t index) { return TinyValues(t, seed).at(index); }

// Exact for the values above.
inline uint16_t tiny_half(float x) {
  if (x == 0.0f) return 0;
  int exponent = 0;
  const float m = std::frexp(std::fabs(x), &exponent);  // x = m 2^exponent, m in [0.5, 1)
  const auto bits = static_cast<uint16_t>((exponent + 14) << 10 | (static_cast<int>(m * 2048.0f) & 0x3ff));
  return static_cast<uint16_t>(bits | (x < 0 ? 0x8000 : 0));
}

/// Gives a weight another value than `value`.
using TinyEdit = std::function<float(const TinyTensor& tensor, uint64_t index, float value)>;
/// Makes the embedding of a token so large that its squares overflow: wherever it is fed, no logit is finite from there on.
/// The head must not be tied to the embeddings.
inline TinyEdit overflowing_token(int32_t token) {
  return [token](const TinyTensor& t, uint64_t index, float value) {
    return t.name == "model.embed_tokens.weight" && static_cast<int64_t>(index) / t.shape[1] == token ? 0x1.8p127f : value;
  };
}

inline void append_tensor(std::string& out, const TinyTensor& t, const std::string& dtype, uint64_t seed,
                          const TinyEdit& edit = {}) {
  uint64_t size = 1;
  for (int64_t n : t.shape) size *= static_cast<uint64_t>(n);
  const TinyValues values(t, seed);
  for (uint64_t i = 0; i < size; ++i) {
    float value = values.at(i);
    if (edit) value = edit(t, i, value);
    char bytes[4];
    const uint16_t half = dtype == "BF16" ? float_to_bf16(value) : tiny_half(value);
    std::memcpy(bytes, dtype == "F32" ? static_cast<const void*>(&value) : &half, dtype == "F32" ? 4 : 2);
    out.append(bytes, dtype == "F32" ? 4 : 2);
  }
}

/// A safetensors file with these tensors.
inline std::string safetensors_bytes(const std::vector<TinyTensor>& tensors, const std::string& dtype, uint64_t seed,
                                     const TinyEdit& edit = {}) {
  nlohmann::json header;
  std::string data;
  for (const TinyTensor& t : tensors) {
    const size_t begin = data.size();
    append_tensor(data, t, dtype, seed, edit);
    header[t.name] = {{"dtype", dtype}, {"shape", t.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  std::string file(8, '\0');
  const uint64_t size = text.size();
  std::memcpy(file.data(), &size, 8);
  return file + text + data;
}

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// A folder below the system's temporary one, removed at the end.
class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "seer_test_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TestFolder() {
    std::error_code ec;
    std::filesystem::remove_all(path_, ec);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_tiny_model(const std::filesystem::path& folder, const nlohmann::json& config,
                             const std::string& dtype, uint64_t seed, const TinyEdit& edit = {}) {
  write_file(folder / "config.json", config.dump(1));
  write_file(folder / "model.safetensors", safetensors_bytes(tiny_tensors(config), dtype, seed, edit));
}

/// The config of a small model; `changes` are merged into it.
inline nlohmann::json tiny_config(const std::string& kind, const nlohmann::json& changes = nlohmann::json::object()) {
  const std::string architecture = kind == "llama"   ? "LlamaForCausalLM"
                                   : kind == "qwen2" ? "Qwen2ForCausalLM"
                                                     : "Qwen3ForCausalLM";
  nlohmann::json c = {{"architectures", {architecture}}, {"model_type", kind},     {"hidden_size", 64},
                      {"intermediate_size", 96},         {"num_hidden_layers", 2}, {"num_attention_heads", 4},
                      {"num_key_value_heads", 2},        {"head_dim", 16},         {"vocab_size", 96},
                      {"max_position_embeddings", 1024}, {"rms_norm_eps", 1e-6},   {"rope_theta", 10000.0},
                      {"tie_word_embeddings", true},     {"eos_token_id", 1}};
  c.update(changes);
  return c;
}

}  // namespace seer
