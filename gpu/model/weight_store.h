// Model: a loaded Hugging Face folder, its weights packed for the CPU kernels. Immutable once loaded; several engines
// of one process share it through shared_ptr<const Model>. Thread-safe.
//
// Every tensor of the folder is used or known to be harmless, and every weight is a finite number: other folders are
// refused. All matrices of the file have the dtype of the embedding (BF16, F16 or F32); norms and biases may have any of
// the three and are kept as floats.
#pragma once
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gpu/cpu/packed_matrix.h"
#include "gpu/model/model_config.h"
#include "gpu/model/safetensors.h"

namespace seer {

/// How the matrices are kept. kInt8 (packed_matrix.h has the format) quantises every linear layer and the head to half the
/// bytes of bf16, because reading them bounds a step at small batch (the head is a quarter of them in a small model). An
/// embedding tied to the head is read from the same integers: a copy would cost more memory than the layers save. A
/// separate embedding stays as stored, because a step reads only one row of it per token.
/// kW8a8 does the same, and has the inputs of these layers rounded to integers too (kernels.h).
enum class WeightType : uint8_t { kAsStored, kInt8, kW8a8 };
inline constexpr std::array<const char*, 3> kWeightTypeNames{"stored", "int8", "w8a8"};  // by value

struct LayerWeights {
  std::vector<float> input_norm, post_norm;  // [hidden]
  std::vector<float> q_norm, k_norm;         // [head_dim] or empty
  PackedMatrix qkv;                          // rows: all query heads, all key heads, all value heads
  PackedMatrix output;                       // [hidden, query_size]
  PackedMatrix gate_up;                      // rows: gate, then up
  PackedMatrix down;                         // [hidden, intermediate]
  std::vector<float> qkv_bias, output_bias, gate_up_bias, down_bias;  // empty: none
};

struct Model {
  std::string folder;
  ModelConfig config;
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;
  PackedMatrix head;          // [vocab, hidden]
  PackedMatrix embedding;     // empty if it is tied to the head: then `head` is both
  uint64_t weights_hash = 0;  // of the config, every tensor (a CRC32C each) and the WeightType
  WeightType weight_type = WeightType::kAsStored;
  TensorType matrix_type = TensorType::kBf16;  // of the matrices in the folder
  int64_t stored_bytes_max = 0;                // that these tensors can take in safetensors of this matrix type, without headers
  int64_t stored_tensors = 0;

  const PackedMatrix& embedding_matrix() const { return config.tied_head ? head : embedding; }
  int64_t weight_bytes() const;
};

/// Loads a folder with config.json and model.safetensors (or shards and their index).
/// Errors: kNotFound, kInvalidArgument, kCorrupt, kIo; one sentence naming file, tensor or field, expected and found.
Result<std::shared_ptr<const Model>> load_model(const std::filesystem::path& folder,
                                                WeightType weights = WeightType::kAsStored);

/// Loads other weights of the model `like`: tensors of the same names, shapes and dtype, kept in the same way. A folder may hold
/// safetensors alone; a config.json beside them must describe the same model.
/// Errors: as load_model(), and kInvalidArgument for weights of another model, naming the tensor or the field of config.json.
Result<std::shared_ptr<const Model>> load_weights(const Checkpoint& checkpoint, const Model& like);
Result<std::shared_ptr<const Model>> load_weights(const std::filesystem::path& path, const Model& like);

}  // namespace seer
