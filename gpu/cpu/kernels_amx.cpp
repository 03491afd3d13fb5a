#if defined(__x86_64__)
#include "gpu/cpu/lanes_avx512.h"

#include "gpu/cpu/tile_gemm_body.h"

namespace seer {
namespace {

// The processor's tile registers. In assembly, because the compiler's intrinsics need the number of a tile as a literal.
// "memory" keeps loads and stores of tiles in order with the code around them.
struct AmxTiles {
  struct alignas(64) Config {  // of LDTILECFG
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t column_bytes[16] = {};
    uint8_t rows[16] = {};
  };

  static SEER_INLINE void configure(int32_t rows0, int32_t rows1) {
    Config config;
    const int32_t rows[8] = {rows0, rows0, rows1, rows1, rows0, rows1, 16, 16};
    for (int t = 0; t < 8; ++t) {
      config.rows[t] = static_cast<uint8_t>(rows[t]);
      config.column_bytes[t] = rows[t] == 0 ? 0 : 64;  // both 0: the tile is not used
    }
    asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
  }
  static SEER_INLINE void release() { asm volatile("tilerelease" ::: "memory"); }
  template <int kTile>
  static SEER_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  static SEER_INLINE void load(const void* p, int64_t stride_bytes) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(p), "r"(stride_bytes) : "memory");
  }
  template <int kTile>
  static SEER_INLINE void store(void* p, int64_t stride_bytes) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(p), "r"(stride_bytes) : "memory");
  }
  template <int kSum, int kLeft, int kRight>
  static SEER_INLINE void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight));
  }
};

}  // namespace

const CpuKernels* amx_kernels() {
  static const CpuKernels kernels = [] {
    CpuKernels k = *avx512_kernels();
    k.name = "amx";
    k.gemm_bf16_tiles = gemm_bf16_tiles<AmxTiles>;
    k.gemm_int8_tiles = gemm_int8_tiles<AmxTiles>;
    k.int8_tile_rows_min = 5;  // from docs/benchmarks.md
    k.fma_chains = tile_chains<AmxTiles>;
    return k;
  }();
  return &kernels;
}

}  // namespace seer
#else
#include "gpu/cpu/kernels.h"

namespace seer {

const CpuKernels* amx_kernels() { return nullptr; }

}  // namespace seer
#endif
