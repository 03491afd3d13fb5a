#include "gpu/cuda/device_weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <thread>

#include "gpu/cpu/float_bits.h"

namespace seer::cuda {
namespace {

constexpr int64_t kStagingBytes = 32 << 20;

/// A part of a matrix, or of a bias: ranges of its rows, one after the other, and one of its columns. With `by_eights` two equal ranges
/// alternate, eight rows of each at a time, as store_rows() in kernels/gemm.cuh wants gate and up.
struct Slice {
  struct Range {
    int32_t first = 0, count = 0;
  };
  std::vector<Range> rows;
  Range columns;
  bool by_eights = false;
  int32_t row_count() const {
    if (by_eights) return 2 * padded(rows[0].count, 8);
    return std::accumulate(rows.begin(), rows.end(), 0, [](int32_t sum, const Range& r) { return sum + r.count; });
  }
  /// The row of the matrix that is the i-th of the slice; -1: zeros.
  int32_t row(int32_t i) const {
    if (by_eights) {
      const int32_t at = i / 16 * 8 + i % 8;
      return at < rows[0].count ? rows[static_cast<size_t>(i / 8 % 2)].first + at : -1;
    }
    size_t range = 0;
    for (; i >= rows[range].count; ++range) i -= rows[range].count;
    return rows[range].first + i;
  }
};
/// What a rank has of a layer: of the rows of qkv and gate_up, and of the columns of output and down.
struct LayerSlices {
  LayerSlices(const ModelConfig& c, Share share, bool f32) {
    const Slice::Range hidden{0, c.hidden_size};
    const auto part = [share](int32_t first, int32_t size) { return Slice::Range{first + share.begin(size), share.size(size)}; };
    const int32_t q = c.query_size(), kv = c.kv_size(), inner = c.intermediate_size;
    qkv = {{part(0, q), part(q, kv), part(q + kv, kv)}, hidden};
    output = {{hidden}, part(0, q)};
    gate_up = {{part(0, inner), part(inner, inner)}, hidden, !f32};
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
  const int64_t element_bytes = f32 ? 4 : 2, hidden_padded = padded(c.hidden_size, kGemmSteps);
  const auto want_matrix = [&](DeviceMatrix& to, int32_t rows, int32_t columns) {
    to.rows = rows;
    to.columns = columns;
    memory.want(kWeights, to.data, int64_t{to.rows_padded()} * to.columns_padded() * element_bytes);
  };
  const auto want_vector = [&](float*& to, const std::vector<float>& from, int64_t count) {
    if (!from.empty()) memory.want(kWeights, to, count);
  };
  const LayerSlices slices(c, share, f32);
  for (size_t i = 0; i < layers_.size(); ++i) {
    DeviceLayer& to = layers_[i];
    const LayerWeights& from = model.layers[i];
    want_matrix(to.qkv, slices.qkv.row_count(), c.hidden_size);
    want_matrix(to.output, c.hidden_size, slices.output.columns.count);
    want_matrix(to.gate_up, slices.gate_up.row_count(), c.hidden_size);
    want_matrix(to.down, c.hidden_size, slices.down.columns.count);
    want_vector(to.input_norm, from.input_norm, hidden_padded);
    want_vector(to.post_norm, from.post_norm, hidden_padded);
    want_vector(to.q_norm, from.q_norm, c.head_dim);
    want_vector(to.k_norm, from.k_norm, c.head_dim);
    want_vector(to.qkv_bias, from.qkv_bias, to.qkv.rows);
    want_vector(to.output_bias, from.output_bias, hidden_padded);
    want_vector(to.gate_up_bias, from.gate_up_bias, 2 * share.size(c.intermediate_size));
    want_vector(to.down_bias, from.down_bias, hidden_padded);
  }
  memory.want(kWeights, not_finite_, 1);
  want_vector(final_norm_, model.final_norm, hidden_padded);
  want_matrix(head_, share.head_rows(c.vocab_size), c.hidden_size);
  if (c.tied_head && !f32 && share.ranks == 1) return;
  embedding_.rows = c.vocab_size;
  embedding_.columns = c.hidden_size;
  memory.want(kWeights, embedding_.data, int64_t{embedding_.rows} * embedding_stride() * element_bytes);
}

// Runs fill(begin, end) over [0, count) in threads of its own if there is enough to do.
template <class Fill>
void fill_parallel(int32_t count, int64_t bytes, const Fill& fill) {
  constexpr int64_t kThreadBytes = 1 << 20;
  const auto threads = static_cast<int32_t>(
      std::clamp<int64_t>(std::min<int64_t>(bytes / kThreadBytes, std::thread::hardware_concurrency()), 1, std::max(1, count)));
  std::vector<std::jthread> others;
  for (int32_t t = 1; t < threads; ++t)
    others.emplace_back([&fill, begin = int64_t{count} * t / threads, end = int64_t{count} * (t + 1) / threads] {
      fill(static_cast<int32_t>(begin), static_cast<int32_t>(end));
    });
  fill(0, count / threads);
}

// Fills one half of the pinned staging memory while the device copies the other.
class DeviceWeights::Uploader {
 public:
  Uploader(Device& device, Stream stream, std::byte* staging, const std::function<Status(EventId)>& wait)
      : device_(device), stream_(stream), staging_(staging), wait_(wait) {}

