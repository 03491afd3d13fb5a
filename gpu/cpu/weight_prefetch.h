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

}  // namespace
}  // namespace seer
