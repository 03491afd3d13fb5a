// Sixteen float lanes as two AVX2 registers. Included by kernels_avx2.cpp and row_softmax_avx2.cpp only.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "gpu/cpu/exp_lanes.h"

namespace seer {
namespace {

// sum += a * b, in the register of the sum. Left to itself, the compiler rotates sums through the registers of the factors,
// which costs a tenth of the speed.
SEER_INLINE void fma_into(__m256& sum, __m256 a, __m256 b) { asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b)); }

struct Lanes {
  struct F {
    __m256 lo, hi;
  };
  struct I {
    __m256i lo, hi;
  };
  // Rows that share one pass over the weights, and 16-lane columns of a panel that are computed together, for weights of f32:
  // gemm_avx2_body.h has the others.
  static constexpr int kGemmRows = 2, kGemmColumns = 1;
  // Queries of attention that share a pass, and those for which a pass computes even and odd sums: with 16 registers, 2 rows x
  // 2 sums x 2 halves + 4 for keys + 2 for queries. More rows take a pass for each sum.
  static constexpr int kAttentionRows = 6, kOnePassRows = 2;
  static constexpr int kHalvesAhead = 3;  // of KV that attention prefetches into the L1 cache
  static constexpr bool kZen5KvIntoL1 = false;  // there attention prefetches KV into the L1 cache, not the L2
  static constexpr int kPeakChains = 6;  // in 12 registers

  static SEER_INLINE F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static SEER_INLINE I set1_i(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static SEER_INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static SEER_INLINE void store(float* p, F a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
  }
  static SEER_INLINE F load_first(const float* p, int count) {
    float v[16] = {};
    for (int i = 0; i < count; ++i) v[i] = p[i];
    return load(v);
  }
  static SEER_INLINE void store_first(float* p, F a, int count) {
    float v[16];
    store(v, a);
    for (int i = 0; i < count; ++i) p[i] = v[i];
  }
  static SEER_INLINE void load_pairs(const uint16_t* p, F& even, F& odd) {
    const __m256i high = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
    even = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
    odd = {_mm256_castsi256_ps(_mm256_and_si256(a, high)), _mm256_castsi256_ps(_mm256_and_si256(b, high))};
  }
  static SEER_INLINE __m256 load_int8(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static SEER_INLINE void load_pairs(const int8_t* p, F& even, F& odd) {
    even = {load_int8(p), load_int8(p + 8)};
    odd = {load_int8(p + 16), load_int8(p + 24)};
  }
  static SEER_INLINE F fma(F a, F b, F c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static SEER_INLINE void add_product(F& sum, F a, F b) {
    fma_into(sum.lo, a.lo, b.lo);
    fma_into(sum.hi, a.hi, b.hi);
  }
  static SEER_INLINE F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  static SEER_INLINE F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  static SEER_INLINE F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  static SEER_INLINE F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  static SEER_INLINE F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  static SEER_INLINE F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static SEER_INLINE F select_less(F a, F b, F yes, F no) {
    return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
  }
  static SEER_INLINE F zero_if_less(F a, F b, F no) {
    return {_mm256_andnot_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), no.lo),
            _mm256_andnot_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ), no.hi)};
  }
  static SEER_INLINE F select_nan(F a, F yes, F no) {
    return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q)),
            _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q))};
  }
  static SEER_INLINE F select_first(int count, F yes, F no) {
    const __m256i n = _mm256_set1_epi32(count);
    const __m256 lo = _mm256_castsi256_ps(_mm256_cmpgt_epi32(n, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
    const __m256 hi = _mm256_castsi256_ps(_mm256_cmpgt_epi32(n, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)));
    return {_mm256_blendv_ps(no.lo, yes.lo, lo), _mm256_blendv_ps(no.hi, yes.hi, hi)};
  }
  static SEER_INLINE I bits(F a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
  static SEER_INLINE F from_bits(I a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
  static SEER_INLINE I add_i(I a, I b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
  static SEER_INLINE I sub_i(I a, I b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
  static SEER_INLINE I min_u(I a, I b) { return {_mm256_min_epu32(a.lo, b.lo), _mm256_min_epu32(a.hi, b.hi)}; }
  static SEER_INLINE I and_i(I a, I b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
  template <int kBits>
  static SEER_INLINE I shl(I a) {
    return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
  }
  template <int kBits>
  static SEER_INLINE I sar(I a) {
    return {_mm256_srai_epi32(a.lo, kBits), _mm256_srai_epi32(a.hi, kBits)};
  }
  static SEER_INLINE void store_low_bytes(int8_t* p, I a) {
    const __m256i halves = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(_mm256_srai_epi32(_mm256_slli_epi32(a.lo, 24), 24), _mm256_srai_epi32(_mm256_slli_epi32(a.hi, 24), 24)),
        0b11011000);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
  }
  static SEER_INLINE float sum(F a) {
    const __m256 eight = _mm256_add_ps(a.lo, a.hi);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static SEER_INLINE float largest(F a) {
    const __m256 eight = _mm256_max_ps(a.lo, a.hi);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
};

}  // namespace
}  // namespace seer
