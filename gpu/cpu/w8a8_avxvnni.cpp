#include "gpu/cpu/w8a8.h"
#if defined(__x86_64__)
#include "gpu/cpu/w8a8_avx2_lanes.h"

namespace seer {
namespace {

struct Dot : EightOutputs {
  static constexpr int kRows = 6, kBothHalvesRows = 2;
  using W = __m256i;
  static SEER_INLINE W weights(const int8_t* w) { return line(w); }
  static SEER_INLINE I begin(const QuantizedGroup& x) { return _mm256_set1_epi32(x.offset); }
  static SEER_INLINE I add(I sum, W w, const int8_t* x) { return _mm256_dpbusd_avx_epi32(sum, w, four_inputs(x)); }
};

}  // namespace
}  // namespace seer

#include "gpu/cpu/w8a8_body.h"

namespace seer {
const GemmW8a8 gemm_w8a8_avxvnni = gemm_w8a8;
}  // namespace seer
#else
namespace seer {
const GemmW8a8 gemm_w8a8_avxvnni = nullptr;
}  // namespace seer
#endif
