// Exact math: our own exp, log, sin, cos, pow. libm gives different bits on different processors (with and without
// FMA), so nothing that reaches a token or a log-probability may come from it. Made of +, -, *, /, fma only, each
// correctly rounded, in one written order: the same input gives the same bits on every machine, in every build. Used by
// the sampler, the engines and the rope tables. Pure functions, thread-safe.
//
// Results do not depend on the denormal modes of the thread: no function here takes or returns denormals of its type
// (they count as zero).
#pragma once

namespace seer {

/// e^x, error below 1.1 ulp. 0 for x < -87.336, +inf for x > 88.7228, NaN for NaN. Vector kernels that need it over
/// arrays use gpu/cpu/exp_lanes.h, which has the same bits.
float exact_exp(float x);

/// Natural logarithm, error below 1 ulp. -inf for 0 (and denormals), NaN below 0 and for NaN, +inf for +inf.
float exact_log(float x);

/// e^x, relative error below 1e-15 for |x| <= 700. 0 for x < -708, +inf for x > 709.
double exact_exp(double x);

/// Natural logarithm, relative error below 1e-15; edge cases as for float.
double exact_log(double x);

/// Sine and cosine of x in radians, absolute error below 1e-15 for |x| <= 2^40. NaN beyond and for NaN.
double exact_sin(double x);
double exact_cos(double x);

/// base^exponent, relative error below 1e-14 while the result is within [1e-300, 1e300]. REQUIRES: base > 0, finite.
double exact_pow(double base, double exponent);

}  // namespace seer
