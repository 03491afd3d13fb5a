// Bias, RMS norm of each query and key head (as Qwen3 has it), rotary embedding, and the write of K and V into the paged cache:
// a warp per row and query head, or per row and KV head (its key and value). Each element is read and written once.
// KV of a block: [layer][KV head][K, V][position][padded_dim]; what is beyond head_dim is zero.
//
// A key or value that is not finite must spoil exactly the rows that attend to it. A product with a masked position would be
// 0 * infinity, so there V becomes 0 and K NaN: masked scores are replaced, all others are NaN.
// Bytes per row: (heads + 2 KV heads) * head_dim * 4 read, (heads + 2 KV heads) * padded_dim * (2 or 4) written.
#pragma once
#include "gpu/cuda/kernel_args.h"
#include "gpu/cuda/kernels/gpu.h"

namespace seer::cuda {
namespace {

// grid: (warps of a row rounded up to blocks, rows)
template <class T>
GPU_INLINE void rope(const RopeArgs& args) {
  const int lane = thread_index() % 32, head = block_x() * 4 + thread_index() / 32, row = block_y();
  if (row >= args.plan->rows || head >= args.heads + args.kv_heads) return;
  const int dim = args.head_dim, half = dim / 2;
  const RowState at = args.rows[row];
  const float* qkv = args.qkv + row * int64_t{args.qkv_stride};
  const auto element = [&](int i) { return args.bias ? qkv[i] + args.bias[i] : qkv[i]; };
  const bool is_key = head >= args.heads;
  const float* weight = is_key ? args.k_norm : args.q_norm;
  float scale = 1;
  if (weight) {
    float squares = 0;
#pragma unroll 1
    for (int i = lane; lane < 16 && i < dim; i += 16) {
      const float x = element(head * dim + i);
      squares = fmaf(x, x, squares);
    }
#pragma unroll
    for (int n = 8; n > 0; n /= 2) squares += __shfl_xor_sync(~0u, squares, n);
    const float mean = __shfl_sync(~0u, squares, 0) / static_cast<float>(dim);
    scale = mean < kInfF ? 1.0f / sqrtf(mean + args.eps) : kNanF;
  }
  using Value = typename T::Value;
  const float* cosines = args.rope + at.position * int64_t{dim};
  const int kv_head = head - args.heads;
  auto* to = static_cast<Value*>(args.query) + (row * int64_t{args.heads} + head) * args.padded_dim;
  if (is_key)
    to = static_cast<Value*>(args.kv) + at.block * args.kv_block_elements + args.kv_layer_elements +
         (int64_t{kv_head} * 2 * args.block_tokens + at.place % args.block_tokens) * args.padded_dim;
  Value* to_value = to + int64_t{args.block_tokens} * args.padded_dim;
  bool finite = true;
  const auto check = [&](Value x) {
    const float f = T::load(x);
    finite = finite && f - f == 0.0f;
    return x;
  };
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int i = lane + 32 * j;
    if (i >= half) break;
    float a = element(head * dim + i), b = element(head * dim + half + i);
    if (weight) {
      a = a * scale * weight[i];
      b = b * scale * weight[half + i];
    }
    const float c = cosines[i], s = cosines[half + i];
    to[i] = check(T::round(fmaf(0.0f - b, s, a * c)));
    to[half + i] = check(T::round(fmaf(a, s, b * c)));
    if (!is_key) continue;
    const int value = (args.heads + args.kv_heads + kv_head) * dim;
    to_value[i] = check(T::round(element(value + i)));
    to_value[half + i] = check(T::round(element(value + half + i)));
  }
#pragma unroll 1
  for (int i = dim + lane; i < args.padded_dim; i += 32) {
    to[i] = T::round(0.0f);
    if (is_key) to_value[i] = T::round(0.0f);
  }
  if (!is_key || __ballot_sync(~0u, !finite) == 0) return;
#pragma unroll 1
  for (int i = lane; i < half; i += 32) {  // each lane what it wrote itself
    to[i] = to[half + i] = T::round(kNanF);
    to_value[i] = to_value[half + i] = T::round(0.0f);
  }
}
GPU_INLINE void rope_bf16(const RopeArgs& args) { rope<Bf16>(args); }
GPU_INLINE void rope_f32(const RopeArgs& args) { rope<F32>(args); }

}  // namespace
}  // namespace seer::cuda
