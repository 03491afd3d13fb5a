// Which instruction set the CPU kernels use. The environment variable SEER_CPU_ISA (scalar, avx2, avxvnni, avx512 or amx)
// replaces kAuto, so that tests can run a whole program on the kernels of an older processor. It is read here rather than
// passed as an option because all kernels give the same bits: it changes nothing that a user could ask for.
#pragma once
#include "gpu/cpu/kernels.h"
#include "protocols/result.h"

namespace seer {

/// "auto", "scalar", ...
const char* to_string(CpuIsa isa);

/// `isa`, or for kAuto what SEER_CPU_ISA says, or else the fastest that the processor has.
/// Errors: kInvalidArgument (an unknown value), kUnavailable (the processor or the build lacks it).
Result<CpuIsa> resolve_cpu_isa(CpuIsa isa);

}  // namespace seer
