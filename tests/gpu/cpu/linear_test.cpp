// The promise on which all others rest: an output of a linear layer has the same bits whatever rows are computed with
// it, whatever its place among them, and whatever threads and instructions compute it. The reference is one plain loop
// per output, written from kernels.h and packed_matrix.h. The kernels for tile registers run on every machine, over
// tiles in plain C++.
#include "gpu/cpu/linear.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "gpu/cpu/denormals.h"
#include "gpu/cpu/float_bits.h"
#include "protocols/check.h"

// The second needs the lanes of the first.
#include "gpu/cpu/lanes_scalar.h"

#include "gpu/cpu/tile_gemm_body.h"

namespace seer {
namespace {

// Tiles as Intel's manual defines them: LDTILECFG, TDPBF16PS and their faults.
struct PlainTiles {
  struct Tile {
    int32_t rows = 0, column_bytes = 0;
    uint8_t bytes[16][64] = {};
  };
  static Tile& tile(int t) {
    static thread_local Tile tiles[8];
    return tiles[t];
  }
  template <int kTile>
  static Tile& configured() {
    SEER_CHECK(tile(kTile).rows > 0);  // else the processor faults
    return tile(kTile);
  }
  static void configure(int32_t rows0, int32_t rows1) {
    const int32_t rows[8] = {rows0, rows0, rows1, rows1, rows0, rows1, 16, 16};
    for (int t = 0; t < 8; ++t) {
      SEER_CHECK(rows[t] >= 0);
      SEER_CHECK(rows[t] <= 16);
      tile(t) = {.rows = rows[t], .column_bytes = rows[t] == 0 ? 0 : 64};
    }
  }
  static void release() {
    for (int t = 0; t < 8; ++t) tile(t) = {};
  }
  template <int kTile>
  static void zero() {
    std::memset(configured<kTile>().bytes, 0, sizeof(Tile::bytes));
  }
  template <int kTile>
  static void load(const void* p, int64_t stride_bytes) {
    Tile& to = configured<kTile>();
    for (int r = 0; r < to.rows; ++r)
      std::memcpy(to.bytes[r], static_cast<const uint8_t*>(p) + r * stride_bytes, to.column_bytes);
  }
  template <int kTile>
  static void store(void* p, int64_t stride_bytes) {
    const Tile& from = configured<kTile>();
    for (int r = 0; r < from.rows; ++r)
      std::memcpy(static_cast<uint8_t*>(p) + r * stride_bytes, from.bytes[r], from.column_bytes);
  }
  template <int kSum, int kLeft, int kRight>
  static void dot() {  // the thread flushes denormals
    Tile& sum = configured<kSum>();
    const Tile &left = configured<kLeft>(), &right = configured<kRight>();
    SEER_CHECK(left.rows == sum.rows);  // else the processor faults, here and below
    SEER_CHECK(left.column_bytes / 4 == right.rows);
    SEER_CHECK(right.column_bytes == sum.column_bytes);
    for (int m = 0; m < sum.rows; ++m) {
      float temp[32] = {};
      for (int k = 0; k < left.column_bytes / 4; ++k)
        for (int n = 0; n < 32; ++n)
          temp[n] = std::fmaf(bf16_at(left, m, 2 * k + n % 2), bf16_at(right, k, n), temp[n]);
      for (int n = 0; n < 16; ++n) {
        float value;
        std::memcpy(&value, sum.bytes[m] + n * 4, 4);
        value += temp[2 * n] + temp[2 * n + 1];
        std::memcpy(sum.bytes[m] + n * 4, &value, 4);
      }
    }
  }
  static float bf16_at(const Tile& t, int row, int i) {
    uint16_t bits;
    std::memcpy(&bits, t.bytes[row] + i * 2, 2);
    return bf16_to_float(bits);
  }
};

const CpuKernels& plain_tile_kernels() {
  static const CpuKernels kernels = [] {
    CpuKernels k = *scalar_kernels();
    k.name = "tiles in plain C++";
    k.gemm_bf16_tiles = gemm_bf16_tiles<PlainTiles>;
    k.gemm_int8_tiles = gemm_int8_tiles<PlainTiles>;
    return k;
  }();
  return kernels;
}

std::vector<const CpuKernels*> all_kernels() {
  std::vector<const CpuKernels*> list = {&plain_tile_kernels()};
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvxVnni, CpuIsa::kAvx512, CpuIsa::kAmx})
    if (const CpuKernels* kernels = cpu_kernels(isa)) list.push_back(kernels);
  return list;
}

