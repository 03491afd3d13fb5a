// Kernels over one row of floats (norms, rope, activation, sums) over Lanes; part of kernel_body.h.
#pragma once

namespace seer {
namespace {

using F = Lanes::F;

// Nearest even bf16 of a float's bits, kept as a float.
SEER_INLINE F rounded_bits(Lanes::I u) {
  using L = Lanes;
  const L::I odd = L::and_i(L::sar<16>(u), L::set1_i(1));
  const L::I up = L::add_i(u, L::add_i(odd, L::set1_i(0x7fff)));
  return L::from_bits(L::and_i(up, L::set1_i(static_cast<int32_t>(0xffff0000u))));
}
// The same of a float; NaN becomes the quiet NaN 0x7fc00000.
SEER_INLINE F rounded(F x) {
  return Lanes::select_nan(x, Lanes::set1(__builtin_nanf("")), rounded_bits(Lanes::bits(x)));
}
// The same for x that is not negative, with less work. NaN, if arithmetic has made it quiet, is at least 0x7fc00000 as an unsigned number.
SEER_INLINE F rounded_positive(F x) { return rounded_bits(Lanes::min_u(Lanes::bits(x), Lanes::set1_i(0x7fc00000))); }
SEER_INLINE F rounded_if(bool round, F x) { return round ? rounded(x) : x; }

// Calls fn(index, count) for each piece of up to 16 elements.
template <class Fn>
SEER_INLINE void for_pieces(int64_t size, Fn fn) {
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) fn(i, 16);
  if (i < size) fn(i, static_cast<int>(size - i));
}
SEER_INLINE F load(const float* p, int count) { return count == 16 ? Lanes::load(p) : Lanes::load_first(p, count); }
SEER_INLINE void store(float* p, F x, int count) {
  if (count == 16)
    Lanes::store(p, x);
  else
    Lanes::store_first(p, x, count);
}

// If the sum of squares overflows, 1 / sqrt of it would be 0 and the row all zeros, which nobody would notice. So the row
// becomes NaN, as it does if an element is infinite.
void rms_norm(const float* x, const float* weight, int32_t size, float eps, bool round, float* out) {
  F squares = Lanes::set1(0.0f);
  for_pieces(size, [&](int64_t i, int count) {
    const F v = load(x + i, count);
    squares = Lanes::fma(v, v, squares);
  });
  const float mean = Lanes::sum(squares) / static_cast<float>(size);
  const float scale = mean < __builtin_inff() ? 1.0f / __builtin_sqrtf(mean + eps) : __builtin_nanf("");
  for_pieces(size, [&](int64_t i, int count) {
    const F y = Lanes::mul(Lanes::mul(load(x + i, count), Lanes::set1(scale)), load(weight + i, count));
    store(out + i, rounded_if(round, y), count);
  });
}

// Sums of integers below 2^24 are exact in floats.
void quantize_row(const float* x, int32_t columns_padded, QuantizedGroup* out) {
  const F magic = Lanes::set1(12582912.0f);  // 1.5 * 2^23: its sum with v has the integer nearest to v in its low bits
  for (int32_t k = 0; k < columns_padded; k += kInt8GroupColumns, ++out) {
    const int32_t columns = columns_padded - k < kInt8GroupColumns ? columns_padded - k : kInt8GroupColumns;
    F largest = Lanes::set1(0.0f), zeros = largest;  // NaN if an input is not finite
    for (int32_t i = 0; i < columns; i += 16) {
      const F v = Lanes::load(x + k + i);
      largest = Lanes::max(largest, Lanes::from_bits(Lanes::and_i(Lanes::bits(v), Lanes::set1_i(0x7fffffff))));
      zeros = Lanes::fma(v, Lanes::set1(0.0f), zeros);
    }
    const float magnitude = Lanes::largest(largest), zero = Lanes::sum(zeros);
    *out = {.scale = zero, .offset = 0, .integers = {}};
    if (zero != 0.0f || magnitude < 0x1p-110f) continue;
    const F inverse = Lanes::set1(127.0f / magnitude);
    F sum = Lanes::set1(0.0f);
    for (int32_t i = 0; i < columns; i += 16) {
      const F shifted = Lanes::add(Lanes::mul(Lanes::load(x + k + i), inverse), magic);
      sum = Lanes::add(sum, Lanes::sub(shifted, magic));
      Lanes::store_low_bytes(out->integers + i, Lanes::bits(shifted));
    }
    out->scale = magnitude / 127.0f;
    out->offset = -128 * static_cast<int32_t>(Lanes::sum(sum));
  }
}

void rope(float* x, const float* cosines, const float* sines, int32_t half, bool round) {
  for_pieces(half, [&](int64_t i, int count) {
    const F c = load(cosines + i, count), s = load(sines + i, count);
    const F a = load(x + i, count), b = load(x + half + i, count);
    const F minus_b = Lanes::sub(Lanes::set1(0.0f), b);
    store(x + i, rounded_if(round, Lanes::fma(minus_b, s, Lanes::mul(a, c))), count);
    store(x + half + i, rounded_if(round, Lanes::fma(a, s, Lanes::mul(b, c))), count);
  });
}

void swiglu(const float* gate, const float* up, int32_t size, bool round, float* out) {
  const F one = Lanes::set1(1.0f);
  for_pieces(size, [&](int64_t i, int count) {
    const F g = load(gate + i, count);
    const F minus_g = Lanes::sub(Lanes::set1(0.0f), g);
    const F silu = Lanes::div(g, Lanes::add(one, exp_lanes<Lanes>(minus_g)));
    store(out + i, rounded_if(round, Lanes::mul(silu, load(up + i, count))), count);
  });
}

void add(float* x, const float* y, int32_t size) {
  for_pieces(size,
             [&](int64_t i, int count) { store(x + i, Lanes::add(load(x + i, count), load(y + i, count)), count); });
}

}  // namespace
}  // namespace seer
