#include "gpu/cpu/kernels.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gpu/cpu/aligned_array.h"
#include "gpu/cpu/denormals.h"
#include "gpu/cpu/float_bits.h"
#include "gpu/cpu/packed_matrix.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace seer {
namespace {

// Equal bits; any NaN equals any NaN.
bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}
int differing(const float* a, const float* b, size_t count) {
  int bad = 0;
  for (size_t i = 0; i < count; ++i) bad += same(a[i], b[i]) ? 0 : 1;
  return bad;
}

std::vector<const CpuKernels*> all_kernels() {
  std::vector<const CpuKernels*> list;
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvxVnni, CpuIsa::kAvx512, CpuIsa::kAmx})
    if (const CpuKernels* kernels = cpu_kernels(isa)) list.push_back(kernels);
  return list;
}

// Random bf16 values; where extreme, with denormals, zeros, infinities, NaN and every exponent among them.
uint16_t random_bf16(std::mt19937& rng, bool extreme) {
  if (!extreme) return static_cast<uint16_t>(0x3e80u + (rng() & 0x81ffu));
  switch (rng() % 12) {
    case 0:
      return static_cast<uint16_t>(rng() & 0x807fu);  // denormal or zero
    case 1:
      return rng() % 40 == 0 ? static_cast<uint16_t>(0x7f80u | (rng() & 0x8000u)) : uint16_t{0};
    case 2:
      return rng() % 40 == 0 ? uint16_t{0x7fc0} : uint16_t{0x8000};
    case 3:
      return static_cast<uint16_t>((rng() & 0x80ffu) | 0x0080u);  // tiny
    default:
      return static_cast<uint16_t>(((rng() & 0x8fffu) + 0x3800u) & 0xff7fu);
  }
}

struct GemmInput {
  int32_t rows, columns, outputs;  // columns padded to 32, outputs to 32
  AlignedArray<float> x;
  AlignedArray<uint16_t> weights;
  GemmInput(int32_t rows_in, int32_t columns_in, int32_t outputs_in, bool extreme, uint32_t seed)
      : rows(rows_in),
        columns(columns_in),
        outputs(outputs_in),
        x(static_cast<size_t>(rows_in) * columns_in),
        weights(static_cast<size_t>(outputs_in) * columns_in) {
    std::mt19937 rng(seed);
    for (size_t i = 0; i < x.size(); ++i) x[i] = bf16_to_float(random_bf16(rng, extreme));
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = random_bf16(rng, extreme);
  }
};

std::vector<float> multiply(const CpuKernels& kernels, const GemmInput& in, int32_t row_begin, int32_t rows,
                            int32_t panel_begin, int32_t panel_end) {
  std::vector<float> y(static_cast<size_t>(rows) * in.outputs, -1.0f);
  kernels.gemm_bf16(in.x.data() + static_cast<int64_t>(row_begin) * in.columns, in.columns, rows, in.columns,
                    in.weights.data(), panel_begin, panel_end, y.data(), in.outputs);
  return y;
}

// The order of kernels.h, written as plainly as possible.
float plain_dot(const GemmInput& in, int32_t row, int32_t output) {
  float sum = 0;
  for (int32_t k = 0; k < in.columns; k += 32) {
    float even = 0, odd = 0;
    for (int32_t pair = 0; pair < 16; ++pair) {
      const size_t at = static_cast<size_t>(output / 32) * 32 * in.columns + static_cast<size_t>(k / 32) * 1024 +
                        output % 32 / 16 * 512 + pair * 32 + output % 16 * 2;
      const float* x = in.x.data() + static_cast<int64_t>(row) * in.columns + k + 2 * pair;
      even = std::fmaf(x[0], bf16_to_float(in.weights[at]), even);
      odd = std::fmaf(x[1], bf16_to_float(in.weights[at + 1]), odd);
    }
    sum += even + odd;
  }
  return sum;
}