// Of ordinary size; where extreme, of every exponent, with denormals, zeros of both signs, and rare infinities and NaN.
float random_bf16(std::mt19937& rng, bool extreme) {
  if (!extreme) return bf16_to_float(static_cast<uint16_t>(0x3e80u + (rng() & 0x81ffu)));
  const uint32_t kind = rng() % 2000;
  uint32_t bits = rng() & 0xffffu;
  if (kind == 0) return bf16_to_float(static_cast<uint16_t>((bits & 0x8000u) | 0x7f80u));
  if (kind == 1) return bf16_to_float(0x7fc0);
  if (kind < 200) return bf16_to_float(static_cast<uint16_t>(bits & 0x807fu));
  if (kind < 300) return bf16_to_float(static_cast<uint16_t>(bits & 0x8000u));
  if (kind < 500) return bf16_to_float(static_cast<uint16_t>((bits & 0x80ffu) | 0x0080u));  // next to denormal
  if (kind < 1500) return bf16_to_float(static_cast<uint16_t>((bits & 0x87ffu) + 0x3c00u));
  if ((bits & 0x7f80u) == 0x7f80u) bits &= 0xbfffu;
  return bf16_to_float(static_cast<uint16_t>(bits));
}

// A layer with inputs for some rows, and their outputs by the plain loop.
struct Layer {
  MatrixType type;
  int32_t columns, outputs;
  PackedMatrix packed;
  std::vector<float> x, want;  // [rows][columns], [rows][outputs]

  Layer(MatrixType matrix_type, int32_t k, int32_t n, int32_t rows, bool extreme, uint32_t seed)
      : type(matrix_type), columns(k), outputs(n), packed(n, k, matrix_type) {
    std::mt19937 rng(seed);
    std::vector<float> weights(static_cast<size_t>(n) * k);
    for (float& w : weights) w = random_bf16(rng, extreme);
    x.resize(static_cast<size_t>(rows) * k);
    for (float& v : x) v = random_bf16(rng, extreme) * (type == MatrixType::kW8a8 && !extreme ? 1.01f : 1.0f);
    if (type == MatrixType::kBf16) {
      std::vector<uint16_t> bits(weights.size());
      std::transform(weights.begin(), weights.end(), bits.begin(), float_to_bf16);
      packed.fill(0, {TensorType::kBf16, {n, k}, std::as_bytes(std::span(bits))});
    } else {
      packed.fill(0, {TensorType::kF32, {n, k}, std::as_bytes(std::span(weights))});
    }
    want.resize(static_cast<size_t>(rows) * n);
    for (int32_t o = 0; o < n; ++o) {
      std::vector<float> row(weights.begin() + int64_t{o} * k, weights.begin() + int64_t{o + 1} * k), scales;
      if (packs_integers()) scales = quantize(row);
      for (int32_t r = 0; r < rows; ++r)
        want[static_cast<size_t>(r) * n + o] = dot(&x[static_cast<size_t>(r) * k], row, scales);
    }
  }

  bool packs_integers() const { return type == MatrixType::kInt8 || type == MatrixType::kW8a8; }

  // Replaces a row of weights by integers, and returns the scales of its groups.
  static std::vector<float> quantize(std::vector<float>& row) {
    std::vector<float> scales;
    for (size_t g = 0; g < row.size(); g += kInt8GroupColumns) {
      const size_t end = std::min(row.size(), g + kInt8GroupColumns);
      float largest = 0;
      bool finite = true;
      for (size_t k = g; k < end; ++k) {
        finite = finite && std::isfinite(row[k]);
        largest = std::max(largest, std::fabs(row[k]));
      }
      const bool used = finite && largest >= 0x1p-110f;
      scales.push_back(!finite ? std::numeric_limits<float>::quiet_NaN() : used ? largest / 127.0f : 0.0f);
      for (size_t k = g; k < end; ++k) row[k] = used ? std::nearbyint(row[k] / scales.back()) : 0.0f;
    }
    return scales;
  }

