// GEMM kernels for AVX2, whose sixteen registers are too few for those of gemm_body.h. Included by kernels_avx2.cpp
// only. The order of operations of an output is in kernels.h; this is how the rest is arranged.
//
// A block of 32 inputs is passed over twice, for the even sums and for the odd ones: four rows by two vectors of eight
// outputs are then eight chains of FMAs, enough to hide their latency, and six loads serve eight FMAs. (One or two rows
// would have too few chains, so they compute both sums in one pass.) Sums between blocks are in memory, and touched
// once per block.
//
// Up to six rows are one tile: a single pass over the weights in the order of memory, which is their limit. More rows
// take a panel in chunks that the first-level cache holds: each chunk is multiplied with all rows before the next one,
// while that is fetched. With many rows, the first tile widens the chunk to floats for the others.
#pragma once
#include <immintrin.h>

#include "gpu/cpu/kernels.h"
#include "gpu/cpu/weight_prefetch.h"

namespace seer {
namespace {

// ---- weights ------------------------------------------------------------------------------------------------------

// What a pass over weights prefetches for each line: nothing; the first-level cache's next lines; or from memory as
// well.
enum class Fetch { kNone, kNear, kFar };
template <Fetch kFetch>
SEER_INLINE void fetch(const std::byte* line) {
  if constexpr (kFetch == Fetch::kNear) prefetch_in_place<CacheLevel::kL1>(line + 1024);
  if constexpr (kFetch == Fetch::kFar) prefetch_weights_in_place(line);
}

// Lines are the weights of a block for half a panel. even() and odd() give those of a pair of inputs for eight of its
// 16 outputs. even() is called for all pairs in the order of memory, so it is the one that prefetches.

template <Fetch kFetch>
struct Bf16Lines {
  const std::byte* at;  // 16 pairs x 64 bytes
  SEER_INLINE __m256i pairs(int pair, int vector) const {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(at + pair * 64 + vector * 32));
  }
  SEER_INLINE __m256 even(int pair, int vector) const {
    if (vector == 0) fetch<kFetch>(at + pair * 64);
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs(pair, vector), 16));
  }
  SEER_INLINE __m256 odd(int pair, int vector) const {
    const __m256i high = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
    return _mm256_castsi256_ps(_mm256_and_si256(pairs(pair, vector), high));
  }
};