  Status flush() { return wait_(device_.record(stream_)); }

  void put_vector(float* to, const std::vector<float>& from) {
    if (!from.empty()) put(to, from.data(), std::ssize(from));
  }
  void put_vector(float* to, const std::vector<float>& from, const Slice& slice) {
    if (from.empty()) return;
    for (const auto& [first, count] : slice.rows) {
      put(to, from.data() + first, count);
      to += count;
    }
  }
  /// [rows][stride], in bf16 or f32, as many rows at a time as half of the staging holds.
  void put_rows(std::byte* to, const PackedMatrix& from, const Slice& slice, int64_t stride, bool f32) {
    const int64_t element_bytes = f32 ? 4 : 2, row_bytes = stride * element_bytes;
    const auto at_once = static_cast<int32_t>(std::max<int64_t>(1, kStagingBytes / 2 / row_bytes));
    for (int32_t first = 0, count = slice.row_count(); first < count && !has_failed_; first += at_once) {
      const int32_t rows = std::min(at_once, count - first);
      std::byte* const staged = room(rows * row_bytes);
      fill_parallel(rows, rows * row_bytes, [&](int32_t begin, int32_t end) {
        std::vector<float> row(static_cast<size_t>(from.columns()));
        for (int32_t r = begin; r < end; ++r) {
          std::byte* const values = staged + r * row_bytes;
          std::memset(values, 0, static_cast<size_t>(row_bytes));
          const int32_t source = slice.row(first + r);
          if (source < 0) continue;
          from.read_row(source, row.data());
          const float* const taken = &row[static_cast<size_t>(slice.columns.first)];
          if (f32)
            std::memcpy(values, taken, static_cast<size_t>(slice.columns.count) * 4);
          else  // exact: bf16 mode has bf16 weights
            std::transform(taken, taken + slice.columns.count, reinterpret_cast<uint16_t*>(values), float_to_bf16);
        }
      });
      device_.copy_in(stream_, to, staged, rows * row_bytes);
      to += rows * row_bytes;
    }
  }
  /// [columns][rows_padded] in f32, as many columns at a time as half of the staging holds.
  void put_transposed(const DeviceMatrix& to, const PackedMatrix& from, const Slice& slice) {
    const int64_t row_bytes = int64_t{to.rows_padded()} * 4;
    const auto at_once = static_cast<int32_t>(std::clamp<int64_t>(kStagingBytes / 2 / row_bytes, 1, slice.columns.count));
    std::vector<float> row(static_cast<size_t>(from.columns()));
    for (int32_t first = 0; first < slice.columns.count && !has_failed_; first += at_once) {
      const int32_t columns = std::min(at_once, slice.columns.count - first);
      auto* const block = reinterpret_cast<float*>(room(columns * row_bytes));
      std::fill_n(block, int64_t{columns} * to.rows_padded(), 0.0f);
      int64_t at = 0;
      for (const auto& [first_row, count] : slice.rows) {
        for (int32_t r = first_row; r < first_row + count; ++r, ++at) {
          from.read_row(r, row.data());
          for (int32_t c = 0; c < columns; ++c)
            block[int64_t{c} * to.rows_padded() + at] = row[static_cast<size_t>(slice.columns.first + first + c)];
        }
      }
      device_.copy_in(stream_, to.data + first * row_bytes, block, columns * row_bytes);
    }
  }

