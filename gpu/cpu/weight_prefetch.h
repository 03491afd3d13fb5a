// Prefetching of the weights that a GEMM streams. Included by the sources of kernels only.
//
// It prefetches far ahead into the L2 cache, which can have many more lines in flight than the L1 cache (about 16), and
// nearer into the L1 cache. Panels follow each other in memory, so this also begins the next one.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpu/cpu/exp_lanes.h"

namespace seer {

/// How far ahead, in bytes.
struct PrefetchDistances {
  int64_t far_bytes, near_bytes;
};
/// For AMD's cores up to Zen 4, and for kernels with tiles, whose assembly would have weight_prefetch read anew for each line.
inline constexpr PrefetchDistances kFarther{.far_bytes = 16384, .near_bytes = 4096};
/// Cores on which kernels prefetch differently, as measured (docs/benchmarks.md). kZen4: AMD's up to Zen 4; kZen5: AMD's later ones.
enum class CoreKind { kOther, kZen4, kZen5 };
/// Of the processor at hand. Constant; in kernels.cpp, which is compiled for any processor.
extern const CoreKind core_kind;
extern const PrefetchDistances weight_prefetch;

namespace {

enum class CacheLevel { kL1, kL2 };
// A prefetch that stays where it is. The compiler moves those of __builtin_prefetch to the beginning of an unrolled loop, where each waits
// for the one before and the loop's loads wait for all. What that gains with AVX2 is in docs/benchmarks.md.
template <CacheLevel kLevel>
SEER_INLINE void prefetch_in_place(const std::byte* line) {
#if defined(__x86_64__)
  if constexpr (kLevel == CacheLevel::kL1)
    asm volatile("prefetcht0 %0" : : "m"(*line));
  else
    asm volatile("prefetcht1 %0" : : "m"(*line));
#else
  __builtin_prefetch(line, 0, kLevel == CacheLevel::kL1 ? 3 : 2);
#endif
}

// The compiler may move these: in place they gain AVX-512's GEMM nothing, and its assembly is slower with six rows.
// REQUIRES: called once for each line of 64 bytes.
SEER_INLINE void prefetch_weights(const void* line, const PrefetchDistances& ahead = weight_prefetch) {
  const char* p = static_cast<const char*>(line);
  __builtin_prefetch(p + ahead.far_bytes, 0, 2);
  __builtin_prefetch(p + ahead.near_bytes);
}

// The same in place.
SEER_INLINE void prefetch_weights_in_place(const void* line) {
  const auto* p = static_cast<const std::byte*>(line);
  prefetch_in_place<CacheLevel::kL2>(p + weight_prefetch.far_bytes);
  prefetch_in_place<CacheLevel::kL1>(p + weight_prefetch.near_bytes);
}

// Where memory is the limit, AMD's cores are faster with one prefetch of the lines in the order of memory, from their own page or the next but
// one. Of what a plain read reaches on one core and on two, with one row of bf16 on a Zen 4: AVX2, 1 KiB ahead, 1.01 and 1.00 instead of
// 0.79 and 0.97; AVX-512, 8 KiB ahead, 0.95 and above instead of 0.62 and 0.86. With int8, whose conversions take as long there, it gains
// nothing. On two cores of a Zen 5: AVX-512, two to six rows of bf16 0.90 to 0.95 instead of 0.78, one row of int8 0.96 instead of 0.75.
// There AVX2 is faster with two prefetches.
constexpr int64_t kInOrderBytes = 8192;
SEER_INLINE void prefetch_weights_in_order(const void* line) { __builtin_prefetch(static_cast<const char*>(line) + kInOrderBytes); }

}  // namespace
}  // namespace seer
