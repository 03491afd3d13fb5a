#include "gpu/cpu/row_softmax.h"

#include "gpu/cpu/cpu_isa.h"
#include "protocols/check.h"

namespace seer {

const RowSoftmaxKernels* row_softmax_kernels(CpuIsa isa) {
  const Result<CpuIsa> resolved = resolve_cpu_isa(isa);
  if (isa == CpuIsa::kAuto) SEER_CHECK(resolved.ok(), resolved.error());
  if (!resolved.ok()) return nullptr;
#if defined(__x86_64__)
  if (*resolved == CpuIsa::kAvx512 || *resolved == CpuIsa::kAmx) return &kAvx512RowSoftmax;
  if (*resolved == CpuIsa::kAvx2 || *resolved == CpuIsa::kAvxVnni) return &kAvx2RowSoftmax;
#endif
  return &kScalarRowSoftmax;
}

}  // namespace seer
