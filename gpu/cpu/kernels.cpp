#include "gpu/cpu/kernels.h"

#include "gpu/cpu/cpu_isa.h"
#include "gpu/cpu/weight_prefetch.h"

namespace seer {

const PrefetchDistances weight_prefetch = runs_on_amd() ? kFarther : PrefetchDistances{.far_bytes = 7168, .near_bytes = 1024};

const CpuKernels* cpu_kernels(CpuIsa isa) {
  const Result<CpuIsa> resolved = resolve_cpu_isa(isa);
  if (!resolved.ok()) return nullptr;
  switch (*resolved) {
    case CpuIsa::kAmx:
      return amx_kernels();
    case CpuIsa::kAvx512:
      return avx512_kernels();
    case CpuIsa::kAvx2:
      return avx2_kernels();
    case CpuIsa::kScalar:
    case CpuIsa::kAuto:
      break;
  }
  return scalar_kernels();
}

}  // namespace seer
