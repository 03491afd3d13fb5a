#include "gpu/cpu/w8a8.h"
#if defined(__x86_64__)
// GCC 12 warns about the deliberately undefined operands inside its own AVX-512 header once they are inlined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include "gpu/cpu/exp_lanes.h"

namespace seer {
namespace {

struct Dot {
  using I = __m512i;
  using W = __m512i;
  using F = __m512;
  static constexpr int kOutputs = 16, kRows = 8, kBothHalvesRows = 8;

  static SEER_INLINE W weights(const int8_t* w) { return _mm512_loadu_si512(w); }
  static SEER_INLINE I begin(const QuantizedGroup& x) { return _mm512_set1_epi32(x.offset); }
  static SEER_INLINE I add(I sum, W w, const int8_t* x) {
    int32_t bytes;
    __builtin_memcpy(&bytes, x, 4);
    return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(bytes));
  }
  static SEER_INLINE F floats(I a) { return _mm512_cvtepi32_ps(a); }
  static SEER_INLINE F set1(float a) { return _mm512_set1_ps(a); }
  static SEER_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
  static SEER_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static SEER_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static SEER_INLINE void store(float* p, F a) { _mm512_storeu_ps(p, a); }
};

}  // namespace
}  // namespace seer

#include "gpu/cpu/w8a8_body.h"

namespace seer {
const GemmW8a8 gemm_w8a8_avx512vnni = gemm_w8a8;
}  // namespace seer
#else
namespace seer {
const GemmW8a8 gemm_w8a8_avx512vnni = nullptr;
}  // namespace seer
#endif
