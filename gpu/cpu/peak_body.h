// The most arithmetic that the instruction set allows: operations on registers only, to measure a limit. Part of
// kernel_body.h.
#pragma once

namespace seer {
namespace {

// CpuKernels::fma_chains: enough independent chains to hide the latency of an FMA (4 cycles, two per cycle).
int64_t fma_chains(int64_t rounds, float* sum) {
  constexpr int kChains = Lanes::kPeakChains;
  Lanes::F sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = Lanes::set1(static_cast<float>(i));
  const Lanes::F factor = Lanes::set1(0.999f), step = Lanes::set1(0.001f);  // towards 1, so nothing is ever denormal
  for (int64_t round = 0; round < rounds; ++round)
    for (int i = 0; i < kChains; ++i) sums[i] = Lanes::fma(sums[i], factor, step);
  for (int i = 1; i < kChains; ++i) sums[0] = Lanes::add(sums[0], sums[i]);
  *sum = Lanes::sum(sums[0]);
  return rounds * kChains * 16 * 2;
}

}  // namespace
}  // namespace seer
