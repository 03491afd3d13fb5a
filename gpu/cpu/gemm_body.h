// GEMM kernels over Lanes; part of kernel_body.h. The order of operations is in kernels.h.
#pragma once
#include "gpu/cpu/weight_prefetch.h"

namespace seer {
namespace {

// Adds the dot products over one block of 32 inputs to `sums`: kRows rows of x against kColumns x 16 outputs, whose
// lines of pairs begin at w. kInOrder: lines are prefetched in the order of memory, not in that of the loop; see weight_prefetch.h.
template <int kRows, int kColumns, bool kInOrder = false, class Weight>
SEER_INLINE void add_block(const float* x, int64_t x_stride, const Weight* w, Lanes::F (&sums)[kRows][kColumns]) {
  using F = Lanes::F;
  F even[kRows][kColumns], odd[kRows][kColumns];
  for (int m = 0; m < kRows; ++m)
    for (int t = 0; t < kColumns; ++t) even[m][t] = odd[m][t] = Lanes::set1(0.0f);
  for (int pair = 0; pair < 16; ++pair) {
    F w_even[kColumns], w_odd[kColumns];
    for (int t = 0; t < kColumns; ++t) {
      const Weight* line = w + t * 512 + pair * 32;
      constexpr int kPerLine = 2 / sizeof(Weight);  // loads of a line of memory
      if (kInOrder && (pair * kColumns + t) % kPerLine == 0) prefetch_weights_in_order(w + (pair * kColumns + t) * 32);
      if (!kInOrder && pair % kPerLine == 0) prefetch_weights(line);
      Lanes::load_pairs(line, w_even[t], w_odd[t]);
    }
    for (int m = 0; m < kRows; ++m) {
      const float* in = x + m * x_stride + 2 * pair;
      const F x_even = Lanes::set1(in[0]), x_odd = Lanes::set1(in[1]);
      for (int t = 0; t < kColumns; ++t) {
        even[m][t] = Lanes::fma(x_even, w_even[t], even[m][t]);
        odd[m][t] = Lanes::fma(x_odd, w_odd[t], odd[m][t]);
      }
    }
  }
  for (int m = 0; m < kRows; ++m)
    for (int t = 0; t < kColumns; ++t) sums[m][t] = Lanes::add(sums[m][t], Lanes::add(even[m][t], odd[m][t]));
}

// kRows rows of x against kColumns x 16 outputs of one panel, from its output t_begin * 16 on.
template <int kRows, int kColumns, bool kInOrder>
SEER_INLINE void bf16_tile(const float* x, int64_t x_stride, int32_t columns, const uint16_t* w, int t_begin, float* y,
                           int64_t y_stride) {
  Lanes::F sums[kRows][kColumns];
  for (int m = 0; m < kRows; ++m)
    for (int t = 0; t < kColumns; ++t) sums[m][t] = Lanes::set1(0.0f);
  for (int32_t k = 0; k < columns; k += 32, w += 1024)
    add_block<kRows, kColumns, kInOrder>(x + k, x_stride, w + t_begin * 512, sums);
  for (int m = 0; m < kRows; ++m)
    for (int t = 0; t < kColumns; ++t) Lanes::store(y + m * y_stride + t * 16, sums[m][t]);
}

template <int kRows, int kColumns, bool kInOrder>
SEER_INLINE void int8_tile(const float* x, int64_t x_stride, int32_t columns, const int8_t* w, int t_begin, float* y,
                           int64_t y_stride) {
  Lanes::F sums[kRows][kColumns];
  for (int m = 0; m < kRows; ++m)
    for (int t = 0; t < kColumns; ++t) sums[m][t] = Lanes::set1(0.0f);
  for (int32_t group = 0; group < columns; group += kInt8GroupColumns, w += kInt8GroupBytes) {
    const float* scales = reinterpret_cast<const float*>(w) + t_begin * 16;
    const int8_t* block = w + 32 * sizeof(float) + t_begin * 512;
    const int32_t end = group + kInt8GroupColumns < columns ? group + kInt8GroupColumns : columns;
    Lanes::F group_sums[kRows][kColumns];
    for (int m = 0; m < kRows; ++m)
      for (int t = 0; t < kColumns; ++t) group_sums[m][t] = Lanes::set1(0.0f);
    for (int32_t k = group; k < end; k += 32, block += 1024)
      add_block<kRows, kColumns, kInOrder>(x + k, x_stride, block, group_sums);
    for (int t = 0; t < kColumns; ++t) {
      const Lanes::F scale = Lanes::load(scales + t * 16);
      for (int m = 0; m < kRows; ++m) sums[m][t] = Lanes::fma(scale, group_sums[m][t], sums[m][t]);
    }
  }
  for (int m = 0; m < kRows; ++m)
    for (int t = 0; t < kColumns; ++t) Lanes::store(y + m * y_stride + t * 16, sums[m][t]);
}

template <int kRows, int kColumns>
SEER_INLINE void f32_tile(const float* x, int64_t x_stride, int32_t columns, const float* w, int t_begin, float* y,
                          int64_t y_stride) {
  using F = Lanes::F;
  w += t_begin * 16;
  F sums[kRows][kColumns];
  for (int m = 0; m < kRows; ++m)
    for (int t = 0; t < kColumns; ++t) sums[m][t] = Lanes::set1(0.0f);
  for (int32_t k = 0; k < columns; ++k, w += 32) {
    F weights[kColumns];
    for (int t = 0; t < kColumns; ++t) {
      prefetch_weights(w + t * 16);
      weights[t] = Lanes::load(w + t * 16);
    }
    for (int m = 0; m < kRows; ++m) {
      const F in = Lanes::set1(x[m * x_stride + k]);
      for (int t = 0; t < kColumns; ++t) sums[m][t] = Lanes::fma(in, weights[t], sums[m][t]);
    }
  }
  for (int m = 0; m < kRows; ++m)
    for (int t = 0; t < kColumns; ++t) Lanes::store(y + m * y_stride + t * 16, sums[m][t]);
}

// One tile of kRows rows, by the type of the weights. Kept out of line: each is one unrolled loop nest.
template <int kRows, bool kInOrder, class Weight>
__attribute__((noinline)) void tile_rows(const float* x, int64_t x_stride, int32_t columns, const Weight* panel,
                                         float* y, int64_t y_stride) {
  constexpr int kColumns = Lanes::kGemmColumns;
  for (int t = 0; t < 2; t += kColumns) {
    if constexpr (sizeof(Weight) == 1)
      int8_tile<kRows, kColumns, kInOrder>(x, x_stride, columns, panel, t, y + t * 16, y_stride);
    else if constexpr (sizeof(Weight) == 2)
      bf16_tile<kRows, kColumns, kInOrder>(x, x_stride, columns, panel, t, y + t * 16, y_stride);
    else
      f32_tile<kRows, kColumns>(x, x_stride, columns, panel, t, y + t * 16, y_stride);
  }
}

// The same for 1 to kRows rows.
template <int kRows, bool kInOrder, class Weight>
void tile_up_to(int32_t rows, const float* x, int64_t x_stride, int32_t columns, const Weight* panel, float* y, int64_t y_stride) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return tile_up_to<kRows - 1, kInOrder>(rows, x, x_stride, columns, panel, y, y_stride);
  }
  tile_rows<kRows, kInOrder>(x, x_stride, columns, panel, y, y_stride);
}

