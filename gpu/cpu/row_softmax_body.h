// The one source of the kernels of row_softmax.h. Each row_softmax_<isa>.cpp includes its lanes_<isa>.h and then this
// file; everything is in an anonymous namespace and nothing from the standard library is instantiated, so that code
// built with the flags of one instruction set can never be linked into another.
#pragma once
#include "gpu/cpu/row_softmax.h"

namespace seer {
namespace {

constexpr float kHighestLogit = 3.40282347e+38f;

// Eight lanes, in whatever registers the instruction set has.
typedef float Floats __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(64)));

SEER_INLINE Lanes::F clamp_logit(Lanes::F x) {
  const Lanes::F lowest = Lanes::set1(-kHighestLogit);
  return Lanes::min(Lanes::select_less(lowest, x, x, lowest), Lanes::set1(kHighestLogit));
}

// Calls fn(index, count) for each sixteen ids of [begin, end), and for the rest at the end.
template <class Fn>
SEER_INLINE void for_sixteens(int64_t begin, int64_t end, Fn fn) {
  int64_t i = begin;
  for (; i + 16 <= end; i += 16) fn(i, 16);
  if (i < end) fn(i, static_cast<int>(end - i));
}
SEER_INLINE Lanes::F load_raw(const float* p, int count) {
  return count == 16 ? Lanes::load(p) : Lanes::load_first(p, count);
}
SEER_INLINE Lanes::F load_logits(const float* p, int count) { return clamp_logit(load_raw(p, count)); }

// x - x is 0 for a finite x and NaN otherwise, so the sum of these stays 0 as long as all are finite. It does not depend on
// the maxima, so the processor computes both at once.
RowMax row_max(const float* logits, int64_t count) {
  const Lanes::F lowest = Lanes::set1(-kHighestLogit);
  Lanes::F largest = lowest, spoiled = Lanes::set1(0.0f);
  for_sixteens(0, count, [&](int64_t i, int n) {
    const Lanes::F raw = load_raw(logits + i, n);
    spoiled = Lanes::add(spoiled, Lanes::sub(raw, raw));
    largest = Lanes::max(Lanes::select_first(n, clamp_logit(raw), lowest), largest);
  });
  return {Lanes::largest(largest), Lanes::sum(spoiled) == 0.0f};
}

void exp_sums(const float* logits, int64_t count, float max, float temperature, double* sums) {
  const Lanes::F max_lanes = Lanes::set1(max), temperature_lanes = Lanes::set1(temperature), none = Lanes::set1(0.0f);
  for (int64_t begin = 0; begin < count; begin += kPartIds) {
    const int64_t end = begin + kPartIds < count ? begin + kPartIds : count;
    Doubles low = {}, high = {};
    for_sixteens(begin, end, [&](int64_t i, int n) {
      const Lanes::F scaled = Lanes::div(Lanes::sub(load_logits(logits + i, n), max_lanes), temperature_lanes);
      const Lanes::F weights = Lanes::select_first(n, exp_lanes<Lanes>(scaled), none);
      Floats halves[2];
      static_assert(sizeof weights == sizeof halves);
      __builtin_memcpy(halves, &weights, sizeof halves);
      low += __builtin_convertvector(halves[0], Doubles);
      high += __builtin_convertvector(halves[1], Doubles);
    });
    double lanes[16];
    __builtin_memcpy(lanes, &low, sizeof low);
    __builtin_memcpy(lanes + 8, &high, sizeof high);
    for (int half = 8; half > 0; half /= 2)
      for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    sums[begin / kPartIds] = lanes[0];
  }
}

}  // namespace
}  // namespace seer
