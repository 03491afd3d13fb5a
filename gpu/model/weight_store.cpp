#include "gpu/model/weight_store.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "gpu/cpu/float_bits.h"
#include "gpu/model/finite_scan.h"
#include "gpu/model/model_folder.h"
#include "gpu/text/json_text.h"
#include "protocols/hash.h"
#include "protocols/kv.h"

namespace seer {
namespace {

// Name of a tensor in errors.
std::string tensor_in(const Checkpoint& checkpoint, const std::string& name) {
  return cat(checkpoint.name(), ": tensor ", shortened(name, 120));
}

constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
constexpr int64_t kSlabBytes = 1 << 20;  // of a file, read and packed at a time: half of a usual L2 cache

/// Rows [begin, end) of a tensor, in `memory`.
Result<TensorView> read_rows(const StoredTensor& tensor, int64_t begin, int64_t end, std::vector<std::byte>& memory) {
  TensorView view{.type = tensor.type, .shape = tensor.shape, .bytes = {}};
  const auto row_bytes = tensor.bytes / static_cast<uint64_t>(std::max<int64_t>(1, tensor.shape[0]));
  memory.resize(row_bytes * static_cast<size_t>(end - begin));
  SEER_RETURN_IF_ERROR(tensor.read(row_bytes * static_cast<uint64_t>(begin), memory));
  view.shape[0] = end - begin;
  view.bytes = memory;
  return view;
}

// Reads tensors of one checkpoint into packed form, hashes what it reads and refuses what is not a finite number.
class TensorReader {
 public:
  TensorReader(const Checkpoint& checkpoint, TensorType matrix_type, WeightType weights)
      : checkpoint_(checkpoint),
        matrix_type_(matrix_type),
        stored_type_(matrix_type == TensorType::kBf16 ? MatrixType::kBf16 : MatrixType::kF32),
        linear_type_(weights == WeightType::kInt8   ? MatrixType::kInt8
                     : weights == WeightType::kW8a8 ? MatrixType::kW8a8
                                                    : stored_type_) {}

  struct Part {
    std::string name;
    int64_t rows;
  };

  /// The matrices of linear layers, stacked by rows.
  Result<PackedMatrix> linear(std::initializer_list<Part> parts, int32_t columns) {
    return matrix(parts, columns, linear_type_);
  }
  /// The same without quantisation.
  Result<PackedMatrix> stored(std::initializer_list<Part> parts, int32_t columns) {
    return matrix(parts, columns, stored_type_);
  }

  /// The vectors, one after the other, as floats.
  Result<std::vector<float>> vector(std::initializer_list<Part> parts) {
    std::vector<float> values;
    for (const Part& part : parts) {
      SEER_ASSIGN_OR_RETURN(const StoredTensor* tensor, find(part.name, {part.rows}));
      SEER_ASSIGN_OR_RETURN(const TensorView view, read_rows(*tensor, 0, part.rows, slab_));
      SEER_RETURN_IF_ERROR(check_finite(part.name, view, 0));
      bytes_max_ += part.rows * 4;  // as F32
      hash_tensor(part.name, view.type, crc32c(view.bytes));
      for (int64_t i = 0; i < part.rows; ++i) values.push_back(element(view, i));
    }
    return values;
  }

  uint64_t hash() const { return hash_; }
  /// That the same tensors can take in another file, with the same type of matrices.
  int64_t bytes_max() const { return bytes_max_; }
  /// The names of all tensors that were read.
  const std::set<std::string>& used() const { return used_; }

 private:
  Result<PackedMatrix> matrix(std::initializer_list<Part> parts, int32_t columns, MatrixType type) {
    int64_t rows = 0;
    std::vector<const StoredTensor*> tensors;
    for (const Part& part : parts) {
      SEER_ASSIGN_OR_RETURN(const StoredTensor* tensor, find(part.name, {part.rows, columns}));
      if (tensor->type != matrix_type_)
        return fail(Code::kInvalidArgument, tensor_in(checkpoint_, part.name), " should have dtype ",
                    to_string(matrix_type_), " like model.embed_tokens.weight, found ", to_string(tensor->type));
      tensors.push_back(tensor);
      bytes_max_ += static_cast<int64_t>(tensor->bytes);
      rows += part.rows;
    }
    PackedMatrix packed(static_cast<int32_t>(rows), columns, type, &arena_);
    int32_t row = 0;
    auto name = parts.begin();
    for (const StoredTensor* tensor : tensors) {
      SEER_ASSIGN_OR_RETURN(const uint32_t crc, pack(name->name, *tensor, row, packed));
      hash_tensor((name++)->name, tensor->type, crc);
      row += static_cast<int32_t>(tensor->shape[0]);
    }
    return packed;
  }

