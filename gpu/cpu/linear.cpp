#include "gpu/cpu/linear.h"

#include <algorithm>
#include <bit>

namespace seer {
namespace {

constexpr int32_t kRoundGrainFloats = 64 * 1024;  // fewer are not worth waking a thread for

}  // namespace

void Activations::reserve_rows(int32_t rows) {
  const auto wanted = static_cast<size_t>(stride) * rows;
  if (data.size() < wanted) data = AlignedArray<float>(wanted);
}

void Linear::multiply(const PackedMatrix& weights, Activations& in, int32_t rows, Activations& out, int32_t panel_begin,
                      int32_t panel_end) {
  if (panel_end < 0) panel_end = weights.panels();
  // At least 64 K multiplications per task, so that handing it out costs little.
  const int64_t panel_work = int64_t{kPanelRows} * weights.columns_padded() * rows;
  const auto grain = static_cast<int32_t>(std::max<int64_t>(1, 65536 / panel_work));
  prepare(weights, in, rows);
  pool_.run_ranges(panel_end - panel_begin, grain, [&](int32_t begin, int32_t end, int32_t) {
    begin += panel_begin;
    end += panel_begin;
    multiply_here(weights, in, 0, rows, begin, end, out.row(0) + int64_t{begin} * kPanelRows, out.stride);
  });
}

void Linear::prepare(const PackedMatrix& weights, Activations& in, int32_t rows) {
  if (weights.type() == MatrixType::kW8a8)
    prepare_quantized_rows(in, rows, weights.columns_padded());
  else if (reads_bf16_rows(weights, rows))
    prepare_bf16_rows(in, rows, weights.columns_padded());
}

void Linear::prepare_quantized_rows(Activations& in, int32_t rows, int32_t width) {
  const int32_t groups = int8_groups(width);
  const auto size = static_cast<size_t>(rows) * static_cast<size_t>(groups);
  if (quantized_rows_.size() < size) quantized_rows_ = AlignedArray<QuantizedGroup>(size);
  pool_.run_ranges(rows, std::max(1, kRoundGrainFloats / width), [&](int32_t begin, int32_t end, int32_t) {
    for (int32_t r = begin; r < end; ++r)
      kernels_.quantize_row(in.row(r), width, quantized_rows_.data() + static_cast<int64_t>(r) * groups);
  });
}

void Linear::prepare_bf16_rows(Activations& in, int32_t rows, int32_t width) {
  const auto size = static_cast<size_t>(rows) * static_cast<size_t>(width);
  if (bf16_rows_.size() < size) bf16_rows_ = AlignedArray<uint16_t>(size);
  pool_.run_ranges(rows, std::max(1, kRoundGrainFloats / width), [&](int32_t begin, int32_t end, int32_t) {
    for (int32_t r = begin; r < end; ++r) {
      const float* from = in.row(r);
      uint16_t* to = bf16_rows_.data() + static_cast<int64_t>(r) * width;
      // Exact: the floats hold bf16 values.
      for (int32_t i = 0; i < width; ++i) to[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(from[i]) >> 16);
    }
  });
}

void Linear::multiply_here(const PackedMatrix& weights, Activations& in, int32_t row, int32_t rows, int32_t panel_begin,
                           int32_t panel_end, float* out, int64_t out_stride) const {
  const int32_t columns = weights.columns_padded(), panels = panel_end - panel_begin;
  const uint16_t* bf16_row = bf16_rows_.data() + int64_t{row} * columns;
  const bool tiles = reads_bf16_rows(weights, rows);
  const auto run = [&](auto gemm, const auto* x, int64_t x_stride, const auto* w) {
    gemm(x, x_stride, rows, columns, w + panel_begin * weights.panel_elements(), 0, panels, out, out_stride);
  };
  switch (weights.type()) {
    case MatrixType::kBf16:
      if (tiles) return run(kernels_.gemm_bf16_tiles, bf16_row, columns, weights.bf16_data());
      return run(kernels_.gemm_bf16, in.row(row), in.stride, weights.bf16_data());
    case MatrixType::kInt8:
      if (tiles) return run(kernels_.gemm_int8_tiles, bf16_row, columns, weights.int8_data());
      return run(kernels_.gemm_int8, in.row(row), in.stride, weights.int8_data());
    case MatrixType::kW8a8: {
      const int32_t groups = int8_groups(columns);
      return kernels_.gemm_w8a8(quantized_rows_.data() + int64_t{row} * groups, rows, groups,
                                weights.int8_data() + panel_begin * weights.panel_elements(), 0, panels, out, out_stride);
    }
    case MatrixType::kF32:
      return run(kernels_.gemm_f32, in.row(row), in.stride, weights.f32_data());
  }
}

}  // namespace seer
