// c = a * w^T for the rows of a pass, as in a linear layer; f32 sums. Out are the sums, or for gate and up what the MLP feeds to down.
// A row's bits depend on that row and w alone: the products of an output are added in one chain along k, from first to last
// (bf16: an mma per 16 of them; f32: an fma each, as on the CPU); there is no split along k but in parts that all rows have. mma and wgmma
// give the same bits (measured on an H200), and so does any tile: the host picks by the number of rows.
// Bytes: n * k * (2 or 4) for weights per row of tiles (from L2 after the first), m * k likewise for each column of tiles, m * n * 4
// written, or m * n for gate and up. 2 * m * n * k operations.
// REQUIRES: n a multiple of kGemmColumns, k of kGemmSteps; padding is zeros.
#pragma once
#include "gpu/cuda/kernel_args.h"
#include "gpu/cuda/kernels/gpu.h"

namespace seer::cuda {
namespace {

// grid of all bf16 kernels: (rows / kTileM rounded up, n / kTileN rounded up, parts): blocks that share weights are neighbours.
//
// A block takes kGemmSteps columns of its rows of `a` and `w` at a time: 128 bytes of a row, eight pieces of 16. Piece p of row r is at
// place p ^ (r & 7), so that eight rows read at one piece, as ldmatrix does, hit each bank once; wgmma knows this order as its swizzle
// of 128 bytes. A thread copies one piece of every kRowsAtOnce-th row, which are equal modulo 8: its swizzle is the same everywhere.
template <KernelId kKernel, int kTileM, int kTileN, int kThreads>
struct TileCopies {
  static constexpr int kRowBytes = kGemmSteps * 2, kRowsAtOnce = kThreads / 8, kStageBytes = (kTileM + kTileN) * kRowBytes;
  static constexpr int kStages = info_of(kKernel).shared_bytes / kStageBytes;  // steps that shared memory holds
  static_assert(info_of(kKernel).shared_bytes == kStages * kStageBytes && info_of(kKernel).threads == kThreads);
  static_assert(kRowBytes == 128 && kRowsAtOnce % 8 == 0 && kTileM % kRowsAtOnce == 0);
  const uint16_t *a, *w;
  const int64_t row_step;
  const int at, rows_left, columns_left;