  Result<const StoredTensor*> find(const std::string& name, std::initializer_list<int64_t> shape) {
    used_.insert(name);
    return checkpoint_.get(name, {shape.begin(), shape.size()});
  }

  void hash_tensor(const std::string& name, TensorType type, uint32_t crc) {
    hash_ = hash_pair(hash_text(name, hash_), hash_pair(static_cast<uint64_t>(type), crc));
  }

  // Packs a tensor into the rows from row_begin on, and returns its checksum. Works in slabs that fit a core's cache.
  Result<uint32_t> pack(const std::string& name, const StoredTensor& tensor, int32_t row_begin, PackedMatrix& packed) {
    const int64_t rows = tensor.shape[0];
    const auto row_bytes = static_cast<int64_t>(tensor.bytes) / std::max<int64_t>(1, rows);
    const int64_t slab = std::max<int64_t>(1, kSlabBytes / std::max<int64_t>(1, row_bytes) / kPanelRows) * kPanelRows;
    uint32_t crc = 0;
    for (int64_t row = 0; row < rows; row += slab) {
      SEER_ASSIGN_OR_RETURN(const TensorView part, read_rows(tensor, row, std::min(rows, row + slab), slab_));
      SEER_RETURN_IF_ERROR(check_finite(name, part, row));
      crc = crc32c(part.bytes, crc);
      packed.fill(row_begin + static_cast<int32_t>(row), part);
    }
    return crc;
  }

  // `part` are the rows (elements, of a vector) of the tensor from row_begin on.
  Status check_finite(const std::string& name, const TensorView& part, int64_t row_begin) const {
    const int64_t i = first_not_finite(part.bytes, part.type);
    if (i < 0) return {};
    const int64_t columns = part.shape.size() == 2 ? part.shape[1] : 1;
    const std::string column = part.shape.size() == 2 ? cat(", ", i % columns) : "";
    return fail(Code::kInvalidArgument, tensor_in(checkpoint_, name), " holds ", element(part, i), " at [",
                row_begin + i / columns, column, "]: every weight must be a finite number");
  }

  static float element(const TensorView& view, int64_t i) {
    if (view.type == TensorType::kF32) {
      float value;
      std::memcpy(&value, view.bytes.data() + i * 4, 4);
      return value;
    }
    uint16_t bits;
    std::memcpy(&bits, view.bytes.data() + i * 2, 2);
    return view.type == TensorType::kBf16 ? bf16_to_float(bits) : half_to_float(bits);
  }

