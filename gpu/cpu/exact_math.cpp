#include "gpu/cpu/exact_math.h"

#include <bit>
#include <cstdint>
#include <limits>

#include "gpu/cpu/exp_lanes.h"
#include "protocols/check.h"

// fma is a library call in a baseline x86-64 build. So the same code is built twice, and the processor's own instruction is
// used if it has one: both are correctly rounded, so the bits are equal.
#if defined(__x86_64__) && !defined(__FMA__)
#define SEER_DISPATCH_FMA(function, ...)              \
  do {                                                \
    if (kHaveFma) return function##_fma(__VA_ARGS__); \
    return function(__VA_ARGS__);                     \
  } while (false)
#define SEER_WITH_FMA(type, name, ...) __attribute__((target("fma"))) type name##_fma(__VA_ARGS__)
#define SEER_TWO_BUILDS 1
#else
#define SEER_DISPATCH_FMA(function, ...) return function(__VA_ARGS__)
#endif

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
  static SEER_INLINE F select_nan(F a, F yes, F no) { return a != a ? yes : no; }
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

SEER_INLINE double pow_f64(double base, double exponent) {
  const LogParts log = log_parts(base);
  const double high = exponent * log.high;
  const double low = fma(exponent, log.high, -high) + exponent * log.low;
  return exp_f64(high, low);
}

// Sine of x + quarter * pi/2.
SEER_INLINE double sin_f64(double x, int64_t quarter) {
  if (!(x <= 0x1p40)) return kNan;
  if (!(x >= -0x1p40)) return kNan;
  const double magic = 6755399441055744.0;
  const double n = fma(x, 0.63661977236758134, magic) - magic;
  double r = fma(n, -1.57079632673412561417e+00, x);  // pi/2 in three parts of 33 bits and a rest
  r = fma(n, -6.07710050630396597660e-11, r);
  r = fma(n, -2.02226624871116645580e-21, r);
  r = fma(n, -8.47842766036889956997e-32, r);
  quarter += static_cast<int64_t>(n);
  const double z = r * r;
  double y;
  if (quarter & 1) {
    double p = -1.13596475577881948265e-11;
    p = fma(p, z, 2.08757232129817482790e-09);
    p = fma(p, z, -2.75573143513906633035e-07);
    p = fma(p, z, 2.48015872894767294178e-05);
    p = fma(p, z, -1.38888888888741095749e-03);
    p = fma(p, z, 4.16666666666666019037e-02);
    y = fma(z, fma(z, p, -0.5), 1.0);
  } else {
    double p = 1.58969099521155010221e-10;
    p = fma(p, z, -2.50507602534068634195e-08);
    p = fma(p, z, 2.75573137070700676789e-06);
    p = fma(p, z, -1.98412698298579493134e-04);
    p = fma(p, z, 8.33333333332248946124e-03);
    p = fma(p, z, -1.66666666666666324348e-01);
    y = fma(r * z, p, r);
  }
  return quarter & 2 ? -y : y;
}

#ifdef SEER_TWO_BUILDS
const bool kHaveFma = [] {
  __builtin_cpu_init();
  return __builtin_cpu_supports("fma") != 0;
}();
SEER_WITH_FMA(float, exp_f32, float x) { return exp_f32(x); }
SEER_WITH_FMA(float, log_f32, float x) { return log_f32(x); }
SEER_WITH_FMA(double, exp_f64, double x, double low) { return exp_f64(x, low); }
SEER_WITH_FMA(double, log_f64, double x) { return log_f64(x); }
SEER_WITH_FMA(double, pow_f64, double base, double exponent) { return pow_f64(base, exponent); }
SEER_WITH_FMA(double, sin_f64, double x, int64_t quarter) { return sin_f64(x, quarter); }
#endif

}  // namespace

float exact_exp(float x) { SEER_DISPATCH_FMA(exp_f32, x); }
float exact_log(float x) { SEER_DISPATCH_FMA(log_f32, x); }
double exact_exp(double x) { SEER_DISPATCH_FMA(exp_f64, x, 0.0); }
double exact_log(double x) { SEER_DISPATCH_FMA(log_f64, x); }
double exact_sin(double x) { SEER_DISPATCH_FMA(sin_f64, x, 0); }
double exact_cos(double x) { SEER_DISPATCH_FMA(sin_f64, x, 1); }
double exact_pow(double base, double exponent) {
  SEER_CHECK(base > 0.0, base);
  SEER_CHECK(base < kInf, base);
  SEER_DISPATCH_FMA(pow_f64, base, exponent);
}

}  // namespace seer
