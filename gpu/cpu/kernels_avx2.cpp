#if defined(__x86_64__)
#include "gpu/cpu/lanes_avx2.h"

#include "gpu/cpu/kernel_body.h"

#include "gpu/cpu/gemm_avx2_body.h"

namespace seer {

const CpuKernels* avx2_kernels() {
  static constexpr CpuKernels kernels = [] {
    CpuKernels k = make_kernels("avx2");
    k.gemm_bf16 = gemm_bf16_avx2;
    k.gemm_int8 = gemm_int8_avx2;
    return k;
  }();
  return &kernels;
}

}  // namespace seer
#else
#include "gpu/cpu/kernels.h"

namespace seer {

const CpuKernels* avx2_kernels() { return nullptr; }

}  // namespace seer
#endif
