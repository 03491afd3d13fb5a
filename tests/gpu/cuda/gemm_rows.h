// Each bf16 GEMM kernel by itself, on the emulation or on a GPU: the bits of a row do not depend on the kernel, the tile, nor the
// number of rows.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gpu/cpu/float_bits.h"
#include "gpu/cuda/cuda_bench.h"

namespace seer {

inline std::vector<uint16_t> random_bf16(size_t count, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<uint16_t> values(count);
  for (uint16_t& v : values) v = float_to_bf16(normal(rng) * std::ldexp(1.0f, static_cast<int>(rng() % 9) - 4));
  return values;
}

/// What a GEMM makes: sums in two parts, or what is activated, with biases or without.
enum class GemmOut { kSums, kActivated, kActivatedWithBias };

class GemmBench {
 public:
  static constexpr int32_t kColumns = 320;
  static constexpr int32_t kInner = kColumns / 2 - 3;  // the last columns have no bias

  GemmBench(int32_t rows, int32_t steps) : rows_(rows), steps_(steps), device_(simt::make_simt_device({})) {
    const auto a = random_bf16(static_cast<size_t>(rows) * static_cast<size_t>(steps), 1);
    const auto w = random_bf16(size_t{kColumns} * static_cast<size_t>(steps), 2);
    std::vector<float> bias(kColumns);
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i % 7) * 0.25f;
    a_ = put_on(*device_, a);
    w_ = put_on(*device_, w);
    bias_ = put_on(*device_, bias);
    plan_ = *device_->allocate(sizeof(cuda::Plan));
    out_ = *device_->allocate(out_bytes());
    host_ = *device_->allocate_pinned(out_bytes());
  }
  bool has_group_mma() const { return device_->properties().group_mma; }

  /// Rows [first, first + rows), which are those of the plan, or the samples that follow some others.
  std::vector<uint32_t> run(const cuda::GemmKernel& kernel, int32_t first, int32_t rows, GemmOut out, bool samples = false) {
    Result<std::vector<uint32_t>> words = try_run(kernel, first, rows, out, samples);
    REQUIRE_MESSAGE(words.ok(), words.error().detail);
    return *std::move(words);
  }
  /// Errors: findings.
  Result<std::vector<uint32_t>> try_run(const cuda::GemmKernel& kernel, int32_t first, int32_t rows, GemmOut out, bool samples = false) {
    constexpr int32_t kOthers = 3;
    const bool activated = out != GemmOut::kSums;
    const cuda::Plan plan{.rows = samples ? 0 : rows, .samples = kOthers + rows};
    device_->copy_in(cuda::Stream::kSteps, plan_, &plan, sizeof plan);
    device_->clear(cuda::Stream::kSteps, out_, out_bytes());
    const int32_t parts = activated ? 1 : 2;
    cuda::GemmArgs args{.plan = reinterpret_cast<cuda::Plan*>(plan_), .a = a_ + int64_t{first} * steps_ * 2, .w = w_,
                        .c = reinterpret_cast<float*>(out_), .part_stride = int64_t{rows} * kColumns};
    if (activated) {
      args.activated = out_;
      args.bias = out == GemmOut::kActivatedWithBias ? reinterpret_cast<float*>(bias_) : nullptr;
      args.inner = kInner;
      args.activated_stride = kColumns / 2;
    }
    args.samples = samples;
    args.first_sample = kOthers;
    args.n = kColumns;
    args.k = steps_ / parts;
    args.stride = steps_;
    const auto tiles = [](int32_t n, int32_t tile) { return (n + tile - 1) / tile; };
    device_->launch(cuda::Stream::kSteps, kernel.id, {tiles(rows, kernel.tile_rows) + 1, tiles(kColumns, kernel.tile_columns), parts}, args);
    const int64_t bytes = activated ? int64_t{rows} * kColumns / 2 * 2 : int64_t{rows} * kColumns * 4 * parts;
    device_->copy_out(cuda::Stream::kSteps, host_, out_, bytes);
    const Status status = device_->wait(device_->record(cuda::Stream::kSteps));
    if (!status.ok()) return status.error();
    std::vector<uint32_t> words(static_cast<size_t>(bytes / 4));
    std::memcpy(words.data(), host_, static_cast<size_t>(bytes));
    return words;
  }

 private:
  int64_t out_bytes() const { return int64_t{2} * rows_ * kColumns * 4; }
  const int32_t rows_, steps_;
  const std::unique_ptr<cuda::Device> device_;
  std::byte *a_ = nullptr, *w_ = nullptr, *bias_ = nullptr, *plan_ = nullptr, *out_ = nullptr, *host_ = nullptr;
};

/// Of each kernel the rows [0, n) for each n of `rows`, against the kernel for few rows, with which some rows are also computed alone.
inline void check_gemm_rows(const std::vector<int32_t>& rows, int32_t steps) {
  const int32_t most = std::ranges::max(rows);
  GemmBench bench(most, steps);
  for (const GemmOut out : {GemmOut::kSums, GemmOut::kActivated, GemmOut::kActivatedWithBias}) {
    const int32_t row_words = out == GemmOut::kSums ? GemmBench::kColumns : GemmBench::kColumns / 4;
    const auto at = [row_words](const std::vector<uint32_t>& words, int32_t n, size_t part, size_t row, size_t column) {
      return words[(part * static_cast<size_t>(n) + row) * static_cast<size_t>(row_words) + column];
    };
    const std::vector<uint32_t> want = bench.run(cuda::kGemmKernels[0], 0, most, out);
    for (int32_t row = 0; row < most; row += 13) {
      const std::vector<uint32_t> alone = bench.run(cuda::kGemmKernels[0], row, 1, out);
      int different = 0;
      for (size_t i = 0; i < alone.size(); ++i)
        different += alone[i] != at(want, most, i / static_cast<size_t>(row_words), static_cast<size_t>(row), i % static_cast<size_t>(row_words));
      CHECK(different == 0);
    }
    for (const cuda::GemmKernel& kernel : cuda::kGemmKernels) {
      if (kernel.gpu == cuda::GemmKernel::kGroupMma && !bench.has_group_mma()) continue;
      CAPTURE(cuda::info_of(kernel.id).name);
      for (const int32_t n : rows) {
        CAPTURE(n);
        const std::vector<uint32_t> got = bench.run(kernel, 0, n, out);
        if (n <= cuda::kSamplesMax) CHECK(bench.run(kernel, 0, n, out, true) == got);
        int different = 0;
        for (size_t i = 0; i < got.size(); ++i) {  // [part][row][column]
          const size_t row = i / static_cast<size_t>(row_words) % static_cast<size_t>(n), part = i / static_cast<size_t>(row_words * n);
          different += got[i] != at(want, most, part, row, i % static_cast<size_t>(row_words));
        }
        CHECK(different == 0);
      }
    }
  }
}

}  // namespace seer
