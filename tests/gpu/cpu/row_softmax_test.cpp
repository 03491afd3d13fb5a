#include "gpu/cpu/row_softmax.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "gpu/cpu/denormals.h"
#include "gpu/cpu/exact_math.h"

using namespace seer;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kHighest = std::numeric_limits<float>::max();

float clamped(float x) { return std::isnan(x) ? -kHighest : std::min(std::max(x, -kHighest), kHighest); }

std::vector<float> random_row(std::mt19937_64& rng, size_t count, bool odd_values) {
  std::vector<float> row(count);
  std::normal_distribution<float> normal(0, 8);
  const float odd[] = {kInf, -kInf, std::nanf(""), 1e-40f, -1e-40f, 0.0f, -0.0f, kHighest, -kHighest, 88.0f};
  for (float& x : row) x = odd_values && rng() % 8 == 0 ? odd[rng() % std::size(odd)] : normal(rng);
  return row;
}

}  // namespace

TEST_CASE("row softmax: every instruction set gives the bits of the written order of additions") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    const size_t count = seed <= 40 ? seed : 1 + rng() % 5000;
    const auto row = random_row(rng, count, seed % 2 == 0);
    const float temperatures[] = {1.0f, 0.7f, 1e-4f, 100.0f};
    const float temperature = temperatures[rng() % 4];

    float max = -kHighest;
    for (float x : row) max = std::max(max, clamped(x));
    std::vector<double> sums;
    for (size_t begin = 0; begin < count; begin += kPartIds) {
      double lanes[16] = {};
      for (size_t i = begin; i < std::min(count, begin + kPartIds); ++i)
        lanes[i % 16] += static_cast<double>(exact_exp((clamped(row[i]) - max) / temperature));
      for (int half : {8, 4, 2, 1})
        for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
      sums.push_back(lanes[0]);
    }
    for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvxVnni, CpuIsa::kAvx512, CpuIsa::kAmx}) {
      CAPTURE(static_cast<int>(isa));
      const RowSoftmaxKernels* kernel = row_softmax_kernels(isa);
      if (kernel == nullptr) continue;
      for (bool flush : {false, true}) {
        FlushDenormals mode(flush);
        const RowMax got_max = kernel->max(row.data(), static_cast<int64_t>(count));
        REQUIRE(got_max.largest == max);
        REQUIRE(got_max.finite == std::ranges::all_of(row, [](float x) { return std::isfinite(x); }));
        std::vector<double> got(sums.size());
        kernel->exp_sums(row.data(), static_cast<int64_t>(count), max, temperature, got.data());
        for (size_t p = 0; p < sums.size(); ++p)
          REQUIRE(std::bit_cast<uint64_t>(got[p]) == std::bit_cast<uint64_t>(sums[p]));
      }
    }
  }
}

TEST_CASE("row softmax: one logit that is not finite is seen at any place of a row, and nothing finite is taken for it") {
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvxVnni, CpuIsa::kAvx512, CpuIsa::kAmx}) {
    CAPTURE(static_cast<int>(isa));
    const RowSoftmaxKernels* kernel = row_softmax_kernels(isa);
    if (kernel == nullptr) continue;
    for (const size_t count : {1, 15, 16, 17, 47, 1024}) {
      CAPTURE(count);
      for (size_t at = 0; at < count; ++at) {
        CAPTURE(at);
        for (const float bad : {kInf, -kInf, std::nanf(""), -std::nanf("")}) {
          std::vector<float> row(count, 1.0f);
          row[at] = bad;
          REQUIRE_FALSE(kernel->max(row.data(), static_cast<int64_t>(count)).finite);
        }
        for (const float good : {kHighest, -kHighest, 1e-40f, -0.0f}) {
          std::vector<float> row(count, kHighest);
          row[at] = good;
          REQUIRE(kernel->max(row.data(), static_cast<int64_t>(count)).finite);
        }
      }
    }
  }
}
