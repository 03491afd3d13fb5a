// CpuKernels::gemm_w8a8 of each instruction set, for the tables of kernels_<isa>.cpp. Those of another processor are null.
#pragma once
#include "gpu/cpu/kernels.h"

namespace seer {

using GemmW8a8 = decltype(CpuKernels::gemm_w8a8);
extern const GemmW8a8 gemm_w8a8_scalar, gemm_w8a8_avx2, gemm_w8a8_avxvnni, gemm_w8a8_avx512vnni;

}  // namespace seer