  float dot(const float* in, const std::vector<float>& row, const std::vector<float>& scales) const {
    float y = 0;
    if (type == MatrixType::kF32) {
      for (int32_t k = 0; k < columns; ++k) y = std::fmaf(in[k], row[k], y);
      return y;
    }
    if (type == MatrixType::kW8a8) return dot_of_integers(in, row, scales);
    const int32_t group_columns = type == MatrixType::kInt8 ? kInt8GroupColumns : columns;
    for (int32_t g = 0; g < columns; g += group_columns) {
      const int32_t end = std::min(columns, g + group_columns);
      float group_sum = 0;
      for (int32_t block = g; block < end; block += 32) {
        float even = 0, odd = 0;
        for (int32_t k = block; k < std::min(end, block + 32); ++k) {
          float& sum = k % 2 == 0 ? even : odd;
          sum = std::fmaf(in[k], row[k], sum);
        }
        group_sum += even + odd;
      }
      y = type == MatrixType::kInt8 ? std::fmaf(scales[g / group_columns], group_sum, y) : group_sum;
    }
    return y;
  }

  // As QuantizedGroup says.
  float dot_of_integers(const float* in, const std::vector<float>& row, const std::vector<float>& scales) const {
    float y = 0;
    for (int32_t g = 0; g < columns; g += kInt8GroupColumns) {
      const std::span inputs(in + g, in + std::min(columns, g + kInt8GroupColumns));
      float largest = 0;
      for (const float v : inputs) largest = std::max(largest, std::fabs(v));
      const bool finite = std::ranges::all_of(inputs, [](float v) { return std::isfinite(v); }), used = finite && largest >= 0x1p-110f;
      int64_t sum = 0;
      if (used)
        for (size_t i = 0; i < inputs.size(); ++i)
          sum += static_cast<int64_t>(std::nearbyint(inputs[i] * (127.0f / largest))) * static_cast<int64_t>(row[g + i]);
      const float scale = !finite ? std::numeric_limits<float>::quiet_NaN() : used ? largest / 127.0f : 0.0f;
      y = std::fmaf(scales[g / kInt8GroupColumns], static_cast<float>(sum) * scale, y);
    }
    return y;
  }

  // Outputs that differ from the plain loop when rows [first, first + count) are computed together; NaN equals NaN.
  int64_t differing(Linear& linear, int32_t first, int32_t count) const {
    Activations in(columns), out(packed.rows_padded());
    in.reserve_rows(count);
    out.reserve_rows(count);
    for (int32_t r = 0; r < count; ++r) std::copy_n(&x[static_cast<size_t>(first + r) * columns], columns, in.row(r));
    linear.multiply(packed, in, count, out);
    int64_t bad = 0;
    for (int32_t r = 0; r < count; ++r)
      for (int32_t o = 0; o < outputs; ++o) {
        const float a = out.row(r)[o], b = want[static_cast<size_t>(first + r) * outputs + o];
        bad += std::bit_cast<uint32_t>(a) != std::bit_cast<uint32_t>(b) && !(std::isnan(a) && std::isnan(b));
      }
    return bad;
  }
};