  const Checkpoint& checkpoint_;
  const TensorType matrix_type_;  // of all matrices in the file
  const MatrixType stored_type_, linear_type_;
  PageArena arena_;
  std::vector<std::byte> slab_;
  uint64_t hash_ = 0;
  int64_t bytes_max_ = 0;
  std::set<std::string> used_;
};

Result<LayerWeights> read_layer(TensorReader& reader, const ModelConfig& c, int32_t index) {
  const std::string layer = cat("model.layers.", index, "."), attention = layer + "self_attn.", mlp = layer + "mlp.";
  const int64_t hidden = c.hidden_size, q = c.query_size(), kv = c.kv_size(), inner = c.intermediate_size;
  LayerWeights w;
  SEER_ASSIGN_OR_RETURN(w.input_norm, reader.vector({{layer + "input_layernorm.weight", hidden}}));
  SEER_ASSIGN_OR_RETURN(w.post_norm, reader.vector({{layer + "post_attention_layernorm.weight", hidden}}));
  SEER_ASSIGN_OR_RETURN(w.qkv, reader.linear({{attention + "q_proj.weight", q},
                                              {attention + "k_proj.weight", kv},
                                              {attention + "v_proj.weight", kv}},
                                             c.hidden_size));
  SEER_ASSIGN_OR_RETURN(w.output, reader.linear({{attention + "o_proj.weight", hidden}}, c.query_size()));
  SEER_ASSIGN_OR_RETURN(
      w.gate_up, reader.linear({{mlp + "gate_proj.weight", inner}, {mlp + "up_proj.weight", inner}}, c.hidden_size));
  SEER_ASSIGN_OR_RETURN(w.down, reader.linear({{mlp + "down_proj.weight", hidden}}, c.intermediate_size));
  if (c.qk_norm) {
    SEER_ASSIGN_OR_RETURN(w.q_norm, reader.vector({{attention + "q_norm.weight", c.head_dim}}));
    SEER_ASSIGN_OR_RETURN(w.k_norm, reader.vector({{attention + "k_norm.weight", c.head_dim}}));
  }
  if (c.qkv_bias) {
    SEER_ASSIGN_OR_RETURN(w.qkv_bias, reader.vector({{attention + "q_proj.bias", q},
                                                     {attention + "k_proj.bias", kv},
                                                     {attention + "v_proj.bias", kv}}));
  }
  if (c.output_bias) {
    SEER_ASSIGN_OR_RETURN(w.output_bias, reader.vector({{attention + "o_proj.bias", hidden}}));
  }
  if (c.mlp_bias) {
    SEER_ASSIGN_OR_RETURN(w.gate_up_bias,
                          reader.vector({{mlp + "gate_proj.bias", inner}, {mlp + "up_proj.bias", inner}}));
    SEER_ASSIGN_OR_RETURN(w.down_bias, reader.vector({{mlp + "down_proj.bias", hidden}}));
  }
  return w;
}

Result<bool> same_bytes(const StoredTensor& a, const StoredTensor& b) {
  bool same = a.type == b.type && a.shape == b.shape;
  std::vector<std::byte> of_a, of_b;
  for (uint64_t begin = 0; same && begin < a.bytes; begin += kSlabBytes) {
    of_a.resize(std::min<uint64_t>(kSlabBytes, a.bytes - begin));
    of_b.resize(of_a.size());
    SEER_RETURN_IF_ERROR(a.read(begin, of_a));
    SEER_RETURN_IF_ERROR(b.read(begin, of_b));
    same = of_a == of_b;
  }
  return same;
}

// The N of "model.layers.N.", if the name has one.
std::optional<int64_t> layer_of(const std::string& name) {
  const std::string prefix = "model.layers.";
  if (!name.starts_with(prefix)) return std::nullopt;
  int64_t layer = 0;
  size_t i = prefix.size();
  for (; i < name.size() && name[i] >= '0' && name[i] <= '9' && layer < 1'000'000; ++i)
    layer = layer * 10 + (name[i] - '0');
  if (i == prefix.size() || i == name.size() || name[i] != '.') return std::nullopt;
  return layer;
}

// Why the model does not use a tensor, as far as its name tells.
std::string unused_because(const std::string& name, const ModelConfig& c) {
  if (name.find("lora_") != std::string::npos)
    return "belongs to a LoRA adapter: merge the adapter into the weights first";
  if (const auto layer = layer_of(name); layer && *layer >= c.layers)
    return cat("belongs to a layer that config.json does not have: num_hidden_layers is ", c.layers);
  if (name.ends_with("_proj.bias") && name.find(".mlp.") != std::string::npos && c.family == ModelFamily::kLlama)
    return "is a bias, but config.json does not say that mlp_bias is true";
  if (name.ends_with("_proj.bias") && name.find(".self_attn.") != std::string::npos && c.family != ModelFamily::kQwen2)
    return "is a bias, but config.json does not say that attention_bias is true";
  if (name == "lm_head.weight")
    return "differs from model.embed_tokens.weight, but config.json says that tie_word_embeddings is true";
  return cat("is no part of a ", to_string(c.family),
             " model as config.json describes it: leaving it out would change "
             "what the model computes");
}

// An unused tensor means that the file holds another model than config.json describes.
Status check_all_used(const Checkpoint& checkpoint, const std::set<std::string>& used, const ModelConfig& c) {
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    // Old Llama files carry the frequencies of their rotary embedding. Hugging Face ignores them too: they follow from
    // config.json.
    bool harmless = used.contains(name) || name.ends_with("rotary_emb.inv_freq");
    if (!harmless && name == "lm_head.weight" && c.tied_head) {
      SEER_ASSIGN_OR_RETURN(harmless, same_bytes(*tensor, *checkpoint.find(kEmbeddingName)));
    }
    if (!harmless) return fail(Code::kInvalidArgument, tensor_in(checkpoint, name), " ", unused_because(name, c));
  }
  return {};
}

}  // namespace

int64_t Model::weight_bytes() const {
  int64_t bytes = head.bytes() + embedding.bytes();
  for (const LayerWeights& w : layers) bytes += w.qkv.bytes() + w.output.bytes() + w.gate_up.bytes() + w.down.bytes();
  return bytes;
}