template <Fetch kFetch>
struct Int8Lines {
  const std::byte* at;  // 16 pairs x 2 inputs x 16 bytes
  static SEER_INLINE __m256 widened(const std::byte* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  SEER_INLINE __m256 even(int pair, int vector) const {
    if (pair % 2 == 0 && vector == 0) fetch<kFetch>(at + pair * 32);
    return widened(at + pair * 32 + vector * 8);
  }
  SEER_INLINE __m256 odd(int pair, int vector) const { return widened(at + pair * 32 + 16 + vector * 8); }
};

struct WideLines {
  const float* at;  // 16 pairs x 2 inputs x 16 floats
  SEER_INLINE __m256 even(int pair, int vector) const { return _mm256_load_ps(at + pair * 32 + vector * 8); }
  SEER_INLINE __m256 odd(int pair, int vector) const { return _mm256_load_ps(at + pair * 32 + 16 + vector * 8); }
};
constexpr int kWideBlockFloats = 32 * 16;

// Lines that are stored as floats when they are read.
template <class Lines>
struct WideningLines {
  Lines lines;
  float* to;
  SEER_INLINE __m256 even(int pair, int vector) const { return kept(lines.even(pair, vector), pair * 32 + vector * 8); }
  SEER_INLINE __m256 odd(int pair, int vector) const {
    return kept(lines.odd(pair, vector), pair * 32 + 16 + vector * 8);
  }
  SEER_INLINE __m256 kept(__m256 weights, int index) const {
    _mm256_store_ps(to + index, weights);
    return weights;
  }
};

// Blocks are those of a panel from some input on (for int8: the first of a group), 32 outputs each. kScaled: groups of
// blocks have scales.

template <Fetch kFetch>
struct Bf16Blocks {
  static constexpr bool kScaled = false;
  static constexpr int32_t kDirectRowsMax = 24;  // so few are not worth storing the weights as floats for
  static constexpr int kBlockBytes = 2048;
  const std::byte* at;
  SEER_INLINE Bf16Lines<kFetch> lines(int32_t block, int half) const {
    return {at + block * kBlockBytes + half * 1024};
  }
  template <Fetch kOther>
  Bf16Blocks<kOther> from(int32_t block) const {
    return {at + block * kBlockBytes};
  }
};

constexpr int kGroupBlocks = kInt8GroupColumns / 32;
template <Fetch kFetch>
struct Int8Blocks {
  static constexpr bool kScaled = true;
  static constexpr int32_t kDirectRowsMax = 0;  // storing them costs nothing: converting them takes longer
  static constexpr int kBlockBytes = kInt8GroupBytes / kGroupBlocks;  // its share of the scales included
  const std::byte* at;
  SEER_INLINE Int8Lines<kFetch> lines(int32_t block, int half) const {
    return {at + block / kGroupBlocks * kInt8GroupBytes + 32 * 4 + block % kGroupBlocks * 1024 + half * 512};
  }
  SEER_INLINE const float* scales(int32_t block) const {
    return reinterpret_cast<const float*>(at + block / kGroupBlocks * kInt8GroupBytes);
  }
  template <Fetch kOther>
  Int8Blocks<kOther> from(int32_t block) const {
    return {at + block / kGroupBlocks * kInt8GroupBytes};
  }
};

// Half a panel as floats, which another tile has written; its scales are where they were.
template <class Blocks>
struct WideBlocks : Blocks {
  const float* wide;
  WideBlocks(Blocks blocks, const float* floats) : Blocks(blocks), wide(floats) {}
  SEER_INLINE WideLines lines(int32_t block, int) const { return {wide + block * kWideBlockFloats}; }
};

// Writes them.
template <class Blocks>
struct WideningBlocks : Blocks {
  float* wide;
  WideningBlocks(Blocks blocks, float* floats) : Blocks(blocks), wide(floats) {}
  SEER_INLINE auto lines(int32_t block, int half) const {
    using Lines = decltype(Blocks::lines(block, half));
    return WideningLines<Lines>{Blocks::lines(block, half), wide + block * kWideBlockFloats};
  }
};

// ---- tiles --------------------------------------------------------------------------------------------------------

// Sums of kRows rows for both halves of a panel, or one.
template <int kRows, int kHalves>
struct TileSums {
  alignas(32) float v[kRows][kHalves * 16];
  SEER_INLINE void clear() {
    for (int m = 0; m < kRows; ++m)
      for (int i = 0; i < kHalves * 16; i += 8) _mm256_store_ps(v[m] + i, _mm256_setzero_ps());
  }
};

SEER_INLINE void fetch_next(const std::byte* next, int32_t lines) {
  for (int32_t line = 0; line < lines; ++line) __builtin_prefetch(next + line * 64, 0, 2);
}

// Passes over a block that prefetch the next chunk: all four, or with many rows, which leave more time, just the first of a half.
template <int kHalves>
constexpr int kFetchingPasses = kHalves == 2 ? 4 : 1;

// Adds even + odd of one block, for half a panel. With more than two rows, passes prefetch `next_lines` lines each, from `next` on.
template <int kRows, int kHalves, class Lines>
SEER_INLINE void add_half_block(const float* x, int64_t x_stride, const Lines& lines, int half, const std::byte* next,
                                int32_t next_lines, TileSums<kRows, kHalves>& sums) {
  const auto add = [&](int m, int v, __m256 even, __m256 odd) {
    float* const sum = sums.v[m] + half * 16 + v * 8;
    _mm256_store_ps(sum, _mm256_add_ps(_mm256_load_ps(sum), _mm256_add_ps(even, odd)));
  };
  const float* in[kRows];
  for (int m = 0; m < kRows; ++m) {
    in[m] = x + m * x_stride;
    asm("" : "+r"(in[m]));  // else the compiler keeps the address of every input, and spills them
  }
  __m256 even[kRows][2], odd[kRows][2];
  for (int m = 0; m < kRows; ++m)
    for (int v = 0; v < 2; ++v) even[m][v] = odd[m][v] = _mm256_setzero_ps();
  if constexpr (kRows <= 2) {
#pragma GCC unroll 16
    for (int pair = 0; pair < 16; ++pair)
      for (int v = 0; v < 2; ++v) {
        const __m256 w_even = lines.even(pair, v), w_odd = lines.odd(pair, v);
        for (int m = 0; m < kRows; ++m) {
          fma_into(even[m][v], _mm256_broadcast_ss(in[m] + 2 * pair), w_even);
          fma_into(odd[m][v], _mm256_broadcast_ss(in[m] + 2 * pair + 1), w_odd);
        }
      }
    for (int m = 0; m < kRows; ++m)
      for (int v = 0; v < 2; ++v) add(m, v, even[m][v], odd[m][v]);
  } else {
    alignas(32) float evens[kRows][2][8];
    fetch_next(next, next_lines);
#pragma GCC unroll 16
    for (int pair = 0; pair < 16; ++pair) {
      const __m256 w[2] = {lines.even(pair, 0), lines.even(pair, 1)};
      for (int m = 0; m < kRows; ++m) {
        const __m256 input = _mm256_broadcast_ss(in[m] + 2 * pair);
        for (int v = 0; v < 2; ++v) fma_into(even[m][v], input, w[v]);
      }
    }
    for (int m = 0; m < kRows; ++m)
      for (int v = 0; v < 2; ++v) _mm256_store_ps(evens[m][v], even[m][v]);
    if constexpr (kFetchingPasses<kHalves> == 4) fetch_next(next + next_lines * 64, next_lines);
    asm volatile("" ::: "memory");  // keeps the passes apart: together they do not fit in the registers
#pragma GCC unroll 16
    for (int pair = 0; pair < 16; ++pair) {
      const __m256 w[2] = {lines.odd(pair, 0), lines.odd(pair, 1)};
      for (int m = 0; m < kRows; ++m) {
        const __m256 input = _mm256_broadcast_ss(in[m] + 2 * pair + 1);
        for (int v = 0; v < 2; ++v) fma_into(odd[m][v], input, w[v]);
      }
    }
    for (int m = 0; m < kRows; ++m)
      for (int v = 0; v < 2; ++v) add(m, v, _mm256_load_ps(evens[m][v]), odd[m][v]);
  }
}

// What a tile prefetches for each of its blocks, for those that come after it.
struct Ahead {
  int64_t x = 0;                       // distance of the inputs, in floats
  const std::byte* weights = nullptr;  // of the next chunk
  int32_t lines = 0;                   // of those, for each of kFetchingPasses
};

// kRows rows times `block_count` blocks, for both halves of a panel or for `first_half` alone. begin: these are the
// panel's first blocks; else y holds the sums so far.
template <int kRows, int kHalves, class Blocks>
__attribute__((noinline)) void tile(const float* x, int64_t x_stride, Ahead ahead, Blocks blocks, int32_t block_count,
                                    int first_half, bool begin, float* y, int64_t y_stride) {
  TileSums<kRows, kHalves> sums, group_sums;
  group_sums.clear();
  for (int m = 0; m < kRows; ++m)
    for (int i = 0; i < kHalves * 16; i += 8)
      _mm256_store_ps(sums.v[m] + i, begin ? _mm256_setzero_ps() : _mm256_loadu_ps(y + m * y_stride + i));
#pragma GCC unroll 1
  for (int32_t block = 0; block < block_count; ++block, x += 32) {
    for (int m = 0; m < kRows; ++m) {
      __builtin_prefetch(x + ahead.x + m * x_stride);
      __builtin_prefetch(x + ahead.x + m * x_stride + 16);
    }
    const std::byte* const next = ahead.weights + block * Blocks::kBlockBytes;
#pragma GCC unroll 1
    for (int half = 0; half < kHalves; ++half)
      add_half_block<kRows>(x, x_stride, blocks.lines(block, first_half + half), half, next + half * 2 * ahead.lines * 64,
                            ahead.lines, Blocks::kScaled ? group_sums : sums);
    if constexpr (Blocks::kScaled) {
      if (block % kGroupBlocks == kGroupBlocks - 1 || block + 1 == block_count) {
        const float* const scales = blocks.scales(block) + first_half * 16;
        for (int i = 0; i < kHalves * 16; i += 8)
          for (int m = 0; m < kRows; ++m)
            _mm256_store_ps(sums.v[m] + i,
                            _mm256_fmadd_ps(_mm256_load_ps(scales + i), _mm256_load_ps(group_sums.v[m] + i),
                                            _mm256_load_ps(sums.v[m] + i)));
        group_sums.clear();
      }
    }
  }
  for (int m = 0; m < kRows; ++m)
    for (int i = 0; i < kHalves * 16; i += 8) _mm256_storeu_ps(y + m * y_stride + i, _mm256_load_ps(sums.v[m] + i));
}

constexpr int32_t kTileRowsMax = 6;  // of a single tile
constexpr int32_t kChunkBlocksMax = 8;  // of half a panel: 16 KiB of floats, half of the usual first-level cache of 32 KiB
/// Measured: Zen 4 is faster with a quarter of that cache.
SEER_INLINE int32_t chunk_blocks() { return core_kind == CoreKind::kZen4 ? kChunkBlocksMax / 2 : kChunkBlocksMax; }
static_assert(kChunkBlocksMax / 2 % kGroupBlocks == 0);
constexpr int32_t kSlabRows = 128;  // whose sums for a panel take 16 KiB

// Calls tile() for all rows, 1 to kTileRowsMax.
template <int kRows, class... Arguments>
SEER_INLINE void tile_of(int32_t rows, Arguments... arguments) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return tile_of<kRows - 1>(rows, arguments...);
  }
  tile<kRows, 2>(arguments...);
}

