// The sum of the parts, bias, RMS norm of each query and key head (as Qwen3 has it), rotary embedding, and the write of K and V into the
// paged cache: a warp per row and query head, or per row and KV head (its key and value). Each element is read and written once.
// KV of a block: [layer][KV head][K, V][position][padded_dim]; what is beyond head_dim is zero.
//
// A key or value that is not finite must spoil exactly the rows that attend to it. A product with a masked position would be
// 0 * infinity, so there V becomes 0 and K NaN: masked scores are replaced, all others are NaN.
// Bytes per row: parts * (heads + 2 KV heads) * head_dim * 4 read, (heads + 2 KV heads) * padded_dim * (2 or 4) written.
#pragma once
#include "gpu/cuda/kernel_args.h"
#include "gpu/cuda/kernels/gpu.h"

namespace seer::cuda {
namespace {

// Two halves of a head, of which a lane has the elements `lane` and `lane + 32`.
struct Halves {
  float low[2], high[2];
};
GPU_INLINE void load_halves(const float* from, int half, Halves& to) {
  const int lane = thread_index() % 32;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int i = lane + 32 * j;
    if (i >= half) break;
    to.low[j] = from[i];
    to.high[j] = from[half + i];
  }
}
GPU_INLINE void add_halves(Halves& to, const Halves& from) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    to.low[j] += from.low[j];
    to.high[j] += from.high[j];
  }
}
// The sum of squares of a head, in the CPU's order: 16 partial sums, then by halves. The same in each lane.
GPU_INLINE float head_squares(const RopeArgs& args, int parts, const float* from, const float* bias) {
  constexpr int kTurns = 128 / 16;
  const int lane = thread_index() % 32, dim = args.head_dim;
  float x[kTurns] = {}, b[kTurns] = {};
  float squares = 0;
  if (lane < 16) {
#pragma unroll
    for (int j = 0; j < kTurns; ++j)
      if (lane + 16 * j < dim) x[j] = from[lane + 16 * j];
#pragma unroll 1
    for (int p = 1; p < parts; ++p) {
      float part[kTurns] = {};
#pragma unroll
      for (int j = 0; j < kTurns; ++j)
        if (lane + 16 * j < dim) part[j] = from[p * args.part_stride + lane + 16 * j];
#pragma unroll
      for (int j = 0; j < kTurns; ++j) x[j] += part[j];
    }
    if (bias) {
#pragma unroll
      for (int j = 0; j < kTurns; ++j)
        if (lane + 16 * j < dim) b[j] = bias[lane + 16 * j];
#pragma unroll
      for (int j = 0; j < kTurns; ++j) x[j] += b[j];
    }
#pragma unroll
    for (int j = 0; j < kTurns; ++j) squares = fmaf(x[j], x[j], squares);  // zeros beyond the head change nothing
  }
#pragma unroll
  for (int n = 8; n > 0; n /= 2) squares += __shfl_xor_sync(~0u, squares, n);
  return __shfl_sync(~0u, squares, 0);
}

// All loads of a warp come before its first store, so that they are on their way together.
// grid: (warps of a row rounded up to blocks, rows)
template <class T>
GPU_INLINE void rope(const RopeArgs& args) {
  const int lane = thread_index() % 32, head = block_x() * 4 + thread_index() / 32, row = block_y();
  const RowState at = args.rows[row];
  if (head >= args.heads + args.kv_heads || lacks_row(args.plan, row, at.position)) return;
  const int dim = args.head_dim, half = dim / 2, parts = T::kHasParts ? args.parts : 1;
  const float* qkv = args.qkv + row * int64_t{args.qkv_stride};
  const bool is_key = head >= args.heads;
  const int kv_head = head - args.heads, value_at = (head + args.kv_heads) * dim;  // if it is a key
  const float* weight = is_key ? args.k_norm : args.q_norm;
  Halves x = {}, v = {}, w = {}, angle = {};  // angle: cosines, sines
  load_halves(qkv + head * dim, half, x);
  if (is_key) load_halves(qkv + value_at, half, v);
  load_halves(args.rope + at.position * int64_t{dim}, half, angle);
  if (weight) load_halves(weight, half, w);
#pragma unroll 1
  for (int p = 1; p < parts; ++p) {
    Halves x_part = {}, v_part = {};
    load_halves(qkv + p * args.part_stride + head * dim, half, x_part);
    if (is_key) load_halves(qkv + p * args.part_stride + value_at, half, v_part);
    add_halves(x, x_part);
    add_halves(v, v_part);
  }
  if (args.bias) {
    Halves x_bias = {}, v_bias = {};
    load_halves(args.bias + head * dim, half, x_bias);
    if (is_key) load_halves(args.bias + value_at, half, v_bias);
    add_halves(x, x_bias);
    add_halves(v, v_bias);
  }
  float scale = 1;
  if (weight) {
    const float mean = head_squares(args, parts, qkv + head * dim, args.bias ? args.bias + head * dim : nullptr) / static_cast<float>(dim);
    scale = mean < kInfF ? 1.0f / sqrtf(mean + args.eps) : kNanF;
  }
  using Value = typename T::Value;
  auto* to = static_cast<Value*>(args.query) + (row * int64_t{args.heads} + head) * args.padded_dim;
  if (is_key)
    to = static_cast<Value*>(args.kv) + at.block * args.kv_block_elements + args.kv_layer_elements +
         (int64_t{kv_head} * 2 * args.block_tokens + at.place % args.block_tokens) * args.padded_dim;
  Value* to_value = to + int64_t{args.block_tokens} * args.padded_dim;
  bool finite = true;
  const auto check = [&](Value y) {
    const float f = T::load(y);
    finite = finite && f - f == 0.0f;
    return y;
  };
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int i = lane + 32 * j;
    if (i >= half) break;
    float a = x.low[j], b = x.high[j];
    if (weight) {
      a = a * scale * w.low[j];
      b = b * scale * w.high[j];
    }
    const float c = angle.low[j], s = angle.high[j];
    to[i] = check(T::round(fmaf(0.0f - b, s, a * c)));
    to[half + i] = check(T::round(fmaf(a, s, b * c)));
    if (!is_key) continue;
    to_value[i] = check(T::round(v.low[j]));
    to_value[half + i] = check(T::round(v.high[j]));
  }
  if constexpr (T::kPadsHeads)
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
