// The norms alone, on rows of any size: launched on the emulated device and compared with sums in double.
#pragma once
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "gpu/cpu/float_bits.h"
#include "gpu/cuda/cuda_bench.h"
#include "gpu/cuda/cuda_forward.h"

namespace seer {

struct NormCase {
  int32_t size = 0, parts = 0;  // 0: nothing is added
  bool bias = false, samples = false;
  bool f32 = false;  // norm_f32, not norm_bf16
};

/// Three rows, or of those the third and the second as samples.
inline void check_norm_rows(const NormCase& c) {
  using namespace cuda;
  CAPTURE(c.size);
  CAPTURE(c.parts);
  CAPTURE(c.bias);
  CAPTURE(c.samples);
  CAPTURE(c.f32);
  constexpr int32_t kRows = 3;
  constexpr float kEps = 1e-6f;
  const int32_t stride = padded(c.size, kGemmSteps);
  const auto device = simt::make_simt_device({});
  std::mt19937_64 rng(static_cast<uint64_t>(c.size));
  std::normal_distribution<float> normal;
  const auto rows_of = [&](int32_t rows) {  // padded with zeros
    std::vector<float> values(static_cast<size_t>(rows) * static_cast<size_t>(stride));
    for (int32_t row = 0; row < rows; ++row)
      for (int32_t i = 0; i < c.size; ++i) values[static_cast<size_t>(row * stride + i)] = normal(rng);
    return values;
  };
  Pass pass;
  pass.rows.resize(kRows);
  pass.samples = {{.row = 0}, {.row = 2}, {.row = 1}};
  std::vector<std::byte> plan(static_cast<size_t>(CudaForward::plan_bytes(kRows)));
  CudaForward::write_plan(pass, plan.data());
  std::vector<float> hidden = rows_of(kRows);
  const std::vector<float> added = rows_of(kRows * std::max(1, c.parts)), bias = rows_of(1), weight = rows_of(1);
  std::byte* const on_device = put_on(*device, hidden);
  const size_t element_bytes = c.f32 ? 4 : 2;
  std::vector<std::byte> out(hidden.size() * element_bytes);
  std::byte* const out_on_device = put_on(*device, out);
  const NormArgs args{.plan = reinterpret_cast<const Plan*>(put_on(*device, plan)),
                      .hidden = reinterpret_cast<float*>(on_device),
                      .added = c.parts > 0 ? reinterpret_cast<const float*>(put_on(*device, added)) : nullptr,
                      .bias = c.bias ? reinterpret_cast<const float*>(put_on(*device, bias)) : nullptr,
                      .weight = reinterpret_cast<const float*>(put_on(*device, weight)),
                      .out = out_on_device,
                      .part_stride = int64_t{kRows} * stride,
                      .parts = std::max(1, c.parts),
                      .size = c.size,
                      .hidden_stride = stride,
                      .added_stride = stride,
                      .out_stride = stride,
                      .eps = kEps,
                      .samples = c.samples,
                      .first_sample = c.samples};
  device->launch(Stream::kSteps, c.f32 ? KernelId::k_norm_f32 : KernelId::k_norm_bf16, {c.samples ? 3 : 4}, args);  // a row too many
  std::vector<float> hidden_after(hidden.size());
  device->copy_out(Stream::kSteps, hidden_after.data(), on_device, std::ssize(hidden) * 4);
  device->copy_out(Stream::kSteps, out.data(), out_on_device, std::ssize(out));
  const Status status = device->wait(device->record(Stream::kSteps));
  REQUIRE_MESSAGE(status.ok(), status.error().detail);

  const std::vector<float> before = hidden;
  for (size_t i = 0; i < hidden.size() && c.parts > 0; ++i) {
    float sum = added[i];
    for (int32_t p = 1; p < c.parts; ++p) sum += added[static_cast<size_t>(p) * hidden.size() + i];
    hidden[i] += c.bias ? sum + bias[i % static_cast<size_t>(stride)] : sum;
  }
  CHECK(hidden_after == (c.samples ? before : hidden));
  const std::vector<int32_t> rows = c.samples ? std::vector<int32_t>{2, 1} : std::vector<int32_t>{0, 1, 2};
  for (size_t at = 0; at < rows.size(); ++at) {
    const float* x = &hidden[static_cast<size_t>(rows[at] * stride)];
    double squares = 0;
    for (int32_t i = 0; i < c.size; ++i) squares += double{x[i]} * x[i];
    const double scale = 1 / std::sqrt(squares / c.size + kEps);
    int32_t wrong = 0;
    for (int32_t i = 0; i < (c.f32 ? c.size : stride); ++i) {  // in bf16 with zeros behind
      const double want = x[i] * scale * weight[static_cast<size_t>(i)];
      const std::byte* y = &out[(at * static_cast<size_t>(stride) + static_cast<size_t>(i)) * element_bytes];
      float got = 0;
      if (c.f32)
        std::memcpy(&got, y, 4);
      else
        got = bf16_to_float(static_cast<uint16_t>(std::to_integer<int>(y[0]) | std::to_integer<int>(y[1]) << 8));
      wrong += std::abs(got - want) > std::abs(want) / (c.f32 ? 1e5 : 250);  // 2^-8, and what f32 rounds
    }
    CHECK(wrong == 0);
  }
}

/// Rows that registers hold and longer ones, up to five parts.
inline std::vector<NormCase> norm_cases() {
  const int32_t kept = cuda::kNormThreads * cuda::kNormPieces * 4;
  return {{.size = 4}, {.size = 62, .parts = 1}, {.size = 580, .parts = 2, .bias = true}, {.size = 2049, .parts = 1, .samples = true},
          {.size = 3584, .parts = 1}, {.size = 5120, .parts = 4, .bias = true}, {.size = kept - 1, .parts = 3}, {.size = kept, .parts = 5},
          {.size = kept + 1, .parts = 1, .bias = true, .samples = true}, {.size = kept + 68}, {.size = kept + 68, .parts = 1},
          {.size = 2 * kept + 8, .parts = 4, .bias = true}, {.size = kept + 4, .parts = 2, .samples = true},
          {.size = 580, .f32 = true}, {.size = 580, .parts = 1, .bias = true, .f32 = true}, {.size = 260, .parts = 2, .f32 = true},
          {.size = 580, .parts = 3, .bias = true, .f32 = true}, {.size = 260, .parts = 2, .bias = true, .samples = true, .f32 = true},
          {.size = kept + 4, .parts = 3, .samples = true}, {.size = 260, .parts = 3, .samples = true, .f32 = true}, {.size = 8, .f32 = true},
          {.size = 64, .parts = 1, .samples = true, .f32 = true}};
}

}  // namespace seer