 private:
  void put(float* to, const float* from, int64_t count) {
    std::byte* const staged = room(count * 4);
    std::memcpy(staged, from, static_cast<size_t>(count) * 4);
    device_.copy_in(stream_, to, staged, count * 4);
  }
  /// Memory for at most kStagingBytes / 2, free of earlier copies.
  std::byte* room(int64_t bytes) {
    if (used_ + bytes > kStagingBytes / 2) {
      sent_[half_] = device_.record(stream_);
      half_ = 1 - half_;
      if (!wait_(sent_[half_]).ok()) has_failed_ = true;  // an error stays, and flush() returns it
      used_ = 0;
    }
    std::byte* const p = staging_ + static_cast<int64_t>(half_) * (kStagingBytes / 2) + used_;
    used_ += (bytes + 15) / 16 * 16;
    return p;
  }

  Device& device_;
  const Stream stream_;
  std::byte* const staging_;
  const std::function<Status(EventId)>& wait_;
  bool has_failed_ = false;  // the device: nothing more is converted for it
  int64_t used_ = 0;
  size_t half_ = 0;
  std::array<EventId, 2> sent_{};
};

Status DeviceWeights::reserve_staging(Device& device) {
  SEER_ASSIGN_OR_RETURN(staging_, device.allocate_pinned(kStagingBytes));
  return {};
}

Status DeviceWeights::upload(Device& device, Stream stream, const Model& model, const std::function<Status(EventId)>& wait) {
  Uploader uploader(device, stream, staging_, wait);
  const auto put_matrix = [&](const DeviceMatrix& to, const PackedMatrix& from, const Slice& slice) {
    if (f32_)
      uploader.put_transposed(to, from, slice);
    else
      uploader.put_rows(to.data, from, slice, to.columns_padded(), false);
  };
  const ModelConfig& c = model.config;
  const LayerSlices slices(c, share_, f32_);
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
    uploader.put_rows(embedding_.data, model.embedding_matrix(), whole(c.vocab_size, c.hidden_size), embedding_stride(), f32_);
  SEER_RETURN_IF_ERROR(uploader.flush());
  check_finite(device, stream);
  device.copy_out(stream, staging_, not_finite_, sizeof *not_finite_);
  SEER_RETURN_IF_ERROR(wait(device.record(stream)));
  uint32_t found = 0;
  std::memcpy(&found, staging_, sizeof found);
  if (found != 0) return fail(Code::kCorrupt, "cuda engine: of weights for ", model.folder, ", what arrived on the device is not finite");
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
    check(layer.gate_up_bias, 2 * layer.down.columns, true);
    check(layer.down_bias, hidden, true);
    check(layer.q_norm, head_dim_, true);
    check(layer.k_norm, head_dim_, true);
  }
  check(final_norm_, layers_[0].output.rows, true);
  check_matrix(head_);
  if (embedding_.data) check(embedding_.data, int64_t{embedding_.rows} * embedding_stride(), f32_);
}

}  // namespace seer::cuda
