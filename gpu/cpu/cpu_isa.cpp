#include "gpu/cpu/cpu_isa.h"

#include <cstdlib>
#include <string_view>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace seer {
namespace {

#if defined(__x86_64__)
// Asks Linux for the tile registers, for all threads of this process. It refuses if the kernel is too old or the signal
// stack of a thread is too small.
bool request_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if (!(d >> 22 & 1) || !(d >> 24 & 1)) return false;  // AMX-BF16, AMX-TILE
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

bool processor_has(CpuIsa isa) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  static const bool amx = avx512 && request_tiles();
  return isa == CpuIsa::kScalar || (isa == CpuIsa::kAvx2 && avx2) ||
         (isa == CpuIsa::kAvxVnni && avx2 && has_avx_vnni()) || (isa == CpuIsa::kAvx512 && avx512) || (isa == CpuIsa::kAmx && amx);
}
#else
bool processor_has(CpuIsa isa) { return isa == CpuIsa::kScalar; }
#endif

}  // namespace

const char* to_string(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kAuto:
      return "auto";
    case CpuIsa::kScalar:
      return "scalar";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvxVnni:
      return "avxvnni";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAmx:
      return "amx";
  }
  return "unknown";
}

Result<CpuIsa> resolve_cpu_isa(CpuIsa isa) {
  if (isa != CpuIsa::kAuto) {
    if (!processor_has(isa)) return fail(Code::kUnavailable, "this processor cannot run the ", to_string(isa), " kernels");
    return isa;
  }
  const char* wanted = std::getenv("SEER_CPU_ISA");
  for (CpuIsa one : {CpuIsa::kAmx, CpuIsa::kAvx512, CpuIsa::kAvxVnni, CpuIsa::kAvx2, CpuIsa::kScalar}) {
    if (wanted != nullptr && wanted != std::string_view(to_string(one))) continue;
    if (processor_has(one)) return one;
    if (wanted != nullptr)
      return fail(Code::kUnavailable, "SEER_CPU_ISA is \"", wanted, "\", which this processor lacks");
  }
  return fail(Code::kInvalidArgument, "SEER_CPU_ISA is \"", wanted, "\", expected scalar, avx2, avxvnni, avx512 or amx");
}

}  // namespace seer
