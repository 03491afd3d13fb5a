// What AVX2's two kinds of w8a8's dot products share: eight outputs of floats. Included by w8a8_avx2.cpp and w8a8_avxvnni.cpp only.
#pragma once
#include <immintrin.h>

#include "gpu/cpu/exp_lanes.h"

namespace seer {
namespace {

struct EightOutputs {
  using I = __m256i;
  using F = __m256;
  static constexpr int kOutputs = 8;

  static SEER_INLINE __m256i four_inputs(const int8_t* x) {
    int32_t bytes;
    __builtin_memcpy(&bytes, x, 4);
    return _mm256_set1_epi32(bytes);
  }
  static SEER_INLINE __m256i line(const int8_t* w) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)); }
  static SEER_INLINE F floats(I a) { return _mm256_cvtepi32_ps(a); }
  static SEER_INLINE F set1(float a) { return _mm256_set1_ps(a); }
  static SEER_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
  static SEER_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static SEER_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static SEER_INLINE void store(float* p, F a) { _mm256_storeu_ps(p, a); }
};

}  // namespace
}  // namespace seer
