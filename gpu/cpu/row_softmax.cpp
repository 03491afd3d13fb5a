#include "gpu/cpu/row_softmax.h"

namespace seer {

const RowSoftmaxKernels* row_softmax_kernels(CpuIsa isa) {
#if defined(__x86_64__)
  const bool avx512 = cpu_kernels(CpuIsa::kAvx512) != nullptr, avx2 = cpu_kernels(CpuIsa::kAvx2) != nullptr;
  if (avx512 && (isa == CpuIsa::kAvx512 || isa == CpuIsa::kAuto)) return &kAvx512RowSoftmax;
  if (avx2 && (isa == CpuIsa::kAvx2 || isa == CpuIsa::kAuto)) return &kAvx2RowSoftmax;
#endif
  return isa == CpuIsa::kScalar || isa == CpuIsa::kAuto ? &kScalarRowSoftmax : nullptr;
}

}  // namespace seer
