// Sixteen float lanes as one AVX-512 register. Included by kernels_avx512.cpp and row_softmax_avx512.cpp only.
#pragma once
// GCC 12 warns about the deliberately undefined operands inside its own AVX-512 header once they are inlined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <cstdint>

#include "gpu/cpu/exp_lanes.h"

namespace seer {
namespace {

struct Lanes {
  using F = __m512;
  using I = __m512i;
  // Rows that share one pass over the weights, and 16-lane columns of a panel that are computed together: with 32
  // registers, 6 rows x 2 columns x 2 sums + 4 for weights + 2 for inputs.
  static constexpr int kGemmRows = 6, kGemmColumns = 2;
  // Queries of attention that share a pass, and those for which a pass computes even and odd sums.
  static constexpr int kAttentionRows = 8, kOnePassRows = 8;
  static constexpr int kHalvesAhead = 4;  // of KV that attention prefetches into the L1 cache
  static constexpr bool kZen5KvIntoL1 = true;  // there attention prefetches KV into the L1 cache, not the L2
  static constexpr int kPeakChains = 12;

  static SEER_INLINE F set1(float x) { return _mm512_set1_ps(x); }
  static SEER_INLINE I set1_i(int32_t x) { return _mm512_set1_epi32(x); }
  static SEER_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
  static SEER_INLINE void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static SEER_INLINE __mmask16 first(int count) { return static_cast<__mmask16>((1u << count) - 1u); }
  static SEER_INLINE F load_first(const float* p, int count) { return _mm512_maskz_loadu_ps(first(count), p); }
  static SEER_INLINE void store_first(float* p, F a, int count) { _mm512_mask_storeu_ps(p, first(count), a); }
  static SEER_INLINE void load_pairs(const uint16_t* p, F& even, F& odd) {
    const __m512i a = _mm512_loadu_si512(p);
    even = _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
    odd = _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u))));
  }
  static SEER_INLINE F load_int8(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static SEER_INLINE void load_pairs(const int8_t* p, F& even, F& odd) {
    even = load_int8(p);
    odd = load_int8(p + 16);
  }
  static SEER_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static SEER_INLINE void add_product(F& sum, F a, F b) { sum = fma(a, b, sum); }
  static SEER_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
  static SEER_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static SEER_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static SEER_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
  static SEER_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
  static SEER_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
  static SEER_INLINE F select_less(F a, F b, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
  }
  static SEER_INLINE F zero_if_less(F a, F b, F no) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ), no);
  }
  static SEER_INLINE F select_nan(F a, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), no, yes);
  }
  static SEER_INLINE F select_first(int count, F yes, F no) { return _mm512_mask_blend_ps(first(count), no, yes); }
  static SEER_INLINE I bits(F a) { return _mm512_castps_si512(a); }
  static SEER_INLINE F from_bits(I a) { return _mm512_castsi512_ps(a); }
  static SEER_INLINE I add_i(I a, I b) { return _mm512_add_epi32(a, b); }
  static SEER_INLINE I sub_i(I a, I b) { return _mm512_sub_epi32(a, b); }
  static SEER_INLINE I min_u(I a, I b) { return _mm512_min_epu32(a, b); }
  static SEER_INLINE I and_i(I a, I b) { return _mm512_and_si512(a, b); }
  template <int kBits>
  static SEER_INLINE I shl(I a) {
    return _mm512_slli_epi32(a, kBits);
  }
  template <int kBits>
  static SEER_INLINE I sar(I a) {
    return _mm512_srai_epi32(a, kBits);
  }
  static SEER_INLINE void store_low_bytes(int8_t* p, I a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
  }
  static SEER_INLINE float sum(F a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static SEER_INLINE float largest(F a) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
};

}  // namespace
}  // namespace seer
