// CpuKernels: the inner loops of the CPU engine as a table of functions, one table per instruction set. All tables give
// the same bits: the kernels are one source (kernel_body.h and its parts) over 16 float lanes, and a lane does the same
// operations in the same order whatever registers hold it. Used by CpuForward; pure functions, thread-safe.
//
// Every function REQUIRES that the thread flushes denormals (denormals.h). Pointers need no alignment unless said.
//
// Dot products (the exactness contract):
//   bf16  TDPBF16PS order: blocks of 32 inputs; in each, two f32 FMA sums from zero over the even and the odd inputs
//         in ascending order; then sum += even + odd, with denormals flushed. Inputs are floats that hold bf16 values.
//   f32   one f32 FMA chain over ascending inputs, from zero.
//   int8  groups of kInt8GroupColumns inputs; the last may be shorter (whole blocks of 32). A group's sum is the bf16 dot
//         product above of the inputs and the weights as integers -127..127, which bf16 holds exactly; then
//         y = fma(scale of the group, its sum, y) in ascending order, from zero.
//   w8a8  the same groups and integers, and inputs as integers too (QuantizedGroup). A group's sum is that of the integers'
//         products, which no order changes; then y = fma(weights' scale, sum * inputs' scale, y), in ascending order, from zero.
// Sums over a row (norms, softmax): 16 partial sums, element i into sum i % 16 in ascending order, then the tree
// (i, i + 8), (i, i + 4), (i, i + 2), (i, i + 1).
#pragma once
#include <cstddef>
#include <cstdint>

namespace seer {

/// kAvxVnni: AVX2 with dot products of bytes.
enum class CpuIsa : uint8_t { kAuto, kScalar, kAvx2, kAvxVnni, kAvx512, kAmx };

/// KV cache of one layer and one KV head as the kernels see it. Positions are stored in tiles of 16:
///   bf16  K: [head_dim_padded / 2][16 positions][2 of the pair]   V: [head_dim_padded / 16][8 pairs][16 dims][2 positions]
///   f32   K: [head_dim_padded][16 positions]                      V: [16 positions][head_dim_padded]
/// A tile is its K followed by its V; head_dim_padded is head_dim up to a multiple of 16, filled with zeros.
inline constexpr int32_t kTilePositions = 16;
struct KvView {
  const std::byte* memory = nullptr;  // start of the engine's KV memory
  const int32_t* blocks = nullptr;    // block table of the sequence
  int64_t block_bytes = 0;
  int64_t offset_bytes = 0;  // of this layer and head within a block
  int32_t block_tiles = 1;   // tiles of one (layer, head) in a block, one after the other
  bool bf16 = true;
};

/// Attention of some rows of one sequence for the `group` query heads of one KV head: consecutive positions, or rows of
/// a draft tree. Rows of a tree share the positions before its root. From the root's tile on, each row reads a copy of its
/// own, its tail, which holds its ancestors and itself in order.
struct AttentionTask {
  KvView kv;
  int64_t position = 0;              // of the first row; row i attends to positions [0, position + i]
  const int32_t* depths = nullptr;   // tree: `position` is its root's, row i attends to [0, position + depths[i]]
  const std::byte* tails = nullptr;  // tree: tail of row i at tails + i * tail_bytes, beginning with the root's tile
  int64_t tail_bytes = 0;
  int32_t rows = 0;
  int32_t group = 0;
  int32_t head_dim = 0;
  float scale = 0;               // of the scores: head_dim^-1/2
  const float* query = nullptr;  // row i, head h: query + i * query_stride + h * head_dim; bf16 values if kv.bf16
  int64_t query_stride = 0;
  float* out = nullptr;  // likewise; rounded to bf16 if round_out
  int64_t out_stride = 0;
  bool round_out = false;
  float* scratch = nullptr;  // attention_scratch_floats(), 64-byte aligned
  // The task that follows on this thread, if any: its first keys are prefetched.
  KvView next_kv;
  int64_t next_tiles = 0;  // that it reads of next_kv; 0: none
};
/// `last_position`: the highest position of a row.
constexpr int64_t attention_scratch_floats(int32_t rows, int32_t group, int32_t head_dim, int64_t last_position) {
  const int64_t tiles = last_position / kTilePositions + 1;
  const int64_t padded = (head_dim + 15) / 16 * 16;
  return int64_t{rows} * group * (tiles * kTilePositions + 2 * padded + 32);
}

/// Weights that share a scale along the inputs. 64: the hidden sizes of models are multiples of it, so nothing is
/// padded; scales add 6 % to the bytes; the largest of 64 normal weights is 10 % smaller than that of 128, and the
/// rounding error with it.
inline constexpr int32_t kInt8GroupColumns = 64;
/// Bytes of one group of a panel: scales of 32 outputs, then their weights.
inline constexpr int32_t kInt8GroupBytes = 32 * 4 + 32 * kInt8GroupColumns;

/// Some inputs of a row as integers; quantize_row() makes them. Their scale is the largest magnitude / 127. An integer is
/// input * (127 / the largest magnitude), rounded to the nearest, ties to even: -127..127. If that magnitude is below 2^-110, the
/// group is zero; if one is an infinity or NaN, the scale is NaN, and with it every output of the row.
struct QuantizedGroup {
  float scale;
  int32_t offset;  // -128 x the sum of the integers, for kernels that multiply weights as stored: plus 128
  int8_t integers[kInt8GroupColumns];  // after a row's last input: zeros
};
constexpr int32_t int8_groups(int32_t columns) { return (columns + kInt8GroupColumns - 1) / kInt8GroupColumns; }

struct CpuKernels {
  const char* name;

