// The arithmetic of sampling over one row of logits: its maximum, and sums of exp((logit - max) / temperature).
// Built once per instruction set, the same bits from each, whatever the thread's denormal mode. Used by
// gpu/sampler.cpp.
//
// Logits are clamped to the finite floats; NaN becomes the lowest of them.
// The order of every sum is fixed: ids are cut into parts of kPartIds; within a part, sixteen double sums take the ids
// equal to 0..15 modulo 16 in ascending order and are then added as a tree (l and l + 8, l + 4, l + 2, l + 1).
#pragma once
#include <cstdint>

#include "gpu/cpu/kernels.h"

namespace seer {

inline constexpr int64_t kPartIds = 1024;

struct RowMax {
  float largest = 0;
  bool finite = true;  // no logit is NaN or infinite
};

struct RowSoftmaxKernels {
  /// Largest of `count` >= 1 logits.
  RowMax (*max)(const float* logits, int64_t count);
  /// sums[p] = sum of exp((logit - max) / temperature) over part p, for all ceil(count / kPartIds) parts.
  void (*exp_sums)(const float* logits, int64_t count, float max, float temperature, double* sums);
};

/// The kernels for `isa`, or null if resolve_cpu_isa() (cpu_isa.h) gives an error. REQUIRES: it gives none for kAuto
/// (make_cpu_engine() refuses such an environment).
const RowSoftmaxKernels* row_softmax_kernels(CpuIsa isa);

// Defined by row_softmax_<isa>.cpp.
extern const RowSoftmaxKernels kScalarRowSoftmax, kAvx2RowSoftmax, kAvx512RowSoftmax;

}  // namespace seer
