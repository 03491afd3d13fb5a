// Denormal modes of the calling thread. TDPBF16PS always flushes denormals; every thread that computes for an engine
// does the same, so that all instruction sets give equal bits. New threads do not inherit this: each sets it for
// itself.
#pragma once
#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace seer {

/// Flushes denormal inputs and results to zero on this thread while it lives.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  explicit FlushDenormals(bool on = true) : before_(_mm_getcsr()) {
    _mm_setcsr(on ? before_ | kFlushBits : before_ & ~kFlushBits);
  }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  static constexpr uint32_t kFlushBits = 0x8040;  // FTZ | DAZ
  uint32_t before_;
#else
  explicit FlushDenormals(bool = true) {}
  ~FlushDenormals() {}

 public:
#endif
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;
};

}  // namespace seer
