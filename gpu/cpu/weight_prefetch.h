// Prefetching of the weights that a GEMM streams. Included by kernel sources only (gemm_body.h, tile_gemm_body.h).
//
// It prefetches far ahead into the L2 cache, which can have many more lines in flight than the L1 cache (about 16), and
// nearer into the L1 cache. Panels follow each other in memory, so this also begins the next one. The distances are
// measured on one core, 896x4864 from memory, medians: bf16 at 1 / 4 / 16 rows 570 / 706 / 1386 us with one prefetch 2 KiB
// ahead, 514 / 545 / 1240 us with both; int8 at 1 / 4 rows 355 / 403 and 285 / 361 us. A plain read of the bf16 bytes takes
// 503 us.
#pragma once
#include <cstdint>

#include "gpu/cpu/exp_lanes.h"

namespace seer {
namespace {

constexpr int64_t kFarBytes = 16384, kNearBytes = 4096;

// REQUIRES: called once for each line of 64 bytes.
SEER_INLINE void prefetch_weights(const void* line) {
  const char* p = static_cast<const char*>(line);
  __builtin_prefetch(p + kFarBytes, 0, 2);
  __builtin_prefetch(p + kNearBytes);
}

// With one row of bf16, whose limit is memory, AMD's cores are faster with one prefetch of the lines in the order of memory, from their own
// page or the next but one. On a Zen 4, of what a plain read reaches on one core and on two: AVX2, 1 KiB ahead, 1.01 and 1.00 instead of
// 0.79 and 0.97; AVX-512, 8 KiB ahead, 0.95 and above instead of 0.62 and 0.86. With int8, whose conversions take as long, it gains nothing.
constexpr int64_t kInOrderBytes = 8192;
SEER_INLINE void prefetch_weights_in_order(const void* line) { __builtin_prefetch(static_cast<const char*>(line) + kInOrderBytes); }
/// Kernels prefetch differently there.
SEER_INLINE bool runs_on_amd() {
#if defined(__x86_64__)
  static const bool is_amd = __builtin_cpu_is("amd") != 0;
  return is_amd;
#else
  return false;
#endif
}

}  // namespace
}  // namespace seer
