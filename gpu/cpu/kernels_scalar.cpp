#include "gpu/cpu/lanes_scalar.h"

#include "gpu/cpu/kernel_body.h"

namespace seer {

const CpuKernels* scalar_kernels() {
  static constexpr CpuKernels kernels = make_kernels("scalar");
  return &kernels;
}

}  // namespace seer
