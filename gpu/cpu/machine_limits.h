// MachineLimits: what bounds a step of the CPU engine on this machine, measured: how fast memory is read, and how fast the
// kernels multiply and add with operands in registers. Used by the benchmarks and `seer doctor`.
#pragma once
#include <cstddef>
#include <cstdint>

namespace seer {

struct CpuKernels;
class ThreadPool;

struct MachineLimits {
  double read_gb_s = 0;  // 10^9 bytes
  double gflop_s = 0;    // of the GEMMs; a multiplication and an addition are two operations
};

/// 10^9 operations per second on all threads of the pool, in one burst of a few milliseconds.
double measure_gflop_s(const CpuKernels& kernels, ThreadPool& pool);

/// Both, the best of a few short rounds on as many threads. Takes about a quarter of a second and buffer_bytes of memory.
MachineLimits measure_limits(const CpuKernels& kernels, int32_t threads, size_t buffer_bytes);

}  // namespace seer
