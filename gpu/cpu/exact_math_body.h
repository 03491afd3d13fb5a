// exp and log of exact_math.h, inline. Part of exact_math.cpp, and of the CUDA engine's kernels, which define SEER_INLINE first:
// compiled for a GPU they give the same bits, because each operation is correctly rounded there too.
// Everything is in an unnamed namespace, as in exp_lanes.h.
#pragma once
#include <bit>
#include <cstdint>
#include <limits>

#include "gpu/cpu/exp_lanes.h"

namespace seer {
namespace {

constexpr float kInfF = std::numeric_limits<float>::infinity();
constexpr float kNanF = std::numeric_limits<float>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

SEER_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
SEER_INLINE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

struct OneLane {
  using F = float;
  using I = int32_t;
  static SEER_INLINE F set1(float x) { return x; }
  static SEER_INLINE I set1_i(int32_t x) { return x; }
  static SEER_INLINE F fma(F a, F b, F c) { return __builtin_fmaf(a, b, c); }
  static SEER_INLINE F add(F a, F b) { return a + b; }
  static SEER_INLINE F sub(F a, F b) { return a - b; }
  static SEER_INLINE F mul(F a, F b) { return a * b; }
  static SEER_INLINE F min(F a, F b) { return a < b ? a : b; }
  static SEER_INLINE F max(F a, F b) { return a > b ? a : b; }
  static SEER_INLINE I bits(F a) { return std::bit_cast<int32_t>(a); }
  static SEER_INLINE F from_bits(I a) { return std::bit_cast<float>(a); }
  static SEER_INLINE I add_i(I a, I b) { return a + b; }
  static SEER_INLINE I sub_i(I a, I b) { return a - b; }
  template <int kBits>
  static SEER_INLINE I shl(I a) {
    return static_cast<I>(static_cast<uint32_t>(a) << kBits);
  }
  template <int kBits>
  static SEER_INLINE I sar(I a) {
    return a >> kBits;
  }
  static SEER_INLINE F select_less(F a, F b, F yes, F no) { return a < b ? yes : no; }
  static SEER_INLINE F zero_if_less(F a, F b, F no) { return a < b ? 0.0f : no; }
};

SEER_INLINE float exp_f32(float x) { return exp_lanes<OneLane>(x); }

SEER_INLINE float log_f32(float x) {
  if (!(x >= std::numeric_limits<float>::min()))
    return x != x ? x : x > -std::numeric_limits<float>::min() ? -kInfF : kNanF;
  if (x == kInfF) return x;
  // x = m 2^e with m in [sqrt(1/2), sqrt(2)).
  const int32_t offset = std::bit_cast<int32_t>(x) - 0x3f3504f3;
  const float e = static_cast<float>(offset >> 23);
  const float m = std::bit_cast<float>((offset & 0x007fffff) + 0x3f3504f3);
  const float f = m - 1.0f;
  const float z = f * f;
  float p = 7.0376836292e-2f;
  p = fma(p, f, -1.1514610310e-1f);
  p = fma(p, f, 1.1676998740e-1f);
  p = fma(p, f, -1.2420140846e-1f);
  p = fma(p, f, 1.4249322787e-1f);
  p = fma(p, f, -1.6668057665e-1f);
  p = fma(p, f, 2.0000714765e-1f);
  p = fma(p, f, -2.4999993993e-1f);
  p = fma(p, f, 3.3333331174e-1f);
  float y = fma(p * f, z, e * -2.12194440e-4f);
  y = fma(-0.5f, z, y);
  return fma(e, 0.693359375f, f + y);
}

// ln 2 in two parts; e * kLn2High is exact for |e| < 2^20.
constexpr double kLn2High = 6.93147180369123816490e-01;
constexpr double kLn2Low = 1.90821492927058770002e-10;

SEER_INLINE double exp_f64(double x, double low) {  // e^(x + low), |low| much smaller than |x|
  if (x != x) return x;
  if (x < -708.0) return 0.0;
  if (x > 709.0) return kInf;
  const double magic = 6755399441055744.0;  // 1.5 * 2^52
  const double n = fma(x, 1.4426950408889634, magic) - magic;
  double r = fma(n, -kLn2High, x);
  r = fma(n, -kLn2Low, r) + low;
  double p = 1.0 / 87178291200.0;  // Taylor to r^14: the remainder is below 1e-18 for |r| < 0.35
  p = fma(p, r, 1.0 / 6227020800.0);
  p = fma(p, r, 1.0 / 479001600.0);
  p = fma(p, r, 1.0 / 39916800.0);
  p = fma(p, r, 1.0 / 3628800.0);
  p = fma(p, r, 1.0 / 362880.0);
  p = fma(p, r, 1.0 / 40320.0);
  p = fma(p, r, 1.0 / 5040.0);
  p = fma(p, r, 1.0 / 720.0);
  p = fma(p, r, 1.0 / 120.0);
  p = fma(p, r, 1.0 / 24.0);
  p = fma(p, r, 1.0 / 6.0);
  p = fma(p, r, 0.5);
  p = fma(p, r * r, r) + 1.0;
  const int64_t whole = static_cast<int64_t>(n);
  const int64_t half = whole >> 1;
  p *= std::bit_cast<double>((half + 1023) << 52);
  return p * std::bit_cast<double>((whole - half + 1023) << 52);
}

struct LogParts {
  double high, low;  // high + low is the logarithm
};

SEER_INLINE LogParts log_parts(double x) {  // x positive, finite, not denormal
  constexpr int64_t kSqrtHalf = 0x3fe6a09e667f3bcd;
  const int64_t offset = std::bit_cast<int64_t>(x) - kSqrtHalf;
  const double e = static_cast<double>(offset >> 52);
  const double m = std::bit_cast<double>((offset & 0x000fffffffffffff) + kSqrtHalf);
  // log m = 2 atanh(s) with s = f / (2 + f), and 2 s = f - s f: log m = f - s (f - R), R = 2 (s^2/3 + s^4/5 + ...).
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double p = 1.0 / 23.0;  // |s| < 0.1716: the next term is below 1e-19 of s
  p = fma(p, z, 1.0 / 21.0);
  p = fma(p, z, 1.0 / 19.0);
  p = fma(p, z, 1.0 / 17.0);
  p = fma(p, z, 1.0 / 15.0);
  p = fma(p, z, 1.0 / 13.0);
  p = fma(p, z, 1.0 / 11.0);
  p = fma(p, z, 1.0 / 9.0);
  p = fma(p, z, 1.0 / 7.0);
  p = fma(p, z, 1.0 / 5.0);
  p = fma(p, z, 1.0 / 3.0);
  const double series = 2.0 * z * p;
  const double small = fma(-s, f - series, e * kLn2Low);
  const double big = fma(e, kLn2High, f);  // may round: the lost part goes to the low word
  const double lost = f - (big - e * kLn2High);
  const double high = big + small;
  return {high, small - (high - big) + lost};
}

SEER_INLINE double log_f64(double x) {
  if (!(x >= std::numeric_limits<double>::min()))
    return x != x ? x : x > -std::numeric_limits<double>::min() ? -kInf : kNan;
  if (x == kInf) return x;
  return log_parts(x).high;
}

}  // namespace
}  // namespace seer
