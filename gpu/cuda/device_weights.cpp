#include "gpu/cuda/device_weights.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "gpu/cpu/float_bits.h"

namespace seer::cuda {
namespace {

constexpr int64_t kStagingBytes = 4 << 20;

/// A part of a matrix, or of a bias: ranges of its rows, one after the other, and one of its columns.
struct Slice {
  struct Range {
    int32_t first = 0, count = 0;
  };
  std::vector<Range> rows;
  Range columns;
  int32_t row_count() const {
    return std::accumulate(rows.begin(), rows.end(), 0, [](int32_t sum, const Range& r) { return sum + r.count; });
  }
};
/// What a rank has of a layer: of the rows of qkv and gate_up, and of the columns of output and down.
struct LayerSlices {
  LayerSlices(const ModelConfig& c, Share share) {
    const Slice::Range hidden{0, c.hidden_size};
    const auto part = [share](int32_t first, int32_t size) { return Slice::Range{first + share.begin(size), share.size(size)}; };
    const int32_t q = c.query_size(), kv = c.kv_size(), inner = c.intermediate_size;
    qkv = {{part(0, q), part(q, kv), part(q + kv, kv)}, hidden};
    output = {{hidden}, part(0, q)};
    gate_up = {{part(0, inner), part(inner, inner)}, hidden};
    down = {{hidden}, part(0, inner)};
  }
  Slice qkv, output, gate_up, down;
};
Slice whole(int32_t rows, int32_t columns) { return {{{0, rows}}, {0, columns}}; }
Slice head_slice(const ModelConfig& c, Share share) {
  const int32_t rows = share.head_rows(c.vocab_size), first = std::min(share.rank * rows, c.vocab_size);
  return {{{first, std::min(rows, c.vocab_size - first)}}, {0, c.hidden_size}};
}

}  // namespace

DeviceWeights::DeviceWeights(const Model& model, bool f32, Share share, DeviceMemory& memory)
    : f32_(f32), share_(share), head_dim_(model.config.head_dim), layers_(model.layers.size()) {
  using enum DeviceMemory::Use;
  const ModelConfig& c = model.config;
  const int64_t element_bytes = f32 ? 4 : 2;
  const auto want_matrix = [&](DeviceMatrix& to, int32_t rows, int32_t columns) {
    to.rows = rows;
    to.columns = columns;
    memory.want(kWeights, to.data, int64_t{to.rows_padded()} * to.columns_padded() * element_bytes);
  };
  const auto want_vector = [&](float*& to, const std::vector<float>& from, int64_t count) {
    if (!from.empty()) memory.want(kWeights, to, count);
  };
  const LayerSlices slices(c, share);
  for (size_t i = 0; i < layers_.size(); ++i) {
    DeviceLayer& to = layers_[i];
    const LayerWeights& from = model.layers[i];
    want_matrix(to.qkv, slices.qkv.row_count(), c.hidden_size);
    want_matrix(to.output, c.hidden_size, slices.output.columns.count);
    want_matrix(to.gate_up, slices.gate_up.row_count(), c.hidden_size);
    want_matrix(to.down, c.hidden_size, slices.down.columns.count);
    want_vector(to.input_norm, from.input_norm, c.hidden_size);
    want_vector(to.post_norm, from.post_norm, c.hidden_size);
    want_vector(to.q_norm, from.q_norm, c.head_dim);
    want_vector(to.k_norm, from.k_norm, c.head_dim);
    want_vector(to.qkv_bias, from.qkv_bias, to.qkv.rows);
    want_vector(to.output_bias, from.output_bias, c.hidden_size);
    want_vector(to.gate_up_bias, from.gate_up_bias, to.gate_up.rows);
    want_vector(to.down_bias, from.down_bias, c.hidden_size);
  }
  memory.want(kWeights, not_finite_, 1);
  want_vector(final_norm_, model.final_norm, c.hidden_size);
  want_matrix(head_, share.head_rows(c.vocab_size), c.hidden_size);
  if (c.tied_head && !f32 && share.ranks == 1) return;
  embedding_.rows = c.vocab_size;
  embedding_.columns = c.hidden_size;
  memory.want(kWeights, embedding_.data, int64_t{embedding_.rows} * embedding_.columns * element_bytes);
}

// Fills a pinned buffer and copies it when it is full.
class DeviceWeights::Uploader {
 public:
  Uploader(Device& device, Stream stream, std::byte* staging, const std::function<Status(EventId)>& wait)
      : device_(device), stream_(stream), staging_(staging), wait_(wait) {}

