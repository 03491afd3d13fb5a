// CpuKernels::gemm_w8a8 over Dot, the dot products of four bytes of an instruction set. Included by the sources that define Dot.
// The order of operations of an output is in kernels.h.
//
// More rows than a tile has take a panel in chunks that the first-level cache holds: each chunk is multiplied with all rows before
// the next one.
#pragma once
#include "gpu/cpu/kernels.h"
#include "gpu/cpu/weight_prefetch.h"

namespace seer {
namespace {

// Dot: kOutputs lanes of outputs, in registers I (sums of integers), W (weights) and F (floats);
//   W weights(const int8_t* w)           of four inputs, as stored: 4 x kOutputs bytes
//   I begin(const QuantizedGroup& x)     of a group's sum
//   I add(I sum, W w, const int8_t* x)   four products more
//   F floats(I), set1(float), load(const float*), mul(F, F), fma(F, F, F), store(float*, F)

constexpr int32_t kHalfBytes = 16 * kInt8GroupColumns;  // of a group's integers
constexpr int32_t kW8a8ChunkGroups = 4;                 // 8 KiB of weights
constexpr int32_t kW8a8SlabRows = 128;                  // whose sums for a panel take 16 KiB

// Adds kRows rows times `groups` groups of a panel to sums, 32 floats for a row. kHalves of the panel are computed in one pass.
// kFetch: the weights come from memory.
template <int kRows, int kHalves, bool kFetch>
__attribute__((noinline)) void w8a8_tile(const QuantizedGroup* x, int32_t x_stride, const int8_t* w, int32_t groups, float* sums) {
  constexpr int kVectors = 16 / Dot::kOutputs;  // of a half
  for (int32_t g = 0; g < groups; ++g, ++x, w += kInt8GroupBytes) {
    if constexpr (kFetch) {  // the scales
      prefetch_weights_in_place(w);
      prefetch_weights_in_place(w + 64);
    }
    const auto* const scales = reinterpret_cast<const float*>(w);
#pragma GCC unroll 1
    for (int half = 0; half < 2; half += kHalves) {
      const int8_t* const weights = w + 32 * sizeof(float) + half * kHalfBytes;
      typename Dot::I dots[kRows][kHalves * kVectors];
      for (int m = 0; m < kRows; ++m)
        for (auto& dot : dots[m]) dot = Dot::begin(x[m * x_stride]);
#pragma GCC unroll 16
      for (int k = 0; k < kInt8GroupColumns; k += 4) {
        typename Dot::W line[kHalves * kVectors];
        for (int h = 0; h < kHalves; ++h) {
          const int8_t* const at = weights + h * kHalfBytes + k * 16;
          if constexpr (kFetch) prefetch_weights_in_place(weights + (k / 4 * kHalves + h) * 64);  // in the order of memory
          for (int v = 0; v < kVectors; ++v) line[h * kVectors + v] = Dot::weights(at + v * Dot::kOutputs * 4);
        }
        for (int m = 0; m < kRows; ++m)
          for (int v = 0; v < kHalves * kVectors; ++v) dots[m][v] = Dot::add(dots[m][v], line[v], x[m * x_stride].integers + k);
      }
      for (int m = 0; m < kRows; ++m) {
        const auto x_scale = Dot::set1(x[m * x_stride].scale);
        for (int v = 0; v < kHalves * kVectors; ++v) {
          const int output = half * 16 + v * Dot::kOutputs;
          float* const sum = sums + m * 32 + output;
          Dot::store(sum, Dot::fma(Dot::load(scales + output), Dot::mul(Dot::floats(dots[m][v]), x_scale), Dot::load(sum)));
        }
      }
    }
  }
}

// The same for 1 to kRows rows.
template <int kRows, bool kFetch>
SEER_INLINE void w8a8_tile_up_to(int32_t rows, const QuantizedGroup* x, int32_t x_stride, const int8_t* w, int32_t groups, float* sums) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return w8a8_tile_up_to<kRows - 1, kFetch>(rows, x, x_stride, w, groups, sums);
  }
  w8a8_tile<kRows, kRows <= Dot::kBothHalvesRows ? 2 : 1, kFetch>(x, x_stride, w, groups, sums);
}

void gemm_w8a8(const QuantizedGroup* x, int32_t rows, int32_t groups, const int8_t* w, int32_t panel_begin, int32_t panel_end, float* y,
               int64_t y_stride) {
  alignas(64) float sums[kW8a8SlabRows * 32];
  for (int32_t p = panel_begin; p < panel_end; ++p) {
    const int8_t* const panel = w + int64_t{p} * groups * kInt8GroupBytes;
    for (int32_t first = 0; first < rows; first += kW8a8SlabRows) {
      const int32_t slab = rows - first < kW8a8SlabRows ? rows - first : kW8a8SlabRows;
      const int32_t chunk = slab <= Dot::kRows ? groups : kW8a8ChunkGroups;
      __builtin_memset(sums, 0, sizeof(float) * 32 * static_cast<size_t>(slab));
      for (int32_t g = 0; g < groups; g += chunk) {
        const int32_t count = groups - g < chunk ? groups - g : chunk;
        const int8_t* const weights = panel + int64_t{g} * kInt8GroupBytes;
        for (int32_t m = 0; m < slab; m += Dot::kRows) {
          const QuantizedGroup* const in = x + int64_t{first + m} * groups + g;
          const int32_t height = slab - m < Dot::kRows ? slab - m : Dot::kRows;
          if (m == 0)
            w8a8_tile_up_to<Dot::kRows, true>(height, in, groups, weights, count, sums);
          else
            w8a8_tile_up_to<Dot::kRows, false>(height, in, groups, weights, count, sums + m * 32);
        }
      }
      for (int32_t m = 0; m < slab; ++m) __builtin_memcpy(y + (first + m) * y_stride + int64_t{p} * 32, sums + m * 32, sizeof(float) * 32);
    }
  }
}

}  // namespace
}  // namespace seer