// Rows of the next tile when `rows` are left: fours, with threes and a five so that none is smaller.
SEER_INLINE int32_t tile_height(int32_t rows) { return rows == 5 || rows == 3 ? rows : rows == 6 ? 3 : 4; }

// A chunk of `count` blocks times all rows. The first tile reads `first`, the others `rest`, which are the same weights
// nearer by.
template <int kHalves, class First, class Rest>
SEER_INLINE void multiply_chunk(const float* x, int64_t x_stride, int32_t rows, First first, Rest rest, int32_t count,
                                int half, bool begin, float* sums) {
  // Every tile fetches its share of the next chunk, so that memory is read all the time.
  constexpr int32_t kPasses = kFetchingPasses<kHalves>, kLines = First::kBlockBytes * kHalves / 2 / 64 / kPasses + 1;
  const int32_t share = kLines / (rows / 4) + 1;  // per block and pass
  Ahead ahead{.weights = first.at + count * First::kBlockBytes + half * First::kBlockBytes / 2, .lines = share};
  for (int32_t m = 0; m < rows;) {
    const int32_t height = m == 0 ? 4 : tile_height(rows - m);
    const float* const row = x + m * x_stride;
    float* const out = sums + m * 32 + half * 16;
    ahead.x = m + height < rows ? height * x_stride : count * 32 - m * x_stride;
    if (m == 0)
      tile<4, kHalves>(row, x_stride, ahead, first, count, half, begin, out, 32);
    else if (height == 4)
      tile<4, kHalves>(row, x_stride, ahead, rest, count, half, begin, out, 32);
    else if (height == 3)
      tile<3, kHalves>(row, x_stride, ahead, rest, count, half, begin, out, 32);
    else
      tile<5, kHalves>(row, x_stride, ahead, rest, count, half, begin, out, 32);
    m += height;
    ahead.weights += share * kPasses * 64;
  }
}