  GPU_INLINE TileCopies(const GemmArgs& args, int m)
      : a(static_cast<const uint16_t*>(args.a) + place(args, block_x() * kTileM)),
        w(static_cast<const uint16_t*>(args.w) + place(args, block_y() * kTileN)),
        row_step(int64_t{kRowsAtOnce} * args.stride),
        at(row() * kRowBytes + ((thread_index() % 8 ^ row() & 7) << 4)),
        rows_left(m - block_x() * kTileM - row()),
        columns_left(args.n - block_y() * kTileN - row()) {}
  GPU_INLINE static int row() { return thread_index() / 8; }
  GPU_INLINE static int64_t place(const GemmArgs& args, int first) {
    return block_z() * int64_t{args.k} + int64_t{first + row()} * args.stride + thread_index() % 8 * 8;
  }
  GPU_INLINE static int stage_after(int stage) { return stage == (kStages - 1) * kStageBytes ? 0 : stage + kStageBytes; }
  // Sends the first kOpen steps on their way. Weights do not depend on the kernel before, so they are asked for while it runs.
  template <int kOpen>
  GPU_INLINE void begin(unsigned char* shared, int steps) {
#pragma unroll
    for (int i = 0; i < kOpen; ++i)
      if (i < steps) copy_w(shared + i * kStageBytes);
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < kOpen; ++i) {
      if (i < steps) copy_a(shared + i * kStageBytes);
      copy_async_commit();
    }
  }
  // The next step, if there is one.
  GPU_INLINE void go_on(unsigned char* stage, bool is_there) {
    if (is_there) {
      copy_a(stage);
      copy_w(stage);
    }
    copy_async_commit();
  }
  // What follows in `a` and in `w`; zeros beyond their rows.
  GPU_INLINE void copy_a(unsigned char* stage) {
#pragma unroll
    for (int j = 0; j < kTileM; j += kRowsAtOnce)
      copy_async_16(stage + at + j * kRowBytes, j < rows_left ? a + j / kRowsAtOnce * row_step : a - row() * (row_step / kRowsAtOnce), j < rows_left);
    a += kGemmSteps;
  }
  GPU_INLINE void copy_w(unsigned char* stage) {
#pragma unroll
    for (int j = 0; j < kTileN; j += kRowsAtOnce) {
      if (kTileN % kRowsAtOnce != 0 && j + row() >= kTileN) break;
      unsigned char* to = stage + at + (kTileM + j) * kRowBytes;
      if (kTileN <= kGemmColumns)
        copy_async_16(to, w + j / kRowsAtOnce * row_step);
      else
        copy_async_16(to, j < columns_left ? w + j / kRowsAtOnce * row_step : w - row() * (row_step / kRowsAtOnce), j < columns_left);
    }
    w += kGemmSteps;
  }
};

// Writes sixteen rows of a warp from `row` on and 8 kFrags columns: fragments of mma. With gate and up, eight columns of the one are
// followed by the same eight of the other.
template <int kTileN, int kFrags>
GPU_INLINE void store_rows(const GemmArgs& args, const float (&sum)[kFrags][4], int row, int column, int m) {
  constexpr bool kAreAll = kTileN <= kGemmColumns;  // columns of a tile: their number is padded
  const int lane = thread_index() % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + half * 8 + lane / 4;
    if (!PLANTED(4) && r >= m) continue;
    if (args.activated) {
#pragma unroll
      for (int j = 0; j < kFrags; j += 2) {
        const int at = (column + j * 8) / 2 + lane % 4 * 2;
        if (!kAreAll && column + j * 8 >= args.n) continue;
        float out[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const bool has_bias = args.bias && at + e < args.inner;
          const float gate = sum[j][half * 2 + e] + (has_bias ? args.bias[at + e] : 0.0f);
          const float up = sum[j + 1][half * 2 + e] + (has_bias ? args.bias[args.inner + at + e] : 0.0f);
          out[e] = gate / (1.0f + exp_f32(0.0f - gate)) * up;
        }
        store(static_cast<uint16_t*>(args.activated) + int64_t{r} * args.activated_stride + at, pack_bf16(out[0], out[1]));
      }
    } else {
      float* c = args.c + block_z() * args.part_stride + int64_t{r} * args.n + column + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < kFrags; ++j)
        if (kAreAll || column + j * 8 < args.n) store(c + j * 8, Float2{sum[j][half * 2], sum[j][half * 2 + 1]});
    }
  }
}

