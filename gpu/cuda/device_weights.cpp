#include "gpu/cuda/device_weights.h"

#include <algorithm>
#include <cstring>

#include "gpu/cpu/float_bits.h"

namespace seer::cuda {
namespace {

constexpr int64_t kStagingBytes = 4 << 20;

}  // namespace

DeviceWeights::DeviceWeights(const Model& model, bool f32, DeviceMemory& memory) : f32_(f32), layers_(model.layers.size()) {
  using enum DeviceMemory::Use;
  const int64_t element_bytes = f32 ? 4 : 2;
  const auto want_matrix = [&](DeviceMatrix& to, const PackedMatrix& from) {
    to.rows = from.rows();
    to.columns = from.columns();
    memory.want(kWeights, to.data, int64_t{to.rows_padded()} * to.columns_padded() * element_bytes);
  };
  const auto want_vector = [&](float*& to, const std::vector<float>& from) {
    if (!from.empty()) memory.want(kWeights, to, std::ssize(from));
  };
  for (size_t i = 0; i < layers_.size(); ++i) {
    DeviceLayer& to = layers_[i];
    const LayerWeights& from = model.layers[i];
    want_matrix(to.qkv, from.qkv);
    want_matrix(to.output, from.output);
    want_matrix(to.gate_up, from.gate_up);
    want_matrix(to.down, from.down);
    want_vector(to.input_norm, from.input_norm);
    want_vector(to.post_norm, from.post_norm);
    want_vector(to.q_norm, from.q_norm);
    want_vector(to.k_norm, from.k_norm);
    want_vector(to.qkv_bias, from.qkv_bias);
    want_vector(to.output_bias, from.output_bias);
    want_vector(to.gate_up_bias, from.gate_up_bias);
    want_vector(to.down_bias, from.down_bias);
  }
  want_vector(final_norm_, model.final_norm);
  want_matrix(head_, model.head);
  if (model.config.tied_head && !f32) return;
  embedding_.rows = model.config.vocab_size;
  embedding_.columns = model.config.hidden_size;
  memory.want(kWeights, embedding_.data, int64_t{embedding_.rows} * embedding_.columns * element_bytes);
}

// Fills a pinned buffer and copies it when it is full.
class DeviceWeights::Uploader {
 public:
  Uploader(Device& device, std::byte* staging) : device_(device), staging_(staging) {}

  void put(std::byte* to, const void* from, int64_t bytes) {
    if (used_ + bytes > kStagingBytes) (void)flush();  // an error stays, and the last flush() returns it
    std::memcpy(staging_ + used_, from, static_cast<size_t>(bytes));
    device_.copy_in(Stream::kSteps, to, staging_ + used_, bytes);
    used_ += (bytes + 15) / 16 * 16;
  }
  Status flush() {
    used_ = 0;
    return device_.wait(device_.record(Stream::kSteps));
  }

  void put_vector(float* to, const std::vector<float>& from) {
    if (!from.empty()) put(reinterpret_cast<std::byte*>(to), from.data(), std::ssize(from) * 4);
  }
  /// [rows][stride], in bf16 or f32.
  void put_rows(std::byte* to, const PackedMatrix& from, int64_t stride, bool f32) {
    std::vector<float> row(static_cast<size_t>(from.columns()));
    std::vector<uint16_t> row_bf16(row.size());
    for (int32_t r = 0; r < from.rows(); ++r) {
      from.read_row(r, row.data());
      std::ranges::transform(row, row_bf16.begin(), float_to_bf16);  // exact: bf16 mode has bf16 weights
      const void* values = f32 ? static_cast<const void*>(row.data()) : row_bf16.data();
      const int64_t element_bytes = f32 ? 4 : 2;
      put(to + r * stride * element_bytes, values, from.columns() * element_bytes);
    }
  }
  /// [columns][rows_padded] in f32, as many columns at a time as the buffer holds.
  void put_transposed(const DeviceMatrix& to, const PackedMatrix& from) {
    const int64_t row_bytes = int64_t{to.rows_padded()} * 4;
    const auto at_once = static_cast<int32_t>(std::clamp<int64_t>(kStagingBytes / row_bytes, 1, from.columns()));
    std::vector<float> row(static_cast<size_t>(from.columns())), block(static_cast<size_t>(to.rows_padded()) * at_once);
    for (int32_t first = 0; first < from.columns(); first += at_once) {
      const int32_t columns = std::min(at_once, from.columns() - first);
      for (int32_t r = 0; r < from.rows(); ++r) {
        from.read_row(r, row.data());
        for (int32_t c = 0; c < columns; ++c)
          block[static_cast<size_t>(c) * to.rows_padded() + r] = row[static_cast<size_t>(first + c)];
      }
      put(to.data + first * row_bytes, block.data(), columns * row_bytes);
    }
  }

 private:
  Device& device_;
  std::byte* const staging_;
  int64_t used_ = 0;
};

Status DeviceWeights::upload(Device& device, const Model& model) {
  if (!staging_) {
    SEER_ASSIGN_OR_RETURN(staging_, device.allocate_pinned(kStagingBytes));
  }
  Uploader uploader(device, staging_);
  const auto put_matrix = [&](const DeviceMatrix& to, const PackedMatrix& from) {
    if (f32_)
      uploader.put_transposed(to, from);
    else
      uploader.put_rows(to.data, from, to.columns_padded(), false);
  };
  for (size_t i = 0; i < layers_.size(); ++i) {
    const DeviceLayer& to = layers_[i];
    const LayerWeights& from = model.layers[i];
    put_matrix(to.qkv, from.qkv);
    put_matrix(to.output, from.output);
    put_matrix(to.gate_up, from.gate_up);
    put_matrix(to.down, from.down);
    uploader.put_vector(to.input_norm, from.input_norm);
    uploader.put_vector(to.post_norm, from.post_norm);
    uploader.put_vector(to.q_norm, from.q_norm);
    uploader.put_vector(to.k_norm, from.k_norm);
    uploader.put_vector(to.qkv_bias, from.qkv_bias);
    uploader.put_vector(to.output_bias, from.output_bias);
    uploader.put_vector(to.gate_up_bias, from.gate_up_bias);
    uploader.put_vector(to.down_bias, from.down_bias);
  }
  uploader.put_vector(final_norm_, model.final_norm);
  put_matrix(head_, model.head);
  if (embedding_.data) uploader.put_rows(embedding_.data, model.embedding_matrix(), embedding_.columns, f32_);
  return uploader.flush();
}

}  // namespace seer::cuda