  void put(std::byte* to, const void* from, int64_t bytes) {
    if (used_ + bytes > kStagingBytes) (void)flush();  // an error stays, and the last flush() returns it
    std::memcpy(staging_ + used_, from, static_cast<size_t>(bytes));
    device_.copy_in(stream_, to, staging_ + used_, bytes);
    used_ += (bytes + 15) / 16 * 16;
  }
  Status flush() {
    used_ = 0;
    return wait_(device_.record(stream_));
  }

  void put_vector(float* to, const std::vector<float>& from) {
    if (!from.empty()) put(reinterpret_cast<std::byte*>(to), from.data(), std::ssize(from) * 4);
  }
  void put_vector(float* to, const std::vector<float>& from, const Slice& slice) {
    if (from.empty()) return;
    for (const auto& [first, count] : slice.rows) {
      put(reinterpret_cast<std::byte*>(to), from.data() + first, int64_t{count} * 4);
      to += count;
    }
  }
  /// [rows][stride], in bf16 or f32.
  void put_rows(std::byte* to, const PackedMatrix& from, const Slice& slice, int64_t stride, bool f32) {
    std::vector<float> row(static_cast<size_t>(from.columns()));
    std::vector<uint16_t> row_bf16(row.size());
    const int64_t element_bytes = f32 ? 4 : 2;
    for (const auto& [first, count] : slice.rows) {
      for (int32_t r = first; r < first + count; ++r) {
        from.read_row(r, row.data());
        std::ranges::transform(row, row_bf16.begin(), float_to_bf16);  // exact: bf16 mode has bf16 weights
        const void* values = f32 ? static_cast<const void*>(&row[static_cast<size_t>(slice.columns.first)])
                                 : &row_bf16[static_cast<size_t>(slice.columns.first)];
        put(to, values, slice.columns.count * element_bytes);
        to += stride * element_bytes;
      }
    }
  }
  /// [columns][rows_padded] in f32, as many columns at a time as the buffer holds.
  void put_transposed(const DeviceMatrix& to, const PackedMatrix& from, const Slice& slice) {
    const int64_t row_bytes = int64_t{to.rows_padded()} * 4;
    const auto at_once = static_cast<int32_t>(std::clamp<int64_t>(kStagingBytes / row_bytes, 1, slice.columns.count));
    std::vector<float> row(static_cast<size_t>(from.columns())), block(static_cast<size_t>(to.rows_padded()) * at_once);
    for (int32_t first = 0; first < slice.columns.count; first += at_once) {
      const int32_t columns = std::min(at_once, slice.columns.count - first);
      size_t at = 0;
      for (const auto& [first_row, count] : slice.rows) {
        for (int32_t r = first_row; r < first_row + count; ++r, ++at) {
          from.read_row(r, row.data());
          for (int32_t c = 0; c < columns; ++c)
            block[static_cast<size_t>(c) * to.rows_padded() + at] = row[static_cast<size_t>(slice.columns.first + first + c)];
        }
      }
      put(to.data + first * row_bytes, block.data(), columns * row_bytes);
    }
  }