// kStages - 1 steps are on their way from memory while one is computed.
template <KernelId kKernel, int kWarpsM, int kFragsM, int kWarpsN, int kFragsN>
GPU_INLINE void gemm_bf16(const GemmArgs& args) {
  constexpr int kTileM = 16 * kWarpsM * kFragsM, kTileN = 8 * kWarpsN * kFragsN;
  using Copies = TileCopies<kKernel, kTileM, kTileN, 32 * kWarpsM * kWarpsN>;
  constexpr int kRowBytes = Copies::kRowBytes, kOpen = Copies::kStages - 1;
  static_assert(kFragsN % 2 == 0);
  const int lane = thread_index() % 32, warp = thread_index() / 32;
  const int m = launch_rows(args.plan, args.samples, args.first_sample);
  if (block_x() * kTileM >= m) return wait_for_previous();
  unsigned char* shared = dynamic_shared();
  Copies copies(args, m);
  const int steps = args.k / kGemmSteps;
  copies.template begin<kOpen>(shared, steps);

  // What this thread reads: its addresses in the loop are sums with constants.
  const int warp_m = warp % kWarpsM * kFragsM * 16, warp_n = warp / kWarpsM * kFragsN * 8;
  const int a_at = (warp_m + lane % 16) * kRowBytes, a_piece = (lane / 16 ^ lane % 8) << 4;
  const int w_at = (kTileM + warp_n + lane / 16 * 8 + lane % 8) * kRowBytes, w_piece = (lane / 8 % 2 ^ lane % 8) << 4;

  float sum[kFragsM][kFragsN][4] = {};
  int step = 0, stage = 0, next = kOpen * Copies::kStageBytes;
#pragma unroll 1
  do {
    UNLESS_PLANTED(1) copy_async_wait<kOpen - 1>();
    UNLESS_PLANTED(2) __syncthreads();  // the step has arrived for all, and all have read the one before it
    copies.go_on(shared + next, step + kOpen < steps);
    next = Copies::stage_after(next);
#pragma unroll
    for (int kk = 0; kk < kGemmSteps / 16; ++kk) {
      uint32_t fa[kFragsM][4], fw[kFragsN / 2][4];
#pragma unroll
      for (int i = 0; i < kFragsM; ++i) load_matrix_x4(fa[i], shared + stage + a_at + i * 16 * kRowBytes + (a_piece ^ kk << 5));
#pragma unroll
      for (int j = 0; j < kFragsN / 2; ++j)
        load_matrix_x4(fw[j], shared + stage + w_at + j * 16 * kRowBytes + (w_piece ^ kk << 5));
#pragma unroll
      for (int i = 0; i < kFragsM; ++i)
#pragma unroll
        for (int j = 0; j < kFragsN; ++j) mma(sum[i][j], fa[i], fw[j / 2][j % 2 * 2], fw[j / 2][j % 2 * 2 + 1]);
    }
    stage = Copies::stage_after(stage);
  } while (++step < steps);
  let_next_begin();  // not before: its blocks would take room and memory's time from other blocks of this one
#pragma unroll
  for (int i = 0; i < kFragsM; ++i)
    store_rows<kTileN>(args, sum[i], block_x() * kTileM + warp_m + i * 16, block_y() * kTileN + warp_n, m);
}
GPU_INLINE void gemm_bf16_16_32(const GemmArgs& args) { gemm_bf16<KernelId::k_gemm_bf16_16_32, 1, 1, 2, 2>(args); }
// With fewer steps on their way, four blocks fit on a multiprocessor.
GPU_INLINE void gemm_bf16_16_32_more(const GemmArgs& args) { gemm_bf16<KernelId::k_gemm_bf16_16_32_more, 1, 1, 2, 2>(args); }
GPU_INLINE void gemm_bf16_64_64(const GemmArgs& args) { gemm_bf16<KernelId::k_gemm_bf16_64_64, 2, 2, 2, 4>(args); }
GPU_INLINE void gemm_bf16_128_256(const GemmArgs& args) { gemm_bf16<KernelId::k_gemm_bf16_128_256, 2, 4, 4, 8>(args); }

