// The one source of all CPU kernels. Each kernels_<isa>.cpp defines `Lanes` and includes this file; everything is in
// anonymous namespaces and nothing from the standard library is instantiated, so that code built with the flags of one
// instruction set can never be linked into another.
#pragma once
#include "gpu/cpu/kernels.h"

// Each part uses Lanes of the including file and the parts before it.
#include "gpu/cpu/gemm_body.h"

#include "gpu/cpu/row_body.h"

#include "gpu/cpu/attention_body.h"

#include "gpu/cpu/peak_body.h"

namespace seer {
namespace {

constexpr CpuKernels make_kernels(const char* name) {
  return {.name = name,
          .gemm_bf16 = gemm<uint16_t>,
          .gemm_int8 = gemm<int8_t>,
          .gemm_bf16_tiles = nullptr,
          .gemm_int8_tiles = nullptr,
          .quantize_row = quantize_row,
          .gemm_w8a8 = nullptr,
          .gemm_f32 = gemm<float>,
          .rms_norm = rms_norm,
          .rope = rope,
          .swiglu = swiglu,
          .add = add,
          .attention = attention,
          .fma_chains = fma_chains};
}

}  // namespace
}  // namespace seer