TEST_CASE("cpu kernels: bf16 GEMM has the written order in every instruction set, with extreme values too") {
  const FlushDenormals flush;
  for (bool extreme : {false, true}) {
    CAPTURE(extreme);
    for (const auto& [columns, outputs] : {std::pair{32, 32}, {64, 96}, {224, 160}}) {
      const GemmInput in(64, columns, outputs, extreme, 17);
      std::vector<float> want(64 * static_cast<size_t>(outputs));
      for (int32_t row = 0; row < 64; ++row)
        for (int32_t n = 0; n < outputs; ++n) want[row * outputs + n] = plain_dot(in, row, n);
      for (const CpuKernels* kernels : all_kernels()) {
        CAPTURE(kernels->name);
        int bad = 0;
        for (int32_t rows = 1; rows <= 64; ++rows) {  // every batch, at another offset each
          const int32_t first = (64 - rows) / 2;
          const std::vector<float> got = multiply(*kernels, in, first, rows, 0, outputs / 32);
          bad += differing(got.data(), want.data() + static_cast<size_t>(first) * outputs, got.size());
        }
        CHECK(bad == 0);
        const std::vector<float> part =
            multiply(*kernels, in, 0, 1, outputs / 32 - 1, outputs / 32);  // some panels only
        CHECK(differing(part.data() + outputs - 32, want.data() + outputs - 32, 32) == 0);
        CHECK((outputs == 32 || part[0] == -1.0f));
      }
    }
  }
}

TEST_CASE("cpu kernels: f32 GEMM is one FMA chain in every instruction set") {
  const FlushDenormals flush;
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  const int32_t rows = 13, columns = 96, outputs = 64;
  AlignedArray<float> x(rows * columns), w(outputs * columns);
  for (size_t i = 0; i < x.size(); ++i) x[i] = normal(rng);
  for (size_t i = 0; i < w.size(); ++i) w[i] = normal(rng);
  std::vector<float> want(rows * outputs), got(rows * outputs);
  for (int32_t m = 0; m < rows; ++m)
    for (int32_t n = 0; n < outputs; ++n) {
      float sum = 0;
      for (int32_t k = 0; k < columns; ++k)
        sum = std::fmaf(x[m * columns + k], w[(n / 32 * columns + k) * 32 + n % 32], sum);
      want[m * outputs + n] = sum;
    }
  for (const CpuKernels* kernels : all_kernels()) {
    CAPTURE(kernels->name);
    kernels->gemm_f32(x.data(), columns, rows, columns, w.data(), 0, outputs / 32, got.data(), outputs);
    CHECK(differing(got.data(), want.data(), got.size()) == 0);
  }
}

TEST_CASE("cpu kernels: row kernels have equal bits in every instruction set, at every size") {
  const FlushDenormals flush;
  std::mt19937 rng(6);
  std::normal_distribution<float> normal(0, 3);
  const auto kernels = all_kernels();
  for (int32_t size = 1; size <= 70; ++size) {
    std::vector<float> a(2 * size), b(2 * size);
    for (float& v : a) v = normal(rng);
    for (float& v : b) v = normal(rng);
    if (size % 5 == 0) a[size / 2] = std::numeric_limits<float>::quiet_NaN();
    if (size % 7 == 0) a[size / 2] = std::numeric_limits<float>::infinity();
    for (bool round : {false, true}) {
      std::vector<std::vector<float>> results;
      for (const CpuKernels* k : kernels) {
        std::vector<float> norm(size), act(size), turned = a, sum = a;
        k->rms_norm(a.data(), b.data(), size, 1e-6f, round, norm.data());
        k->swiglu(a.data(), b.data(), size, round, act.data());
        k->rope(turned.data(), b.data(), b.data() + size, size, round);
        k->add(sum.data(), b.data(), size);
        std::vector<float> all;
        for (const auto* part : {&norm, &act, &turned, &sum}) all.insert(all.end(), part->begin(), part->end());
        results.push_back(all);
      }
      for (size_t i = 1; i < results.size(); ++i) {
        CAPTURE(kernels[i]->name);
        CAPTURE(size);
        CHECK(differing(results[0].data(), results[i].data(), results[0].size()) == 0);
      }
    }
  }
}

TEST_CASE("cpu kernels: the norm of a row whose squares overflow is NaN, not a row of zeros") {
  for (const CpuKernels* k : all_kernels()) {
    CAPTURE(k->name);
    for (const int32_t size : {5, 64}) {
      std::vector<float> row(static_cast<size_t>(size), 1.0f), weight(row), out(row);
      row.back() = 1e18f;
      k->rms_norm(row.data(), weight.data(), size, 1e-6f, true, out.data());
      CHECK(std::ranges::all_of(out, [](float x) { return std::isfinite(x); }));
      row.back() = 1e20f;
      k->rms_norm(row.data(), weight.data(), size, 1e-6f, true, out.data());
      CHECK(std::ranges::all_of(out, [](float x) { return std::isnan(x); }));
    }
  }
}

