#include "gpu/cpu/linear.h"

#include <algorithm>

namespace seer {

void Activations::reserve_rows(int32_t rows) {
  const auto wanted = static_cast<size_t>(stride) * rows;
  if (data.size() < wanted) data = AlignedArray<float>(wanted);
}

void Linear::multiply(const PackedMatrix& weights, Activations& in, int32_t rows, Activations& out, int32_t panel_begin,
                      int32_t panel_end) {
  if (panel_end < 0) panel_end = weights.panels();
  // Enough outputs per task that handing it out costs little: 64 K multiplications at least.
  const int64_t panel_work = int64_t{kPanelRows} * weights.columns_padded() * rows;
  const auto grain = static_cast<int32_t>(std::max<int64_t>(1, 65536 / panel_work));
  prepare(weights, in, rows);
  pool_.run_ranges(panel_end - panel_begin, grain, [&](int32_t begin, int32_t end, int32_t) {
    begin += panel_begin;
    end += panel_begin;
    multiply_here(weights, in, 0, rows, begin, end, out.row(0) + int64_t{begin} * kPanelRows, out.stride);
  });
}

void Linear::prepare(const PackedMatrix&, Activations&, int32_t) {}

void Linear::multiply_here(const PackedMatrix& weights, Activations& in, int32_t row, int32_t rows, int32_t panel_begin,
                           int32_t panel_end, float* out, int64_t out_stride) const {
  const int32_t columns = weights.columns_padded(), panels = panel_end - panel_begin;
  const int64_t first = int64_t{panel_begin} * kPanelRows * columns;
  if (weights.bf16())
    kernels_.gemm_bf16(in.row(row), in.stride, rows, columns, weights.bf16_data() + first, 0, panels, out, out_stride);
  else
    kernels_.gemm_f32(in.row(row), in.stride, rows, columns, weights.f32_data() + first, 0, panels, out, out_stride);
}

}  // namespace seer
