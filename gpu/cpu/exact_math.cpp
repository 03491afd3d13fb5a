#include "gpu/cpu/exact_math.h"

#include <cstdint>

#include "gpu/cpu/exact_math_body.h"
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
