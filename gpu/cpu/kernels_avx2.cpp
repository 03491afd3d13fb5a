#if defined(__x86_64__)
#include "gpu/cpu/lanes_avx2.h"

#include "gpu/cpu/kernel_body.h"

#include "gpu/cpu/gemm_avx2_body.h"

#include "gpu/cpu/w8a8.h"

namespace seer {

const CpuKernels* avx2_kernels() {
  static const CpuKernels kernels = [] {
    CpuKernels k = make_kernels("avx2");
    k.gemm_bf16 = gemm_bf16_avx2;
    k.gemm_int8 = gemm_int8_avx2;
    k.gemm_w8a8 = gemm_w8a8_avx2;
    return k;
  }();
  return &kernels;
}

const CpuKernels* avx_vnni_kernels() {
  static const CpuKernels kernels = [] {
    CpuKernels k = *avx2_kernels();
    k.name = "avxvnni";
    k.gemm_w8a8 = gemm_w8a8_avxvnni;
    return k;
  }();
  return &kernels;
}

}  // namespace seer
#else
#include "gpu/cpu/kernels.h"

namespace seer {

const CpuKernels* avx2_kernels() { return nullptr; }
const CpuKernels* avx_vnni_kernels() { return nullptr; }

}  // namespace seer
#endif
