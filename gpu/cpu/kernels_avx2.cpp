#if defined(__x86_64__)
#include "gpu/cpu/lanes_avx2.h"

#include "gpu/cpu/kernel_body.h"

namespace seer {

const CpuKernels* avx2_kernels() {
  static constexpr CpuKernels kernels = make_kernels("avx2");
  return &kernels;
}

}  // namespace seer
#else
#include "gpu/cpu/kernels.h"

namespace seer {

const CpuKernels* avx2_kernels() { return nullptr; }

}  // namespace seer
#endif
