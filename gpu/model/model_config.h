// ModelConfig: what config.json and generation_config.json of a Hugging Face folder say about a dense Llama, Qwen2 or
// Qwen3 model, checked. Plain data, used by the weight store and the engines. Whatever this file accepts, every engine
// computes; whatever it does not know is an error that names the file and the field.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "protocols/result.h"

namespace seer {

enum class ModelFamily : uint8_t { kLlama, kQwen2, kQwen3 };
constexpr const char* to_string(ModelFamily f) {
  return f == ModelFamily::kLlama ? "Llama" : f == ModelFamily::kQwen2 ? "Qwen2" : "Qwen3";
}
enum class RopeKind : uint8_t { kDefault, kLlama3, kYarn };

struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                       // llama3, yarn: how much longer the context became
  double low_freq_factor = 1.0;              // llama3
  double high_freq_factor = 4.0;             // llama3
  int64_t original_context_tokens = 0;       // llama3, yarn: the context before it was scaled
  double beta_fast = 32.0, beta_slow = 1.0;  // yarn: rotations between which frequencies are blended
  bool truncate = true;                      // yarn: the blend starts and ends at whole dimensions
  double attention_factor = 1.0;             // yarn: cos and sin are multiplied by this
  bool operator==(const RopeConfig&) const = default;
};

struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t layers = 0;
  int32_t heads = 0;  // query heads; a multiple of kv_heads
  int32_t kv_heads = 0;
  int32_t head_dim = 0;  // even
  int32_t vocab_size = 0;
  int64_t context_tokens_max = 0;
  float rms_norm_eps = 1e-6f;
  bool tied_head = false;  // the output head is the embedding matrix
  bool qkv_bias = false;
  bool output_bias = false;  // bias on the attention output projection
  bool mlp_bias = false;
  bool qk_norm = false;  // RMS norm of every query and key head before rope
  RopeConfig rope;
  std::vector<int32_t> eos_ids;  // generation_config.json first, else config.json, and the tokenizer's; sorted, distinct, may be empty

  int32_t query_size() const { return heads * head_dim; }
  int32_t kv_size() const { return kv_heads * head_dim; }
  /// Weights of all tensors, with every bias and norm that a family may have and the head stored apart.
  int64_t parameters_max() const;
};

inline constexpr int64_t kConfigBytesMax = 16 << 20;  // of config.json and its like; larger files are refused

/// Reads and checks `folder`/config.json and, if present, generation_config.json.
/// Errors: kNotFound (no config.json), kInvalidArgument (malformed, missing or unsupported; one sentence), kIo.
Result<ModelConfig> read_model_config(const std::filesystem::path& folder);

/// A hash of what config.json says about the model's shape and arithmetic.
uint64_t shape_hash(const ModelConfig& config);

/// Angle per position of each pair of dimensions (head_dim / 2 values), with rope scaling applied.
std::vector<double> rope_frequencies(const ModelConfig& config);

/// Whole file as text. Errors: kNotFound, kIo (also above `bytes_max`).
Result<std::string> read_text_file(const std::filesystem::path& path, int64_t bytes_max);

}  // namespace seer