namespace {

/// Reads all tensors of the checkpoint into `model`, whose folder, config, weight_type and matrix_type are set.
Status read_tensors(const Checkpoint& checkpoint, Model& model) {
  const ModelConfig& c = model.config;
  TensorReader reader(checkpoint, model.matrix_type, model.weight_type);
  if (c.tied_head) {
    SEER_ASSIGN_OR_RETURN(model.head, reader.linear({{kEmbeddingName, c.vocab_size}}, c.hidden_size));
  } else {
    SEER_ASSIGN_OR_RETURN(model.embedding, reader.stored({{kEmbeddingName, c.vocab_size}}, c.hidden_size));
    SEER_ASSIGN_OR_RETURN(model.head, reader.linear({{"lm_head.weight", c.vocab_size}}, c.hidden_size));
  }
  SEER_ASSIGN_OR_RETURN(model.final_norm, reader.vector({{"model.norm.weight", c.hidden_size}}));
  for (int32_t i = 0; i < c.layers; ++i) {
    SEER_ASSIGN_OR_RETURN(LayerWeights layer, read_layer(reader, c, i));
    model.layers.push_back(std::move(layer));
  }
  SEER_RETURN_IF_ERROR(check_all_used(checkpoint, reader.used(), c));
  // A file may repeat the embedding as the head that is tied to it.
  const int64_t repeated_bytes = c.tied_head ? static_cast<int64_t>(checkpoint.find(kEmbeddingName)->bytes) : 0;
  model.stored_bytes_max = reader.bytes_max() + repeated_bytes;
  model.stored_tensors = std::ssize(reader.used()) + (c.tied_head ? 1 : 0);
  model.weights_hash = hash_pair(shape_hash(c), reader.hash());
  if (model.weight_type != WeightType::kAsStored)
    model.weights_hash = hash_pair(model.weights_hash, static_cast<uint64_t>(model.weight_type));
  return {};
}

Result<TensorType> find_matrix_type(const Checkpoint& checkpoint, const ModelConfig& c) {
  const int64_t shape[] = {c.vocab_size, c.hidden_size};
  SEER_ASSIGN_OR_RETURN(const StoredTensor* embedding, checkpoint.get(kEmbeddingName, shape));
  return embedding->type;
}

/// The first differing field of config.json that changes what the model computes, as "field (found, expected)"; empty: none. Fields
/// that give shapes are left out: the tensors themselves were compared.
std::string config_difference(const ModelConfig& found, const ModelConfig& expected) {
  const auto differs = [](const char* field, const auto& is, const auto& should_be) {
    return is == should_be ? "" : cat(field, " (", is, ", expected ", should_be, ")");
  };
  for (const std::string& difference :
       {differs("model_type", to_string(found.family), to_string(expected.family)),
        differs("num_attention_heads", found.heads, expected.heads),
        differs("num_key_value_heads", found.kv_heads, expected.kv_heads),
        differs("rms_norm_eps", found.rms_norm_eps, expected.rms_norm_eps),
        differs("tie_word_embeddings", found.tied_head, expected.tied_head),
        differs("rope_theta", found.rope.theta, expected.rope.theta)})
    if (!difference.empty()) return difference;
  return found.rope == expected.rope ? "" : "the scaling of rotary embeddings";
}

Status check_same_model(const std::filesystem::path& folder, const Model& like) {
  if (std::error_code ignored; !std::filesystem::exists(folder / "config.json", ignored)) return {};
  SEER_ASSIGN_OR_RETURN(const ModelConfig found, read_model_config(folder));
  const std::string difference = config_difference(found, like.config);
  if (difference.empty()) return {};
  return fail(Code::kInvalidArgument, (folder / "config.json").string(), " differs from that of the running model, ",
              like.folder, ", in ", difference);
}

}  // namespace

Result<std::shared_ptr<const Model>> load_model(const std::filesystem::path& folder, WeightType weights) {
  auto model = std::make_shared<Model>();
  model->folder = folder.string();
  model->weight_type = weights;
  SEER_RETURN_IF_ERROR(check_model_folder(folder));
  SEER_ASSIGN_OR_RETURN(model->config, read_model_config(folder));
  SEER_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(folder));
  SEER_ASSIGN_OR_RETURN(model->matrix_type, find_matrix_type(checkpoint, model->config));
  SEER_RETURN_IF_ERROR(read_tensors(checkpoint, *model));
  return std::shared_ptr<const Model>(std::move(model));
}

Result<std::shared_ptr<const Model>> load_weights(const Checkpoint& checkpoint, const Model& like) {
  auto model = std::make_shared<Model>();
  model->folder = like.folder;  // the model's name
  model->config = like.config;
  model->weight_type = like.weight_type;
  model->matrix_type = like.matrix_type;
  SEER_ASSIGN_OR_RETURN(const TensorType found, find_matrix_type(checkpoint, model->config));
  if (found != like.matrix_type)
    return fail(Code::kInvalidArgument, tensor_in(checkpoint, kEmbeddingName), " should have dtype ",
                to_string(like.matrix_type), " like the running weights, found ", to_string(found));
  SEER_RETURN_IF_ERROR(read_tensors(checkpoint, *model));
  return std::shared_ptr<const Model>(std::move(model));
}

Result<std::shared_ptr<const Model>> load_weights(const std::filesystem::path& path, const Model& like) {
  SEER_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(path));
  SEER_ASSIGN_OR_RETURN(auto model, load_weights(checkpoint, like));
  SEER_RETURN_IF_ERROR(check_same_model(path, like));
  return model;
}

}  // namespace seer