  /// y[m][n] = dot(x[m], W[n]) for m in [0, rows) and the panels [panel_begin, panel_end) of 32 outputs. `w` is the
  /// start of a PackedMatrix, 64-byte aligned; x has columns_padded floats per row; y is written whole panels at a
  /// time.
  void (*gemm_bf16)(const float* x, int64_t x_stride, int32_t rows, int32_t columns_padded, const uint16_t* w,
                    int32_t panel_begin, int32_t panel_end, float* y, int64_t y_stride);
  void (*gemm_int8)(const float* x, int64_t x_stride, int32_t rows, int32_t columns_padded, const int8_t* w,
                    int32_t panel_begin, int32_t panel_end, float* y, int64_t y_stride);
  /// gemm_bf16 and gemm_int8 over rows of bf16, with the same bits; null if the processor has no tile registers.
  void (*gemm_bf16_tiles)(const uint16_t* x, int64_t x_stride, int32_t rows, int32_t columns_padded, const uint16_t* w,
                          int32_t panel_begin, int32_t panel_end, float* y, int64_t y_stride);
  void (*gemm_int8_tiles)(const uint16_t* x, int64_t x_stride, int32_t rows, int32_t columns_padded, const int8_t* w,
                          int32_t panel_begin, int32_t panel_end, float* y, int64_t y_stride);
  /// Fewer rows take gemm_int8: to expand weights for tiles would cost more than it gains.
  int32_t int8_tile_rows_min = 1;
  /// x: int8_groups(columns_padded) per row.
  void (*quantize_row)(const float* x, int32_t columns_padded, QuantizedGroup* out);
  void (*gemm_w8a8)(const QuantizedGroup* x, int32_t rows, int32_t groups, const int8_t* w, int32_t panel_begin,
                    int32_t panel_end, float* y, int64_t y_stride);
  void (*gemm_f32)(const float* x, int64_t x_stride, int32_t rows, int32_t columns_padded, const float* w,
                   int32_t panel_begin, int32_t panel_end, float* y, int64_t y_stride);

  /// out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i], NaN if that mean is infinite; out may be x. round: to bf16.
  void (*rms_norm)(const float* x, const float* weight, int32_t size, float eps, bool round, float* out);
  /// Rotates the pairs (x[i], x[half + i]) by the angles whose cosines and sines are given. round: to bf16.
  void (*rope)(float* x, const float* cosines, const float* sines, int32_t half, bool round);
  /// out[i] = silu(gate[i]) * up[i]. round: to bf16.
  void (*swiglu)(const float* gate, const float* up, int32_t size, bool round, float* out);
  /// x[i] += y[i].
  void (*add)(float* x, const float* y, int32_t size);
  void (*attention)(const AttentionTask& task);

  /// Multiplies and adds with operands in registers only, `rounds` times, and returns how many operations those were: the
  /// limit of the GEMMs. `sum` depends on all results, so that none is optimised away.
  int64_t (*fma_chains)(int64_t rounds, float* sum);
};

/// The table for `isa`, or null if resolve_cpu_isa() (cpu_isa.h) gives an error.
const CpuKernels* cpu_kernels(CpuIsa isa);

// Defined by kernels_<isa>.cpp.
const CpuKernels* scalar_kernels();
const CpuKernels* avx2_kernels();
const CpuKernels* avx_vnni_kernels();  // the AVX2 kernels, and their gemm_w8a8
const CpuKernels* avx512_kernels();
const CpuKernels* amx_kernels();  // the AVX-512 kernels, and those with tiles

}  // namespace seer
