#if defined(__x86_64__)
#include "gpu/cpu/lanes_avx512.h"

#include "gpu/cpu/kernel_body.h"

namespace seer {

const CpuKernels* avx512_kernels() {
  static constexpr CpuKernels kernels = make_kernels("avx512");
  return &kernels;
}

}  // namespace seer
#else
#include "gpu/cpu/kernels.h"

namespace seer {

const CpuKernels* avx512_kernels() { return nullptr; }

}  // namespace seer
#endif