// Whether the tile that reads a panel from memory prefetches its lines in the order of memory; weight_prefetch.h says why.
template <class Weight>
bool goes_in_order(int32_t rows) {
  return core_kind == CoreKind::kZen5 || (core_kind == CoreKind::kZen4 && sizeof(Weight) == 2 && rows == 1);
}

template <class Weight>
constexpr int64_t panel_elements(int32_t columns_padded) {
  if constexpr (sizeof(Weight) == 1)
    return int64_t{(columns_padded + kInt8GroupColumns - 1) / kInt8GroupColumns} * kInt8GroupBytes;
  else
    return int64_t{32} * columns_padded;
}

// Panels in the outer loop, rows in the inner: a panel is read from memory once and stays in the cache for all rows.
template <class Weight>
void gemm(const float* x, int64_t x_stride, int32_t rows, int32_t columns_padded, const Weight* w, int32_t panel_begin,
          int32_t panel_end, float* y, int64_t y_stride) {
  constexpr int kRows = Lanes::kGemmRows;
  for (int32_t p = panel_begin; p < panel_end; ++p) {
    const Weight* panel = w + p * panel_elements<Weight>(columns_padded);
    float* out = y + static_cast<int64_t>(p) * 32;
    for (int32_t m = 0; m < rows; m += kRows) {
      const int32_t count = rows - m < kRows ? rows - m : kRows;
      const float* const in = x + m * x_stride;
      if (sizeof(Weight) < 4 && m == 0 && goes_in_order<Weight>(rows))
        tile_up_to<kRows, sizeof(Weight) < 4>(count, in, x_stride, columns_padded, panel, out, y_stride);
      else
        tile_up_to<kRows, false>(count, in, x_stride, columns_padded, panel, out + m * y_stride, y_stride);
    }
  }
}

}  // namespace
}  // namespace seer