 private:
  Device& device_;
  const Stream stream_;
  std::byte* const staging_;
  const std::function<Status(EventId)>& wait_;
  int64_t used_ = 0;
};

Status DeviceWeights::upload(Device& device, Stream stream, const Model& model, const std::function<Status(EventId)>& wait) {
  if (!staging_) {
    SEER_ASSIGN_OR_RETURN(staging_, device.allocate_pinned(kStagingBytes));
  }
  Uploader uploader(device, stream, staging_, wait);
  const auto put_matrix = [&](const DeviceMatrix& to, const PackedMatrix& from, const Slice& slice) {
    if (f32_)
      uploader.put_transposed(to, from, slice);
    else
      uploader.put_rows(to.data, from, slice, to.columns_padded(), false);
  };
  const ModelConfig& c = model.config;
  const LayerSlices slices(c, share_);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const DeviceLayer& to = layers_[i];
    const LayerWeights& from = model.layers[i];
    put_matrix(to.qkv, from.qkv, slices.qkv);
    put_matrix(to.output, from.output, slices.output);
    put_matrix(to.gate_up, from.gate_up, slices.gate_up);
    put_matrix(to.down, from.down, slices.down);
    uploader.put_vector(to.input_norm, from.input_norm);
    uploader.put_vector(to.post_norm, from.post_norm);
    uploader.put_vector(to.q_norm, from.q_norm);
    uploader.put_vector(to.k_norm, from.k_norm);
    uploader.put_vector(to.qkv_bias, from.qkv_bias, slices.qkv);
    uploader.put_vector(to.output_bias, from.output_bias);
    uploader.put_vector(to.gate_up_bias, from.gate_up_bias, slices.gate_up);
    uploader.put_vector(to.down_bias, from.down_bias);
  }
  uploader.put_vector(final_norm_, model.final_norm);
  put_matrix(head_, model.head, head_slice(c, share_));
  if (embedding_.data)
    uploader.put_rows(embedding_.data, model.embedding_matrix(), whole(c.vocab_size, c.hidden_size), embedding_.columns, f32_);
  SEER_RETURN_IF_ERROR(uploader.flush());
  check_finite(device, stream);
  device.copy_out(stream, staging_, not_finite_, sizeof *not_finite_);
  SEER_RETURN_IF_ERROR(wait(device.record(stream)));
  uint32_t found = 0;
  std::memcpy(&found, staging_, sizeof found);
  if (found != 0) return fail(Code::kCorrupt, "cuda engine: of the weights of ", model.folder, ", what arrived on the device is not finite");
  return {};
}

/// Files are checked when they are read; this checks the way to the device.
void DeviceWeights::check_finite(Device& device, Stream stream) const {
  device.clear(stream, not_finite_, sizeof *not_finite_);
  const auto check = [&](const void* data, int64_t count, bool f32) {
    if (data == nullptr) return;
    const auto blocks = static_cast<int32_t>(std::clamp<int64_t>(count / 8192, 1, 1024));
    device.launch(stream, KernelId::k_check_finite, {blocks}, CheckArgs{.data = data, .found = not_finite_, .count = count, .f32 = f32});
  };
  const auto check_matrix = [&](const DeviceMatrix& m) { check(m.data, int64_t{m.rows_padded()} * m.columns_padded(), f32_); };
  for (const DeviceLayer& layer : layers_) {
    for (const DeviceMatrix* m : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) check_matrix(*m);
    const int64_t hidden = layer.output.rows;
    check(layer.input_norm, hidden, true);
    check(layer.post_norm, hidden, true);
    check(layer.qkv_bias, layer.qkv.rows, true);
    check(layer.output_bias, hidden, true);
    check(layer.gate_up_bias, layer.gate_up.rows, true);
    check(layer.down_bias, hidden, true);
    check(layer.q_norm, head_dim_, true);
    check(layer.k_norm, head_dim_, true);
  }
  check(final_norm_, layers_[0].output.rows, true);
  check_matrix(head_);
  if (embedding_.data) check(embedding_.data, int64_t{embedding_.rows} * embedding_.columns, f32_);
}

}  // namespace seer::cuda