TEST_CASE("cpu kernels: inputs become integers by group, rounded to even, and NaN where one is not finite") {
  const FlushDenormals flush;
  std::vector<float> row(5 * 64 + 32, 0.0f);
  for (int i = 0; i < 64; ++i) row[i] = static_cast<float>(i) - 31.5f;  // steps of one half, of which ties go to even
  row[63] = 127.0f;
  row[64 + 5] = -0x1p-111f;
  row[2 * 64 + 7] = -std::numeric_limits<float>::infinity();
  row[3 * 64 + 63] = std::numeric_limits<float>::quiet_NaN();
  row[4 * 64] = -0x1p-110f;
  row[5 * 64 + 31] = 254.0f;
  row[5 * 64] = -3.0f;
  for (const CpuKernels* k : all_kernels()) {
    CAPTURE(k->name);
    std::vector<QuantizedGroup> groups(6);
    std::memset(groups.data(), 1, groups.size() * sizeof groups[0]);
    k->quantize_row(row.data(), static_cast<int32_t>(row.size()), groups.data());
    int32_t sum = 127;
    for (int i = 0; i < 63; ++i) {
      const auto want = static_cast<int>(std::nearbyint(row[i]));
      CHECK(groups[0].integers[i] == want);
      sum += want;
    }
    CHECK(groups[0].integers[0] == -32);
    CHECK(groups[0].integers[63] == 127);
    CHECK(groups[0].scale == 1.0f);
    CHECK(groups[0].offset == -128 * sum);
    CHECK(groups[1].scale == 0.0f);
    CHECK(std::isnan(groups[2].scale));
    CHECK(std::isnan(groups[3].scale));
    for (const int g : {1, 2, 3}) CHECK(std::ranges::all_of(groups[g].integers, [](int8_t v) { return v == 0; }));
    CHECK(groups[4].integers[0] == -127);
    CHECK(groups[5].scale == 2.0f);
    CHECK(groups[5].integers[0] == -2);  // of -1.5
    CHECK(groups[5].offset == -128 * 125);
    CHECK(std::all_of(groups[5].integers + 32, groups[5].integers + 64, [](int8_t v) { return v == 0; }));
  }
}

TEST_CASE("cpu kernels: attention of a row does not depend on the rows computed with it, nor on the instruction set") {
  const FlushDenormals flush;
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  const auto kernels = all_kernels();
  for (const auto& [head_dim, group, bf16] : {std::tuple{64, 2, true}, {20, 7, true}, {80, 1, false}, {40, 3, true}}) {
    CAPTURE(head_dim);
    const int32_t padded = (head_dim + 15) / 16 * 16, positions = 75, tiles = 5;
    const int64_t tile_bytes = int64_t{2} * padded * 16 * (bf16 ? 2 : 4);
    AlignedArray<std::byte> memory(static_cast<size_t>(tile_bytes) * 8);
    if (bf16)
      for (size_t i = 0; i < memory.size() / 2; ++i)
        reinterpret_cast<uint16_t*>(memory.data())[i] = float_to_bf16(normal(rng));
    else
      for (size_t i = 0; i < memory.size() / 4; ++i) reinterpret_cast<float*>(memory.data())[i] = normal(rng);
    const std::vector<int32_t> blocks = {6, 0, 3, 7, 1};
    const int64_t stride = static_cast<int64_t>(group) * head_dim;
    std::vector<float> query(positions * stride);
    for (float& q : query) q = bf16_to_float(float_to_bf16(normal(rng)));
    const auto attend = [&](const CpuKernels& k, int32_t first, int32_t rows, std::vector<float>& out) {
      std::vector<float> scratch(attention_scratch_floats(rows, group, head_dim, first + rows - 1));
      k.attention({.kv = {.memory = memory.data(), .blocks = blocks.data(), .block_bytes = tile_bytes, .bf16 = bf16},
                   .position = first,
                   .rows = rows,
                   .group = group,
                   .head_dim = head_dim,
                   .scale = 0.125f,
                   .query = query.data() + first * stride,
                   .query_stride = stride,
                   .out = out.data() + first * stride,
                   .out_stride = stride,
                   .round_out = bf16,
                   .scratch = scratch.data(),
                   .next_kv = {.memory = memory.data(), .blocks = blocks.data(), .block_bytes = tile_bytes, .bf16 = bf16},
                   .next_tiles = (first + rows) % (tiles + 1)});
    };
    static_assert(tiles * 16 >= 75);
    std::vector<float> want(query.size());
    for (int32_t p = 0; p < positions; ++p) attend(*kernels[0], p, 1, want);
    for (const CpuKernels* k : kernels) {
      CAPTURE(k->name);
      for (int trial = 0; trial < 8; ++trial) {
        std::vector<float> got(query.size());
        for (int32_t p = 0; p < positions;) {
          const int32_t rows = std::min<int32_t>(positions - p, 1 + static_cast<int32_t>(rng() % 24));
          attend(*k, p, rows, got);
          p += rows;
        }
        CHECK(differing(got.data(), want.data(), got.size()) == 0);
      }
    }
  }
}

