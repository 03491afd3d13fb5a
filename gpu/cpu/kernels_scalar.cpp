#include "gpu/cpu/lanes_scalar.h"

#include "gpu/cpu/kernel_body.h"

#include "gpu/cpu/w8a8.h"

namespace seer {

const CpuKernels* scalar_kernels() {
  static const CpuKernels kernels = [] {
    CpuKernels k = make_kernels("scalar");
    k.gemm_w8a8 = gemm_w8a8_scalar;
    return k;
  }();
  return &kernels;
}

}  // namespace seer