TEST_CASE("linear: an output's bits depend on nothing but its row and the weights") {
  const FlushDenormals flush;
  constexpr int32_t kRows = 512;
  std::vector<int32_t> counts = {65, 97, 128, 255, 256, 320, 449, 512};
  for (int32_t rows = 1; rows <= 64; ++rows) counts.push_back(rows);
  for (MatrixType type : {MatrixType::kBf16, MatrixType::kInt8, MatrixType::kW8a8, MatrixType::kF32}) {
    for (const auto& [columns, outputs] : {std::pair{31, 33}, {64, 1}, {130, 40}, {257, 64}}) {
      for (bool extreme : {false, true}) {
        CAPTURE(static_cast<int>(type));
        CAPTURE(columns);
        CAPTURE(extreme);
        const Layer layer(type, columns, outputs, kRows, extreme, static_cast<uint32_t>(columns));
        for (const CpuKernels* kernels : all_kernels()) {
          CAPTURE(kernels->name);
          // The slow ones compute each count on one number of threads, and few large ones; the others all on all.
          const bool slow = kernels == &plain_tile_kernels() || kernels == scalar_kernels();
          for (int32_t threads = 1; threads <= 4; ++threads) {
            CAPTURE(threads);
            ThreadPool pool(threads);
            Linear linear(*kernels, pool);
            int64_t bad = 0;
            for (int32_t rows : counts)
              if (!slow || (rows % 4 + 1 == threads && (rows < 100 || rows == kRows)))
                bad += layer.differing(linear, (rows * 37 + threads * 101) % (kRows + 1 - rows), rows);
            CHECK(bad == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("linear: the largest products of integers fit in the sums") {
  const FlushDenormals flush;
  constexpr int32_t kColumns = 192;
  for (const float weight : {1.0f, -1.0f}) {
    PackedMatrix packed(33, kColumns, MatrixType::kW8a8);
    const std::vector<float> weights(33 * kColumns, weight);
    packed.fill(0, {TensorType::kF32, {33, kColumns}, std::as_bytes(std::span(weights))});
    for (const CpuKernels* kernels : all_kernels())
      for (const int32_t rows : {1, 2, 7, 40}) {
        CAPTURE(kernels->name);
        CAPTURE(rows);
        ThreadPool pool(1);
        Linear linear(*kernels, pool);
        Activations in(kColumns), out(64);
        in.reserve_rows(rows);
        out.reserve_rows(rows);
        for (int32_t r = 0; r < rows; ++r) std::fill_n(in.row(r), kColumns, r % 2 == 0 ? 127.0f : -127.0f);
        linear.multiply(packed, in, rows, out);
        int bad = 0;
        for (int32_t r = 0; r < rows; ++r)
          for (int32_t o = 0; o < 33; ++o) bad += std::fabs(out.row(r)[o] - weight * (r % 2 == 0 ? 1 : -1) * 127.0f * kColumns) > 0.01f;
        CHECK(bad == 0);
      }
  }
}

TEST_CASE("linear: some panels only") {
  const FlushDenormals flush;
  for (MatrixType type : {MatrixType::kBf16, MatrixType::kInt8, MatrixType::kW8a8, MatrixType::kF32}) {
    const Layer layer(type, 96, 128, 20, false, 3);
    for (const CpuKernels* kernels : all_kernels()) {
      CAPTURE(kernels->name);
      ThreadPool pool(2);
      Linear linear(*kernels, pool);
      Activations in(96), out(128);
      in.reserve_rows(20);
      out.reserve_rows(20);
      for (int32_t r = 0; r < 20; ++r) std::copy_n(&layer.x[r * 96], 96, in.row(r));
      std::fill_n(out.row(0), 20 * out.stride, -1.0f);
      linear.multiply(layer.packed, in, 20, out, 1, 3);
      int bad = 0;
      for (int32_t r = 0; r < 20; ++r)
        for (int32_t o = 0; o < 128; ++o)
          bad += out.row(r)[o] != (o / 32 == 1 || o / 32 == 2 ? layer.want[r * 128 + o] : -1.0f);
      CHECK(bad == 0);
    }
  }
}

TEST_CASE("linear: some rows of those prepared for tiles, with and without tiles") {
  const FlushDenormals flush;
  CpuKernels kernels = plain_tile_kernels();
  kernels.int8_tile_rows_min = 5;
  ThreadPool pool(1);
  for (MatrixType type : {MatrixType::kBf16, MatrixType::kInt8}) {
    const Layer layer(type, 96, 64, 20, false, 4);
    Linear linear(kernels, pool);
    Activations in(96), out(64);
    in.reserve_rows(20);
    out.reserve_rows(20);
    for (int32_t r = 0; r < 20; ++r) std::copy_n(&layer.x[r * 96], 96, in.row(r));
    for (int32_t prepared : {4, 20}) {  // 4 rows of int8 take no tiles
      linear.prepare(layer.packed, in, prepared);
      for (int32_t rows : {1, 4, 5, 13}) {
        for (int32_t row = 0; row + rows <= prepared; ++row) {
          linear.multiply_here(layer.packed, in, row, rows, 0, 2, out.row(0), out.stride);
          int bad = 0;
          for (int32_t r = 0; r < rows; ++r)
            for (int32_t o = 0; o < 64; ++o) bad += out.row(r)[o] != layer.want[(row + r) * 64 + o];
          CHECK(bad == 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace seer
