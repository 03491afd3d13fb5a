#include "gpu/cpu/w8a8.h"
#if defined(__x86_64__)
#include "gpu/cpu/w8a8_avx2_lanes.h"

namespace seer {
namespace {

struct Dot : EightOutputs {
  static constexpr int kRows = 4, kBothHalvesRows = 1;

  // VPMADDUBSW multiplies bytes with and without a sign, so the weight's sign goes to the input. Sums of two products fit in
  // 16 bits: 2 x 127 x 127.
  struct W {
    __m256i signed_bytes, magnitudes;
  };
  static SEER_INLINE W weights(const int8_t* w) {
    const __m256i bytes = _mm256_xor_si256(line(w), _mm256_set1_epi8(-128));
    return {bytes, _mm256_abs_epi8(bytes)};
  }
  static SEER_INLINE I begin(const QuantizedGroup&) { return _mm256_setzero_si256(); }
  static SEER_INLINE I add(I sum, W w, const int8_t* x) {
    const __m256i pairs = _mm256_maddubs_epi16(w.magnitudes, _mm256_sign_epi8(four_inputs(x), w.signed_bytes));
    const __m256i products = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(products));  // the compiler would add all products of a group in a tree, and spill them
    return sum;
  }
};

}  // namespace
}  // namespace seer

#include "gpu/cpu/w8a8_body.h"

namespace seer {
const GemmW8a8 gemm_w8a8_avx2 = gemm_w8a8;
}  // namespace seer
#else
namespace seer {
const GemmW8a8 gemm_w8a8_avx2 = nullptr;
}  // namespace seer
#endif
