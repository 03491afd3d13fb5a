#include "gpu/cpu/kernels.h"

namespace seer {

const CpuKernels* cpu_kernels(CpuIsa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  const bool avx2 = false, avx512 = false;
#endif
  switch (isa) {
    case CpuIsa::kAvx512:
      return avx512 ? avx512_kernels() : nullptr;
    case CpuIsa::kAvx2:
      return avx2 ? avx2_kernels() : nullptr;
    case CpuIsa::kScalar:
      return scalar_kernels();
    case CpuIsa::kAuto:
      break;
  }
  return avx512 ? avx512_kernels() : avx2 ? avx2_kernels() : scalar_kernels();
}

}  // namespace seer
