// exp for float, written once over any lane type: scalar code, AVX2 and AVX-512 kernels instantiate it and give the
// same bits in every lane. Private to gpu/cpu; callers outside use exact_math.h.
//
// `Lanes` is a struct with a float vector type F and an integer vector type I of the same width, and the static
// operations used below. Each translation unit defines its own in an anonymous namespace, so that code built for one
// instruction set can never be linked into another.
#pragma once

#ifndef SEER_INLINE
#define SEER_INLINE inline __attribute__((always_inline))
#endif

namespace seer {

/// Error below 1.1 ulp. exp(x) is 0 for x < -87.336 (nothing denormal is ever returned), +inf above 88.7228, NaN for
/// NaN. The result does not depend on the processor's denormal modes. kNonPositive: the same bits with less work, for x
/// <= 0 or NaN.
template <class Lanes, bool kNonPositive = false>
SEER_INLINE typename Lanes::F exp_lanes(typename Lanes::F x) {
  using F = typename Lanes::F;
  using I = typename Lanes::I;
  const F lowest = Lanes::set1(-87.336f);
  const F highest = Lanes::set1(88.722839f);  // the largest float below 128 ln 2
  // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to the nearest integer, which then sits in the low
  // bits.
  const F magic = Lanes::set1(12582912.0f);
  F clamped = Lanes::max(lowest, x);  // NaN stays NaN: max and min give their second operand if one is NaN
  if constexpr (!kNonPositive) clamped = Lanes::min(highest, clamped);
  const F shifted = Lanes::fma(clamped, Lanes::set1(1.44269504f), magic);
  const F n = Lanes::sub(shifted, magic);
  F r = Lanes::fma(n, Lanes::set1(-0.693359375f), clamped);
  r = Lanes::fma(n, Lanes::set1(2.12194440e-4f), r);
  F p = Lanes::set1(1.9875691500e-4f);
  p = Lanes::fma(p, r, Lanes::set1(1.3981999507e-3f));
  p = Lanes::fma(p, r, Lanes::set1(8.3334519073e-3f));
  p = Lanes::fma(p, r, Lanes::set1(4.1665795894e-2f));
  p = Lanes::fma(p, r, Lanes::set1(1.6666665459e-1f));
  p = Lanes::fma(p, r, Lanes::set1(5.0000001201e-1f));
  p = Lanes::fma(p, Lanes::mul(r, r), r);
  p = Lanes::add(p, Lanes::set1(1.0f));
  F y;
  if constexpr (kNonPositive) {
    // Times 2^n, n in [-126, 0]: exact, because p >= 1 if n is -126. The shift drops the upper bits of `shifted`, which are magic's.
    const I power = Lanes::add_i(Lanes::template shl<23>(Lanes::bits(shifted)), Lanes::set1_i(127 << 23));
    y = Lanes::mul(p, Lanes::from_bits(power));
  } else {
    // Times 2^n in two halves, because 2^128 is not a float. n is in [-126, 128].
    const I whole = Lanes::sub_i(Lanes::bits(shifted), Lanes::bits(magic)), bias = Lanes::set1_i(127);
    const I half = Lanes::template sar<1>(whole);
    const I rest = Lanes::sub_i(whole, half);
    y = Lanes::mul(p, Lanes::from_bits(Lanes::template shl<23>(Lanes::add_i(half, bias))));
    y = Lanes::mul(y, Lanes::from_bits(Lanes::template shl<23>(Lanes::add_i(rest, bias))));
  }
  y = Lanes::zero_if_less(x, lowest, y);
  if constexpr (!kNonPositive) y = Lanes::select_less(highest, x, Lanes::set1(__builtin_inff()), y);
  return y;
}

}  // namespace seer
