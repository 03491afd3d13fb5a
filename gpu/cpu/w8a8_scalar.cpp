#include "gpu/cpu/w8a8.h"

#include "gpu/cpu/exp_lanes.h"

namespace seer {
namespace {

// One output. Its sum is that of the weights as stored, so a group's begins with its offset.
struct Dot {
  using I = int32_t;
  using F = float;
  static constexpr int kOutputs = 1, kRows = 1, kBothHalvesRows = 0;
  struct W {
    const int8_t* stored;
  };
  static W weights(const int8_t* w) { return {w}; }
  static I begin(const QuantizedGroup& x) { return x.offset; }
  static I add(I sum, W w, const int8_t* x) {
    for (int i = 0; i < 4; ++i) sum += static_cast<uint8_t>(w.stored[i]) * x[i];
    return sum;
  }
  static F floats(I a) { return static_cast<float>(a); }
  static F set1(float a) { return a; }
  static F load(const float* p) { return *p; }
  static F mul(F a, F b) { return a * b; }
  static F fma(F a, F b, F c) { return __builtin_fmaf(a, b, c); }
  static void store(float* p, F a) { *p = a; }
};

}  // namespace
}  // namespace seer

#include "gpu/cpu/w8a8_body.h"

namespace seer {
const GemmW8a8 gemm_w8a8_scalar = gemm_w8a8;
}  // namespace seer
