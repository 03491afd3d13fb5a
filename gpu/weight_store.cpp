#include "gpu/weight_store.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "gpu/float_bits.h"
#include "protocols/hash.h"
#include "protocols/kv.h"

namespace seer {
namespace {

constexpr int64_t kSlabBytes = 1 << 20;  // of a file, packed at a time: half of a usual L2

// Reads tensors of one checkpoint into packed form, and hashes what it reads.
class TensorReader {
 public:
  TensorReader(const Checkpoint& checkpoint, TensorType matrix_type, WeightType weights)
      : checkpoint_(checkpoint),
        matrix_type_(matrix_type),
        stored_type_(matrix_type == TensorType::kBf16 ? MatrixType::kBf16 : MatrixType::kF32),
        linear_type_(weights == WeightType::kInt8 ? MatrixType::kInt8 : stored_type_) {}

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
      SEER_ASSIGN_OR_RETURN(const TensorView* view, find(part.name, {part.rows}));
      hash_tensor(part.name, view->type, crc32c(view->bytes));
      for (int64_t i = 0; i < part.rows; ++i) values.push_back(element(*view, i));
    }
    return values;
  }

  uint64_t hash() const { return hash_; }

 private:
  Result<PackedMatrix> matrix(std::initializer_list<Part> parts, int32_t columns, MatrixType type) {
    int64_t rows = 0;
    std::vector<const TensorView*> views;
    for (const Part& part : parts) {
      SEER_ASSIGN_OR_RETURN(const TensorView* view, find(part.name, {part.rows, columns}));
      if (view->type != matrix_type_)
        return fail(Code::kInvalidArgument, checkpoint_.folder(), ": tensor ", part.name, " should have dtype ",
                    to_string(matrix_type_), " like model.embed_tokens.weight, found ", to_string(view->type));
      views.push_back(view);
      rows += part.rows;
    }
    PackedMatrix packed(static_cast<int32_t>(rows), columns, type);
    int32_t row = 0;
    auto name = parts.begin();
    for (const TensorView* view : views) {
      hash_tensor((name++)->name, view->type, pack(*view, row, packed));
      row += static_cast<int32_t>(view->shape[0]);
    }
    return packed;
  }

  Result<const TensorView*> find(const std::string& name, std::initializer_list<int64_t> shape) {
    return checkpoint_.get(name, {shape.begin(), shape.size()});
  }

  void hash_tensor(const std::string& name, TensorType type, uint32_t crc) {
    hash_ = hash_pair(hash_text(name, hash_), hash_pair(static_cast<uint64_t>(type), crc));
  }

  // Packs a tensor into the rows from row_begin on, and returns its checksum. In slabs that a core's cache holds: each
  // is read from memory once, and leaves it when it is packed, so that the model is never in memory twice.
  static uint32_t pack(const TensorView& view, int32_t row_begin, PackedMatrix& packed) {
    const int64_t rows = view.shape[0];
    const auto row_bytes = static_cast<int64_t>(view.bytes.size()) / std::max<int64_t>(1, rows);
    const int64_t slab = std::max<int64_t>(1, kSlabBytes / std::max<int64_t>(1, row_bytes) / kPanelRows) * kPanelRows;
    uint32_t crc = 0;
    for (int64_t row = 0; row < rows; row += slab) {
      const TensorView part = view.rows(row, std::min(rows, row + slab));
      crc = crc32c(part.bytes, crc);
      packed.fill(row_begin + static_cast<int32_t>(row), part);
      drop_pages(part.bytes);
    }
    return crc;
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
  uint64_t hash_ = 0;
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

uint64_t config_hash(const ModelConfig& c) {
  uint64_t h = 0;
  for (int64_t value : {static_cast<int64_t>(c.family), int64_t{c.hidden_size}, int64_t{c.intermediate_size},
                        int64_t{c.layers}, int64_t{c.heads}, int64_t{c.kv_heads}, int64_t{c.head_dim},
                        int64_t{c.vocab_size}, int64_t{std::bit_cast<int32_t>(c.rms_norm_eps)}, int64_t{c.tied_head}})
    h = hash_pair(h, static_cast<uint64_t>(value));
  for (double f : rope_frequencies(c)) h = hash_pair(h, std::bit_cast<uint64_t>(f));
  return hash_pair(h, std::bit_cast<uint64_t>(c.rope.attention_factor));
}

}  // namespace

int64_t Model::weight_bytes() const {
  int64_t bytes = head.bytes() + embedding.bytes();
  for (const LayerWeights& w : layers) bytes += w.qkv.bytes() + w.output.bytes() + w.gate_up.bytes() + w.down.bytes();
  return bytes;
}

Result<std::shared_ptr<const Model>> load_model(const std::filesystem::path& folder, WeightType weights) {
  auto model = std::make_shared<Model>();
  model->folder = folder.string();
  SEER_ASSIGN_OR_RETURN(model->config, read_model_config(folder));
  const ModelConfig& c = model->config;
  SEER_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(folder));
  const std::string embedding_name = "model.embed_tokens.weight";
  const int64_t embedding_shape[] = {c.vocab_size, c.hidden_size};
  SEER_ASSIGN_OR_RETURN(const TensorView* embedding, checkpoint.get(embedding_name, embedding_shape));

  TensorReader reader(checkpoint, embedding->type, weights);
  if (c.tied_head) {
    SEER_ASSIGN_OR_RETURN(model->head, reader.linear({{embedding_name, c.vocab_size}}, c.hidden_size));
  } else {
    SEER_ASSIGN_OR_RETURN(model->embedding, reader.stored({{embedding_name, c.vocab_size}}, c.hidden_size));
    SEER_ASSIGN_OR_RETURN(model->head, reader.linear({{"lm_head.weight", c.vocab_size}}, c.hidden_size));
  }
  SEER_ASSIGN_OR_RETURN(model->final_norm, reader.vector({{"model.norm.weight", c.hidden_size}}));
  for (int32_t i = 0; i < c.layers; ++i) {
    SEER_ASSIGN_OR_RETURN(LayerWeights layer, read_layer(reader, c, i));
    model->layers.push_back(std::move(layer));
  }
  model->weights_hash = hash_pair(config_hash(c), reader.hash());
  if (weights != WeightType::kAsStored)
    model->weights_hash = hash_pair(model->weights_hash, static_cast<uint64_t>(weights));
  return std::shared_ptr<const Model>(std::move(model));
}

}  // namespace seer
