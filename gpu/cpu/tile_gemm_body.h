// GEMM kernels over tile registers. Included by kernels_amx.cpp with the processor's tiles and AVX-512 lanes, and by a
// test with tiles and lanes in plain C++, so that everything except the instructions is tested on every machine.
//
// `Tiles` has eight tiles of up to 16 rows of 64 bytes and these static operations of the calling thread:
//   configure(rows0, rows1)  tiles 0, 1, 4 get rows0 rows; 2, 3, 5 get rows1, which may be 0; 6, 7 get 16
//   release()                ends the use of the tiles
//   zero<t>(), load<t>(p, stride_bytes), store<t>(p, stride_bytes)
//   dot<c, a, b>()           TDPBF16PS: c += a * b, as kernels.h describes a block of 32 inputs
//
// Rows are computed in blocks of equal height, 32 at most. If they do not divide evenly, the last block starts earlier and
// computes some rows again, to the same bits. So one configuration serves a whole call, and no tail is padded.
#pragma once
#include "gpu/cpu/kernels.h"
#include "gpu/cpu/weight_prefetch.h"

namespace seer {
namespace {

struct RowBlocks {
  int32_t rows, count, height;
  explicit RowBlocks(int32_t all)
      : rows(all), count((all + 31) / 32), height(count == 0 ? 0 : (all + count - 1) / count) {}
  int32_t begin(int32_t block) const { return block * height < rows - height ? block * height : rows - height; }
};

// y = x W^T for one block of rows and 32 outputs over `columns` inputs, whose weights begin at w. kTwo: the block has more
// than 16 rows.
template <class Tiles, bool kTwo>
SEER_INLINE void tile_block(const uint16_t* x, int64_t x_stride, int32_t columns, const uint16_t* w, bool prefetch,
                            float* y, int64_t y_stride) {
  Tiles::template zero<0>();
  Tiles::template zero<1>();
  if constexpr (kTwo) {
    Tiles::template zero<2>();
    Tiles::template zero<3>();
  }
  for (int32_t k = 0; k < columns; k += 32, w += 1024) {
    if (prefetch)
      for (int line = 0; line < 32; ++line) prefetch_weights(w + line * 32, kFarther);
    Tiles::template load<4>(x + k, x_stride * 2);
    Tiles::template load<6>(w, 64);
    Tiles::template dot<0, 4, 6>();
    Tiles::template load<7>(w + 512, 64);
    Tiles::template dot<1, 4, 7>();
    if constexpr (kTwo) {
      Tiles::template load<5>(x + 16 * x_stride + k, x_stride * 2);
      Tiles::template dot<2, 5, 6>();
      Tiles::template dot<3, 5, 7>();
    }
  }
  Tiles::template store<0>(y, y_stride * 4);
  Tiles::template store<1>(y + 16, y_stride * 4);
  if constexpr (kTwo) {
    Tiles::template store<2>(y + 16 * y_stride, y_stride * 4);
    Tiles::template store<3>(y + 16 * y_stride + 16, y_stride * 4);
  }
}

template <class Tiles>
SEER_INLINE void tile_rows(int32_t height, const uint16_t* x, int64_t x_stride, int32_t columns, const uint16_t* w,
                           bool prefetch, float* y, int64_t y_stride) {
  if (height > 16)
    tile_block<Tiles, true>(x, x_stride, columns, w, prefetch, y, y_stride);
  else
    tile_block<Tiles, false>(x, x_stride, columns, w, prefetch, y, y_stride);
}

template <class Tiles>
SEER_INLINE void configure_rows(int32_t height) {
  Tiles::configure(height < 16 ? height : 16, height < 16 ? 0 : height - 16);
}

// CpuKernels::gemm_bf16_tiles.
template <class Tiles>
void gemm_bf16_tiles(const uint16_t* x, int64_t x_stride, int32_t rows, int32_t columns_padded, const uint16_t* w,
                     int32_t panel_begin, int32_t panel_end, float* y, int64_t y_stride) {
  const RowBlocks blocks(rows);
  if (blocks.count == 0) return;
  configure_rows<Tiles>(blocks.height);
  for (int32_t p = panel_begin; p < panel_end; ++p)
    for (int32_t b = 0; b < blocks.count; ++b) {
      const int64_t row = blocks.begin(b);
      tile_rows<Tiles>(blocks.height, x + row * x_stride, x_stride, columns_padded,
                       w + int64_t{p} * 32 * columns_padded, b == 0, y + row * y_stride + int64_t{p} * 32, y_stride);
    }
  Tiles::release();
}

// CpuKernels::gemm_int8_tiles. A group of a panel is expanded to bf16 once, in the first-level cache, and multiplied
// with all rows; y holds the sums between groups.
template <class Tiles>
void gemm_int8_tiles(const uint16_t* x, int64_t x_stride, int32_t rows, int32_t columns_padded, const int8_t* w,
                     int32_t panel_begin, int32_t panel_end, float* y, int64_t y_stride) {
  using F = Lanes::F;
  alignas(64) uint16_t expanded[32 * kInt8GroupColumns];
  alignas(64) float group_sums[32 * 32];
  const RowBlocks blocks(rows);
  if (blocks.count == 0) return;
  const int32_t groups = (columns_padded + kInt8GroupColumns - 1) / kInt8GroupColumns;
  configure_rows<Tiles>(blocks.height);
  for (int32_t p = panel_begin; p < panel_end; ++p) {
    const int8_t* group = w + int64_t{p} * groups * kInt8GroupBytes;
    for (int32_t g = 0; g < groups; ++g, group += kInt8GroupBytes) {
      const int32_t k = g * kInt8GroupColumns;
      const int32_t columns = columns_padded - k < kInt8GroupColumns ? columns_padded - k : kInt8GroupColumns;
      const int8_t* integers = group + 32 * sizeof(float);
      for (int32_t line = 0; line < columns; ++line) {  // one pair of inputs for 16 outputs; two halves of columns / 2 pairs
        if (line % 2 == 0) prefetch_weights(integers + line * 32, kFarther);
        F even, odd;
        Lanes::load_pairs(integers + line * 32, even, odd);
        const Lanes::I low = Lanes::and_i(Lanes::sar<16>(Lanes::bits(even)), Lanes::set1_i(0xffff));
        const Lanes::I pairs = Lanes::add_i(low, Lanes::bits(odd));
        Lanes::store(reinterpret_cast<float*>(expanded + line * 32), Lanes::from_bits(pairs));
      }
      const float* scales = reinterpret_cast<const float*>(group);
      const F scale[2] = {Lanes::load(scales), Lanes::load(scales + 16)};
      int32_t done = 0;  // rows whose y includes this group
      for (int32_t b = 0; b < blocks.count; ++b) {
        const int32_t first = blocks.begin(b);
        tile_rows<Tiles>(blocks.height, x + first * x_stride + k, x_stride, columns, expanded, false, group_sums, 32);
        for (; done < first + blocks.height; ++done)
          for (int half = 0; half < 2; ++half) {
            float* out = y + done * y_stride + int64_t{p} * 32 + half * 16;
            const F sum = Lanes::load(group_sums + (done - first) * 32 + half * 16);
            const F before = g == 0 ? Lanes::set1(0.0f) : Lanes::load(out);
            Lanes::store(out, Lanes::fma(scale[half], sum, before));
          }
      }
    }
  }
  Tiles::release();
}

// CpuKernels::fma_chains: four chains of products of whole tiles, as tile_block() has them.
template <class Tiles>
int64_t tile_chains(int64_t rounds, float* sum) {
  alignas(64) float zeros[16 * 16] = {};
  Tiles::configure(16, 16);
  Tiles::template load<0>(zeros, 64);
  Tiles::template load<1>(zeros, 64);
  Tiles::template load<2>(zeros, 64);
  Tiles::template load<3>(zeros, 64);
  Tiles::template load<4>(zeros, 64);
  Tiles::template load<5>(zeros, 64);
  Tiles::template load<6>(zeros, 64);
  Tiles::template load<7>(zeros, 64);
  for (int64_t round = 0; round < rounds; ++round) {
    Tiles::template dot<0, 4, 6>();
    Tiles::template dot<1, 4, 7>();
    Tiles::template dot<2, 5, 6>();
    Tiles::template dot<3, 5, 7>();
  }
  Tiles::template store<0>(zeros, 64);
  Tiles::release();
  *sum = zeros[0];
  return rounds * 4 * (16 * 16 * 32 * 2);
}

}  // namespace
}  // namespace seer