// A panel for more than kTileRowsMax rows.
template <template <Fetch> class Blocks>
SEER_INLINE void multiply_panel(const float* x, int64_t x_stride, int32_t rows, int32_t block_count,
                                Blocks<Fetch::kFar> panel, float* wide, float* sums, float* y, int64_t y_stride) {
  const int32_t most = chunk_blocks();
  for (int32_t b = 0; b < block_count; b += most) {
    const int32_t count = block_count - b < most ? block_count - b : most;
    const auto near = panel.template from<Fetch::kNear>(b);
    const auto chunk = panel.template from<Fetch::kNone>(b);
    const float* const in = x + b * 32;
    if (rows <= panel.kDirectRowsMax)
      multiply_chunk<2>(in, x_stride, rows, near, chunk, count, 0, b == 0, sums);
    else
      for (int half = 0; half < 2; ++half)
        multiply_chunk<1>(in, x_stride, rows, WideningBlocks(near, wide), WideBlocks(chunk, wide), count, half, b == 0,
                          sums);
  }
  for (int32_t m = 0; m < rows; ++m)
    for (int i = 0; i < 32; i += 8) _mm256_storeu_ps(y + m * y_stride + i, _mm256_load_ps(sums + m * 32 + i));
}

template <template <Fetch> class Blocks>
SEER_INLINE void multiply_panels(const float* x, int64_t x_stride, int32_t rows, int32_t columns_padded, const void* w,
                                 int64_t panel_bytes, int32_t panel_begin, int32_t panel_end, float* y,
                                 int64_t y_stride) {
  alignas(64) float wide[kChunkBlocksMax * kWideBlockFloats], sums[kSlabRows * 32];
  const int32_t block_count = columns_padded / 32;
  for (int32_t p = panel_begin; p < panel_end; ++p) {
    const Blocks<Fetch::kFar> panel{static_cast<const std::byte*>(w) + p * panel_bytes};
    for (int32_t m = 0; m < rows; m += kSlabRows) {
      const int32_t slab = rows - m < kSlabRows ? rows - m : kSlabRows;
      const float* const in = x + m * x_stride;
      float* const out = y + m * y_stride + static_cast<int64_t>(p) * 32;
      if (!panel.kScaled && slab == 1 && core_kind == CoreKind::kZen4)  // weight_prefetch.h says why
        tile<1, 2>(in, x_stride, Ahead{.x = 64}, panel.template from<Fetch::kNear>(0), block_count, 0, true, out, y_stride);
      else if (slab <= kTileRowsMax)
        tile_of<kTileRowsMax>(slab, in, x_stride, Ahead{.x = 64}, panel, block_count, 0, true, out, y_stride);
      else
        multiply_panel<Blocks>(in, x_stride, slab, block_count, panel, wide, sums, out, y_stride);
    }
  }
}

// ---- CpuKernels::gemm_bf16 and gemm_int8
// ------------------------------------------------------------------------------

void gemm_bf16_avx2(const float* x, int64_t x_stride, int32_t rows, int32_t columns_padded, const uint16_t* w,
                    int32_t panel_begin, int32_t panel_end, float* y, int64_t y_stride) {
  multiply_panels<Bf16Blocks>(x, x_stride, rows, columns_padded, w, int64_t{64} * columns_padded, panel_begin,
                              panel_end, y, y_stride);
}

void gemm_int8_avx2(const float* x, int64_t x_stride, int32_t rows, int32_t columns_padded, const int8_t* w,
                    int32_t panel_begin, int32_t panel_end, float* y, int64_t y_stride) {
  const int64_t groups = (columns_padded + kInt8GroupColumns - 1) / kInt8GroupColumns;
  multiply_panels<Int8Blocks>(x, x_stride, rows, columns_padded, w, groups * kInt8GroupBytes, panel_begin, panel_end, y,
                              y_stride);
}

}  // namespace
}  // namespace seer
