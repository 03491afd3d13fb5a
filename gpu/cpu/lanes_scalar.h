// Sixteen float lanes in plain C++. Included by kernels_scalar.cpp and row_softmax_scalar.cpp only.
#pragma once
#include <cstdint>

#include "gpu/cpu/exp_lanes.h"

namespace seer {
namespace {

struct Lanes {
  struct F {
    float v[16];
  };
  struct I {
    int32_t v[16];
  };
  // Rows that share one pass over the weights, and 16-lane columns of a panel that are computed together.
  static constexpr int kGemmRows = 2, kGemmColumns = 1;
  // Queries of attention that share a pass, and those for which a pass computes even and odd sums.
  static constexpr int kAttentionRows = 2, kOnePassRows = 2;
  static constexpr int kHalvesAhead = 4;  // of KV that attention prefetches into the L1 cache
  static constexpr bool kZen5KvIntoL1 = true;  // there attention prefetches KV into the L1 cache, not the L2
  static constexpr int kPeakChains = 1;  // its 16 lanes are independent

  template <class Fn>
  static SEER_INLINE F make(Fn fn) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = fn(i);
    return r;
  }
  template <class Fn>
  static SEER_INLINE I make_i(Fn fn) {
    I r;
    for (int i = 0; i < 16; ++i) r.v[i] = fn(i);
    return r;
  }
  static SEER_INLINE float as_float(uint32_t u) {
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
  }
  static SEER_INLINE uint32_t as_bits(float f) {
    uint32_t u;
    __builtin_memcpy(&u, &f, 4);
    return u;
  }

  static SEER_INLINE F set1(float x) {
    return make([&](int) { return x; });
  }
  static SEER_INLINE I set1_i(int32_t x) {
    return make_i([&](int) { return x; });
  }
  static SEER_INLINE F load(const float* p) {
    return make([&](int i) { return p[i]; });
  }
  static SEER_INLINE void store(float* p, F a) {
    for (int i = 0; i < 16; ++i) p[i] = a.v[i];
  }
  static SEER_INLINE F load_first(const float* p, int count) {
    return make([&](int i) { return i < count ? p[i] : 0.0f; });
  }
  static SEER_INLINE void store_first(float* p, F a, int count) {
    for (int i = 0; i < count; ++i) p[i] = a.v[i];
  }
  static SEER_INLINE void load_pairs(const uint16_t* p, F& even, F& odd) {
    even = make([&](int i) { return as_float(static_cast<uint32_t>(p[2 * i]) << 16); });
    odd = make([&](int i) { return as_float(static_cast<uint32_t>(p[2 * i + 1]) << 16); });
  }
  // Int8: sixteen even ones, then sixteen odd ones.
  static SEER_INLINE void load_pairs(const int8_t* p, F& even, F& odd) {
    even = make([&](int i) { return static_cast<float>(p[i]); });
    odd = make([&](int i) { return static_cast<float>(p[16 + i]); });
  }
  static SEER_INLINE F fma(F a, F b, F c) {
    return make([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
  }
  static SEER_INLINE void add_product(F& sum, F a, F b) { sum = fma(a, b, sum); }
  static SEER_INLINE F add(F a, F b) {
    return make([&](int i) { return a.v[i] + b.v[i]; });
  }
  static SEER_INLINE F sub(F a, F b) {
    return make([&](int i) { return a.v[i] - b.v[i]; });
  }
  static SEER_INLINE F mul(F a, F b) {
    return make([&](int i) { return a.v[i] * b.v[i]; });
  }
  static SEER_INLINE F div(F a, F b) {
    return make([&](int i) { return a.v[i] / b.v[i]; });
  }
  static SEER_INLINE F min(F a, F b) {
    return make([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static SEER_INLINE F max(F a, F b) {
    return make([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static SEER_INLINE F select_less(F a, F b, F yes, F no) {
    return make([&](int i) { return a.v[i] < b.v[i] ? yes.v[i] : no.v[i]; });
  }
  static SEER_INLINE F zero_if_less(F a, F b, F no) {
    return make([&](int i) { return a.v[i] < b.v[i] ? 0.0f : no.v[i]; });
  }
  static SEER_INLINE F select_nan(F a, F yes, F no) {
    return make([&](int i) { return a.v[i] != a.v[i] ? yes.v[i] : no.v[i]; });
  }
  static SEER_INLINE F select_first(int count, F yes, F no) {
    return make([&](int i) { return i < count ? yes.v[i] : no.v[i]; });
  }
  static SEER_INLINE I bits(F a) {
    return make_i([&](int i) { return static_cast<int32_t>(as_bits(a.v[i])); });
  }
  static SEER_INLINE F from_bits(I a) {
    return make([&](int i) { return as_float(static_cast<uint32_t>(a.v[i])); });
  }
  static SEER_INLINE I add_i(I a, I b) {
    return make_i(
        [&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) + static_cast<uint32_t>(b.v[i])); });
  }
  static SEER_INLINE I sub_i(I a, I b) {
    return make_i(
        [&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) - static_cast<uint32_t>(b.v[i])); });
  }
  static SEER_INLINE I min_u(I a, I b) {
    return make_i([&](int i) { return static_cast<uint32_t>(a.v[i]) < static_cast<uint32_t>(b.v[i]) ? a.v[i] : b.v[i]; });
  }
  static SEER_INLINE I and_i(I a, I b) {
    return make_i([&](int i) { return a.v[i] & b.v[i]; });
  }
  template <int kBits>
  static SEER_INLINE I shl(I a) {
    return make_i([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << kBits); });
  }
  template <int kBits>
  static SEER_INLINE I sar(I a) {
    return make_i([&](int i) { return a.v[i] >> kBits; });
  }
  static SEER_INLINE void store_low_bytes(int8_t* p, I a) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(a.v[i]);
  }
  static SEER_INLINE float sum(F a) {
    for (int width = 8; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) a.v[i] = a.v[i] + a.v[i + width];
    return a.v[0];
  }
  static SEER_INLINE float largest(F a) {
    for (int width = 8; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) a.v[i] = a.v[i] > a.v[i + width] ? a.v[i] : a.v[i + width];
    return a.v[0];
  }
};

}  // namespace
}  // namespace seer
