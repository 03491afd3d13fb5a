#if defined(__x86_64__)
#include "gpu/cpu/lanes_avx512.h"

#include "gpu/cpu/kernel_body.h"

#include "gpu/cpu/w8a8.h"

namespace seer {

const CpuKernels* avx512_kernels() {
  static const CpuKernels kernels = [] {
    CpuKernels k = make_kernels("avx512");
    // Its first processors lack VNNI.
    k.gemm_w8a8 = __builtin_cpu_supports("avx512vnni") ? gemm_w8a8_avx512vnni : gemm_w8a8_avx2;
    return k;
  }();
  return &kernels;
}

}  // namespace seer
#else
#include "gpu/cpu/kernels.h"

namespace seer {

const CpuKernels* avx512_kernels() { return nullptr; }

}  // namespace seer
#endif