TEST_CASE("cpu kernels: attention to a key that is not a number is NaN in every instruction set") {
  const FlushDenormals flush;
  constexpr int32_t kHeadDim = 32, kPositions = 40, kNanAt = 21;
  constexpr int64_t kTileBytes = int64_t{2} * kHeadDim * 16 * 2;
  const std::vector<int32_t> blocks = {0, 1, 2};
  const std::vector<float> query(kPositions * kHeadDim, 0.5f);
  for (const uint16_t nan : {0x7fc0, 0x7fff, 0x7f81, 0xffc0, 0xffff}) {  // both signs, all payload bits, a signalling one
    CAPTURE(nan);
    AlignedArray<std::byte> memory(kTileBytes * 3);
    auto* const values = reinterpret_cast<uint16_t*>(memory.data());
    for (size_t i = 0; i < memory.size() / 2; ++i) values[i] = float_to_bf16(static_cast<float>(i % 7) * 0.25f - 0.5f);
    values[kNanAt / 16 * kTileBytes / 2 + kNanAt % 16 * 2] = nan;  // its key's first number
    for (const CpuKernels* k : all_kernels()) {
      CAPTURE(k->name);
      std::vector<float> out(query.size());
      for (int32_t rows = 1, p = 0; p < kPositions; p += rows, rows = std::min(rows % 9 + 1, kPositions - p)) {
        std::vector<float> scratch(attention_scratch_floats(rows, 1, kHeadDim, p + rows - 1));
        k->attention({.kv = {.memory = memory.data(), .blocks = blocks.data(), .block_bytes = kTileBytes, .bf16 = true},
                      .position = p,
                      .rows = rows,
                      .group = 1,
                      .head_dim = kHeadDim,
                      .scale = 0.125f,
                      .query = query.data() + p * kHeadDim,
                      .query_stride = kHeadDim,
                      .out = out.data() + p * kHeadDim,
                      .out_stride = kHeadDim,
                      .round_out = true,
                      .scratch = scratch.data()});
      }
      for (int32_t p = 0; p < kPositions; ++p) CHECK(std::isnan(out[static_cast<size_t>(p * kHeadDim)]) == (p >= kNanAt));
    }
  }
}

#if defined(__x86_64__)
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t column_bytes[16] = {};
  uint8_t rows[16] = {};
};

bool amx_usable() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool has = (d >> 22 & 1) && (d >> 24 & 1);           // AMX-BF16, AMX-TILE
  return has && ::syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
}

// One 16 x 16 tile of the product by the processor's own TDPBF16PS.
__attribute__((target("amx-tile,amx-bf16"))) void amx_tile(const uint16_t* x, int32_t columns, const uint16_t* weights,
                                                           float* y, int32_t y_stride) {
  TileConfig config;
  for (int i = 0; i < 3; ++i) config.rows[i] = 16, config.column_bytes[i] = 64;
  asm volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
  _tile_zero(0);
  for (int32_t k = 0; k < columns; k += 32, weights += 1024) {
    asm volatile("" ::"r"(x), "r"(weights) : "memory");
    _tile_loadd(1, x + k, columns * 2);
    _tile_loadd(2, weights, 64);
    _tile_dpbf16ps(0, 1, 2);
  }
  _tile_stored(0, y, y_stride * 4);
  asm volatile("" ::"r"(y) : "memory");
  _tile_release();
}

TEST_CASE("cpu kernels: bf16 GEMM has the bits of the TDPBF16PS instruction") {
  if (!amx_usable()) {
    MESSAGE("skipped: this processor has no AMX");
    return;
  }
  const FlushDenormals flush;
  for (bool extreme : {false, true}) {
    const GemmInput in(16, 4864, 64, extreme, 23);
    std::vector<uint16_t> x(in.x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = float_to_bf16(in.x[i]);
    std::vector<float> want(16 * 64);
    for (int32_t n = 0; n < 64; n += 16)
      amx_tile(x.data(), in.columns, in.weights.data() + n / 32 * 32 * in.columns + n % 32 / 16 * 512, want.data() + n,
               64);
    for (const CpuKernels* kernels : all_kernels()) {
      CAPTURE(kernels->name);
      const std::vector<float> got = multiply(*kernels, in, 0, 16, 0, 2);
      CHECK(differing(got.data(), want.data(), got.size()) == 0);
    }
  }
}
#endif

}  // namespace
}  // namespace seer