// For GPUs with wgmma: each of kGroupsM * kGroupsN groups of four warps has 64 rows and kColumns columns of the tile. wgmma reads shared
// memory in the background: a step is multiplied while the next is awaited, so kStages - 2 steps are on their way from memory.
template <KernelId kKernel, int kGroupsM, int kGroupsN, int kColumns>
GPU_INLINE void gemm_groups(const GemmArgs& args) {
  if constexpr (kHasGroupMma) {
    constexpr int kTileM = 64 * kGroupsM, kTileN = kColumns * kGroupsN;
    using Copies = TileCopies<kKernel, kTileM, kTileN, 128 * kGroupsM * kGroupsN>;
    constexpr int kRowBytes = Copies::kRowBytes, kOpen = Copies::kStages - 2;
    const int warp = thread_index() / 32, group_m = warp / 4 % kGroupsM, group_n = warp / 4 / kGroupsM;
    const int m = launch_rows(args.plan, args.samples, args.first_sample);
    if (block_x() * kTileM >= m) return wait_for_previous();
    unsigned char* shared = dynamic_shared();
    Copies copies(args, m);
    const int steps = args.k / kGemmSteps;
    copies.template begin<kOpen>(shared, steps);
    float sum[kColumns / 8][4] = {};
    int step = 0, stage = 0, next = kOpen * Copies::kStageBytes;
#pragma unroll 1
    do {
      copy_async_wait<kOpen - 1>();
      group_mma_wait<1>();
      UNLESS_PLANTED(3) show_to_group_mma();
      __syncthreads();  // the step has arrived for all, and all have multiplied the one before the last
      group_mma_begin();
      const unsigned char* a = shared + stage + group_m * 64 * kRowBytes;
      const unsigned char* w = shared + stage + (kTileM + group_n * kColumns) * kRowBytes;
#pragma unroll
      for (int kk = 0; kk < kGemmSteps / 16; ++kk) group_mma<kColumns>(sum, a + kk * 32, w + kk * 32);
      group_mma_commit();
      copies.go_on(shared + next, step + kOpen < steps);
      next = Copies::stage_after(next);
      stage = Copies::stage_after(stage);
    } while (++step < steps);
    let_next_begin();
    group_mma_wait<0>();
    group_mma_results(sum);
    store_rows<kTileN>(args, sum, block_x() * kTileM + group_m * 64 + warp % 4 * 16, block_y() * kTileN + group_n * kColumns, m);
  }
}
GPU_INLINE void gemm_groups_64_64(const GemmArgs& args) { gemm_groups<KernelId::k_gemm_groups_64_64, 1, 1, 64>(args); }
GPU_INLINE void gemm_groups_64_128(const GemmArgs& args) { gemm_groups<KernelId::k_gemm_groups_64_128, 1, 1, 128>(args); }
GPU_INLINE void gemm_groups_64_192(const GemmArgs& args) { gemm_groups<KernelId::k_gemm_groups_64_192, 1, 2, 96>(args); }
GPU_INLINE void gemm_groups_64_288(const GemmArgs& args) { gemm_groups<KernelId::k_gemm_groups_64_288, 1, 2, 144>(args); }
GPU_INLINE void gemm_groups_128_64(const GemmArgs& args) { gemm_groups<KernelId::k_gemm_groups_128_64, 2, 1, 64>(args); }
GPU_INLINE void gemm_groups_128_96(const GemmArgs& args) { gemm_groups<KernelId::k_gemm_groups_128_96, 2, 1, 96>(args); }
GPU_INLINE void gemm_groups_128_128(const GemmArgs& args) { gemm_groups<KernelId::k_gemm_groups_128_128, 2, 1, 128>(args); }
GPU_INLINE void gemm_groups_128_256(const GemmArgs& args) { gemm_groups<KernelId::k_gemm_groups_128_256, 2, 2, 128>(args); }
GPU_INLINE void gemm_groups_128_288(const GemmArgs& args) { gemm_groups<KernelId::k_gemm_groups_128_288, 2, 2, 144>(args); }

// For comparison with the CPU, not for speed: a thread per output column.
// grid: (rows / kF32Rows rounded up, n / kGemmColumns, parts)
GPU_INLINE void gemm_f32(const GemmArgs& args) {
  const int m = launch_rows(args.plan, args.samples, args.first_sample), column = block_y() * kGemmColumns + thread_index();
  const int64_t part = block_z() * int64_t{args.k};
  const auto* w = static_cast<const float*>(args.w) + part * args.n + column;
  for (int row = block_x() * kF32Rows; row < (block_x() + 1) * kF32Rows && row < m; ++row) {
    const auto* a = static_cast<const float*>(args.a) + part + int64_t{row} * args.stride;
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < args.k; i += 4)  // k is a multiple of kGemmSteps
#pragma unroll
      for (int j = 0; j < 4; ++j) sum = fmaf(a[i + j], w[int64_t{i + j} * args.n], sum);
    args.c[block_z() * args.part_stride + int64_t{row} * args.n + column] = sum;
  }
}

}  // namespace
}  // namespace seer::cuda
