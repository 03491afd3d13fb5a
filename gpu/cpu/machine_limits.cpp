#include "gpu/cpu/machine_limits.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "gpu/cpu/kernels.h"
#include "gpu/cpu/read_stream.h"
#include "gpu/cpu/thread_pool.h"

namespace seer {
namespace {

constexpr int32_t kTasksPerThread = 8;    // so that a thread that starts late costs little
constexpr int64_t kTaskRounds = 1 << 15;  // 0.1 to 0.3 ms
constexpr int64_t kTrialRounds = 1 << 8;
constexpr double kTrialUsMax = 500;  // the portable kernels take longer: then the trial is the measurement
constexpr int kLimitRounds = 5;

// Microseconds of a burst, and its operations.
std::pair<double, int64_t> burst(const CpuKernels& kernels, ThreadPool& pool, int64_t rounds) {
  std::vector<float> sums(static_cast<size_t>(kTasksPerThread) * pool.threads());
  std::vector<int64_t> operations(sums.size());
  const auto begin = std::chrono::steady_clock::now();
  pool.run(static_cast<int32_t>(sums.size()), [&](int32_t task, int32_t) {
    const auto i = static_cast<size_t>(task);
    operations[i] = kernels.fma_chains(rounds, &sums[i]);
  });
  const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  return {us, std::accumulate(operations.begin(), operations.end(), int64_t{0})};
}

}  // namespace

double measure_gflop_s(const CpuKernels& kernels, ThreadPool& pool) {
  auto [us, operations] = burst(kernels, pool, kTrialRounds);
  if (us < kTrialUsMax) std::tie(us, operations) = burst(kernels, pool, kTaskRounds);
  return static_cast<double>(operations) / us * 1e-3;
}

MachineLimits measure_limits(const CpuKernels& kernels, int32_t threads, size_t buffer_bytes) {
  ThreadPool pool(threads);
  ReadStream stream(pool, buffer_bytes);
  MachineLimits limits;
  for (int round = 0; round < kLimitRounds; ++round) {
    limits.read_gb_s = std::max(limits.read_gb_s, stream.measure_gb_s());
    limits.gflop_s = std::max(limits.gflop_s, measure_gflop_s(kernels, pool));
  }
  return limits;
}

}  // namespace seer
