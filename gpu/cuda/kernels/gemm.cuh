// c = a * w^T for the rows of a pass, as in a linear layer; f32 sums, f32 out.
// A row's bits depend on that row and w alone: the products of an output are added in one chain along k, from first to last
// (bf16: an mma per 16 of them; f32: an fma each, as on the CPU); there is no split along k. So the host may pick any tile.
// Bytes: n * k * (2 or 4) for weights per row of tiles (from L2 after the first), m * k likewise for each column of tiles, m * n * 4
// written. 2 * m * n * k operations.
// REQUIRES: n a multiple of kGemmColumns, k of kGemmSteps; padding is zeros.
#pragma once
#include "gpu/cuda/kernel_args.h"
#include "gpu/cuda/kernels/gpu.h"

namespace seer::cuda {
namespace {

// grid: (n / kGemmColumns, rows / kTileM rounded up)
//
// Rows in shared memory have kGemmSteps * 2 = 128 bytes, eight pieces of 16. Piece p of row r is at place p ^ (r & 7), so that eight
// rows read at one piece, as ldmatrix does, hit each bank once. A thread copies one piece of every sixteenth row, and reads rows that
// are equal modulo 8: its swizzle is the same everywhere, and addresses in the loop are sums with constants.
template <int kWarpsM, int kFragsM, int kWarpsN, int kFragsN>
GPU_INLINE void gemm_bf16(const GemmArgs& args) {
  constexpr int kTileM = 16 * kWarpsM * kFragsM, kTileN = 8 * kWarpsN * kFragsN, kRowBytes = kGemmSteps * 2;
  constexpr int kStageBytes = (kTileM + kTileN) * kRowBytes;
  static_assert(32 * kWarpsM * kWarpsN == 128 && kRowBytes == 128);
  static_assert(kTileN == kGemmColumns && 2 * kStageBytes == gemm_shared_bytes(kTileM));
  const int thread = thread_index(), lane = thread % 32, warp = thread / 32;
  const int m = launch_rows(args.plan, args.samples, args.first_sample);
  const int first_m = block_y() * kTileM, first_n = block_x() * kTileN;
  if (first_m >= m) return;
  unsigned char* shared = dynamic_shared();

  // What this thread copies: rows copy_row + 16 j.
  const int copy_row = thread / 8, piece = thread % 8;
  const int64_t row_step = int64_t{16} * args.stride;
  const uint16_t* a = static_cast<const uint16_t*>(args.a) + int64_t{first_m + copy_row} * args.stride + piece * 8;
  const uint16_t* w = static_cast<const uint16_t*>(args.w) + int64_t{first_n + copy_row} * args.stride + piece * 8;
  const int copy_at = copy_row * kRowBytes + ((piece ^ (copy_row & 7)) << 4);
  const auto load = [&](int stage) {
#pragma unroll
    for (int j = 0; j < kTileM / 16; ++j) {
      const bool valid = first_m + copy_row + j * 16 < m;
      copy_async_16(shared + stage + copy_at + j * 16 * kRowBytes, valid ? a + j * row_step : a - copy_row * int64_t{args.stride}, valid);
    }
#pragma unroll
    for (int j = 0; j < kTileN / 16; ++j)
      copy_async_16(shared + stage + copy_at + (kTileM + j * 16) * kRowBytes, w + j * row_step);
    copy_async_commit();
    a += kGemmSteps;
    w += kGemmSteps;
  };

  // What this thread reads.
  const int warp_m = warp % kWarpsM * kFragsM * 16, warp_n = warp / kWarpsM * kFragsN * 8;
  const int a_at = (warp_m + lane % 16) * kRowBytes, a_piece = (lane / 16 ^ lane % 8) << 4;
  const int w_at = (kTileM + warp_n + lane / 16 * 8 + lane % 8) * kRowBytes, w_piece = (lane / 8 % 2 ^ lane % 8) << 4;

  float sum[kFragsM][kFragsN][4] = {};
  const int steps = args.k / kGemmSteps;
  load(0);
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2 * kStageBytes;
    if (step + 1 < steps) {
      load(kStageBytes - stage);
      UNLESS_PLANTED(1) copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    UNLESS_PLANTED(2) __syncthreads();
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
    UNLESS_PLANTED(3) __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kFragsM; ++i)
#pragma unroll
    for (int j = 0; j < kFragsN; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_m + warp_m + i * 16 + half * 8 + lane / 4, column = first_n + warp_n + j * 8 + lane % 4 * 2;
        if (PLANTED(4) || row < m)
          store(args.c + int64_t{row} * args.n + column, Float2{sum[i][j][half * 2], sum[i][j][half * 2 + 1]});
      }
}
GPU_INLINE void gemm_bf16_16(const GemmArgs& args) { gemm_bf16<1, 1, 4, 2>(args); }
GPU_INLINE void gemm_bf16_64(const GemmArgs& args) { gemm_bf16<2, 2, 2, 4>(args); }

// For comparison with the CPU, not for speed: a thread per output column.
// grid: (n / kGemmColumns, rows / kF32Rows rounded up)
GPU_INLINE void gemm_f32(const GemmArgs& args) {
  const int m = launch_rows(args.plan, args.samples, args.first_sample), column = block_x() * kGemmColumns + thread_index();
  const auto* w = static_cast<const float*>(args.w) + column;
  for (int row = block_y() * kF32Rows; row < (block_y() + 1) * kF32Rows && row < m; ++row) {
    const auto* a = static_cast<const float*>(args.a) + int64_t{row} * args.stride;
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < args.k; i += 4)  // k is a multiple of kGemmSteps
#pragma unroll
      for (int j = 0; j < 4; ++j) sum = fmaf(a[i + j], w[int64_t{i + j} * args.n], sum);
    args.c[int64_t{row} * args.n + column] = sum;
  }
}

}  // namespace
}  // namespace seer::cuda
