#include "gpu/cpu/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "gpu/cpu/cpu_isa.h"
#include "gpu/cpu/weight_prefetch.h"

namespace seer {
namespace {

CoreKind find_core_kind() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__builtin_cpu_is("amd") == 0 || __get_cpuid(1, &a, &b, &c, &d) == 0) return CoreKind::kOther;
  const unsigned family = ((a >> 8) & 0xf) + ((a >> 20) & 0xff);
  return family >= 0x1a ? CoreKind::kZen5 : CoreKind::kZen4;
#else
  return CoreKind::kOther;
#endif
}

PrefetchDistances distances_of(CoreKind kind) {
  if (kind == CoreKind::kZen5) return {.far_bytes = 12288, .near_bytes = 6144};
  return kind == CoreKind::kZen4 ? kFarther : PrefetchDistances{.far_bytes = 7168, .near_bytes = 1024};
}

}  // namespace

const CoreKind core_kind = find_core_kind();
const PrefetchDistances weight_prefetch = distances_of(core_kind);

const CpuKernels* cpu_kernels(CpuIsa isa) {
  const Result<CpuIsa> resolved = resolve_cpu_isa(isa);
  if (!resolved.ok()) return nullptr;
  switch (*resolved) {
    case CpuIsa::kAmx:
      return amx_kernels();
    case CpuIsa::kAvx512:
      return avx512_kernels();
    case CpuIsa::kAvxVnni:
      return avx_vnni_kernels();
    case CpuIsa::kAvx2:
      return avx2_kernels();
    case CpuIsa::kScalar:
    case CpuIsa::kAuto:
      break;
  }
  return scalar_kernels();
}

}  // namespace seer
