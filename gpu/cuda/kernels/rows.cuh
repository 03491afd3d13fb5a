// Kernels that go over the rows of a pass: what is new in it, embeddings, norms, the activation, and what the slots feed next.
// In f32 mode the sum over a row is 16 partial sums, element i in sum i % 16 in ascending order, then the tree (i, i + 8) ... (0, 1): the
// bits of the CPU engine (gpu/cpu/kernels.h). In bf16 mode it has an order of its own, fixed by the size of a row. Bytes are those of each
// array once per row, in f32 or the type of activations.
#pragma once
#include "gpu/cuda/kernel_args.h"
#include "gpu/cuda/kernels/gpu.h"

namespace seer::cuda {
namespace {

// A thread per change, which is scattered: its sectors are those of its accesses.
// grid: changes rounded up to blocks. Bytes: per slot 116 read and 112 written, in 29 sectors; per block or token 12 read and 4 written, in 4.
GPU_INLINE void apply_changes(const ChangesArgs& args) {
  const Changes n = load_struct(args.changes);
  const auto* slots = reinterpret_cast<const SlotChange*>(args.changes + 1);
  const auto* tables = reinterpret_cast<const TableChange*>(slots + n.slots);
  const auto* logs = reinterpret_cast<const LogChange*>(tables + n.tables);
  int i = block_x() * 128 + thread_index();
  if (i < n.slots) {
    const auto* from = reinterpret_cast<const unsigned char*>(&slots[i].state);
    auto* to = reinterpret_cast<unsigned char*>(args.slots + slots[i].slot);
#pragma unroll
    for (size_t at = 0; at < sizeof(SlotState); at += 8) store(to + at, load<Words2>(from + at));
    return;
  }
  i -= n.slots;
  if (i < n.tables) {
    args.tables[tables[i].slot * int64_t{args.table_stride} + tables[i].index] = tables[i].block;
    return;
  }
  i -= n.tables;
  if (i < n.logs) args.log[logs[i].block * int64_t{args.block_tokens} + logs[i].offset] = logs[i].token;
}

// grid: rows rounded up to blocks. Bytes: per row 44 read and 36 written, in 7 sectors.
GPU_INLINE void begin_rows(const BeginArgs& args) {
  const int row = block_x() * 128 + thread_index();
  if (row >= args.plan->rows) return;
  const PlanRow planned = load_struct(plan_rows(args.plan) + row);
  const auto next = load<SlotNext>(&args.slots[planned.slot].next);
  const int place = next.start + planned.place;
  const int token = planned.token >= 0 ? planned.token : next.last_token;
  const int block = args.tables[planned.slot * int64_t{args.table_stride} + place / args.block_tokens];
  args.log[block * int64_t{args.block_tokens} + place % args.block_tokens] = token;
  store_struct(args.rows + row, {planned.slot, next.start + planned.offset, token, block, place, planned.tree < 0 ? kNoRoot : next.start,
                                 planned.parent, planned.tree});
}

// Clears each block whose first place the pass writes, so that nothing of its former owner is left.
// grid: (pieces of a block, rows). Bytes: block_bytes per block.
GPU_INLINE void clear_blocks(const ClearArgs& args) {
  const int row = block_y();
  if (row >= args.plan->rows || args.rows[row].place % args.block_tokens != 0) return;
  unsigned char* block = args.kv + args.rows[row].block * args.block_bytes;
#pragma unroll 1
  for (int64_t i = (block_x() * int64_t{128} + thread_index()) * 16; i < args.block_bytes; i += gridDim.x * int64_t{128} * 16)
    store(block + i, Words4{0, 0, 0, 0});
}

// The rows of the table are padded with zeros to whole pieces of four, and so are those of `hidden`.
// grid: (pieces of a row rounded up to blocks, rows)
template <class T>
GPU_INLINE void embed(const EmbedArgs& args) {
  const int row = block_y(), i = (block_x() * 128 + thread_index()) * 4;
  const int token = args.rows[row].token;
  if (i >= args.columns || lacks_row(args.plan, row, token)) return;
  const auto* from = static_cast<const typename T::Value*>(args.table) + token * int64_t{args.table_stride};
  store(args.hidden + row * int64_t{args.hidden_stride} + i, T::load4(from + i));
}
GPU_INLINE void embed_bf16(const EmbedArgs& args) { embed<Bf16>(args); }
GPU_INLINE void embed_f32(const EmbedArgs& args) { embed<F32>(args); }

// The row of `hidden` that the block of a norm works on.
GPU_INLINE int64_t norm_row(const NormArgs& args) {
  return args.samples ? plan_samples(args.plan)[args.first_sample + block_x()].row : block_x();
}
GPU_INLINE float norm_scale(const NormArgs& args, float squares) {
  const float mean = squares / static_cast<float>(args.size);
  return mean < kInfF ? 1.0f / sqrtf(mean + args.eps) : kNanF;
}

// The CPU's operations in its order.
// grid: rows, or samples
GPU_INLINE void norm_f32(const NormArgs& args) {
  constexpr int kSums = 16;
  const int thread = thread_index(), at = block_x();
  if (at >= launch_rows(args.plan, args.samples, args.first_sample)) return;
  const int64_t row = norm_row(args);
  float* hidden = args.hidden + row * args.hidden_stride;
  const float* added = args.added ? args.added + row * args.added_stride : nullptr;
  const auto value = [&](int i) {
    float x = hidden[i];
    if (added) {
      float sum = added[i];
#pragma unroll 1
      for (int p = 1; p < args.parts; ++p) sum += added[p * args.part_stride + i];
      x += args.bias ? sum + args.bias[i] : sum;
    }
    return x;
  };
  if (added && !args.samples) {
#pragma unroll 1
    for (int i = thread; i < args.size; i += kNormF32Threads) hidden[i] = value(i);
    added = nullptr;
    UNLESS_PLANTED(9) __syncthreads();
  }
  auto* sums = reinterpret_cast<float*>(dynamic_shared());
  if (thread < kSums) {
    float squares = 0;
#pragma unroll 1
    for (int i = thread; i < args.size; i += kSums) {
      const float x = value(i);
      squares = fmaf(x, x, squares);
    }
    sums[thread] = squares;
  }
  for (int half = kSums / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  __syncthreads();
  const float scale = norm_scale(args, sums[0]);
  float* out = static_cast<float*>(args.out) + at * int64_t{args.out_stride};
#pragma unroll 1
  for (int i = thread; i < args.size; i += kNormF32Threads) out[i] = value(i) * scale * args.weight[i];
}

// norm_bf16: thread t has the pieces t, t + kNormThreads ... of a row, each of four elements, zeros beyond its size. It keeps the first
// kNormPieces in registers, and their loads are on their way together. The others, of rows beyond 8192, it reads one at a time, and again
// after the sum.
GPU_INLINE Float4 sum4(const Float4& a, const Float4& b) {
  return {{a.at[0] + b.at[0], a.at[1] + b.at[1], a.at[2] + b.at[2], a.at[3] + b.at[3]}};
}
GPU_INLINE float add_squares(float sum, const Float4& x) {
#pragma unroll
  for (int e = 0; e < 4; ++e) sum = fmaf(x.at[e], x.at[e], sum);
  return sum;
}
GPU_INLINE void store_normed(uint16_t* to, const Float4& x, float scale, const Float4& weight) {
  float y[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) y[e] = x.at[e] * scale * weight.at[e];
  store(to, Words2{pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3])});
}

// The first `count` pieces of a thread; `from` is the first of them.
GPU_INLINE void load_pieces(const float* from, int count, Float4 (&to)[kNormPieces]) {
#pragma unroll
  for (int j = 0; j < kNormPieces; ++j)
    if (j < count) to[j] = load<Float4>(from + j * kNormThreads * 4);
}
GPU_INLINE void add_pieces(Float4 (&to)[kNormPieces], const Float4 (&x)[kNormPieces]) {
#pragma unroll
  for (int j = 0; j < kNormPieces; ++j) to[j] = sum4(to[j], x[j]);
}
// Adds up to three parts in their order, to two pieces at a time; `from` is the first piece of the first of them.
GPU_INLINE void add_parts(const float* from, int64_t part_stride, int parts, int count, Float4 (&sum)[kNormPieces]) {
  constexpr int kParts = 3;
#pragma unroll
  for (int j = 0; j < kNormPieces; j += 2) {
    Float4 part[kParts][2] = {};
#pragma unroll
    for (int i = 0; i < kParts * 2; ++i)
      if (i / 2 < parts && j + i % 2 < count)
        part[i / 2][i % 2] = load<Float4>(from + i / 2 * part_stride + (j + i % 2) * kNormThreads * 4);
#pragma unroll
    for (int i = 0; i < kParts * 2; ++i) sum[j + i % 2] = sum4(sum[j + i % 2], part[i / 2][i % 2]);
  }
}

// The sum over a block of kNormThreads, with the same bits in each thread: that of each warp by halves, then that of the warps by halves.
GPU_INLINE float block_sum(float x) {
  constexpr int kWarps = kNormThreads / 32;
  auto* sums = reinterpret_cast<float*>(dynamic_shared());
#pragma unroll
  for (int n = 16; n > 0; n /= 2) x += __shfl_xor_sync(~0u, x, n);
  if (thread_index() % 32 == 0) sums[thread_index() / 32] = x;
  __syncthreads();
  x = sums[thread_index() % kWarps];
#pragma unroll
  for (int n = kWarps / 2; n > 0; n /= 2) x += __shfl_xor_sync(~0u, x, n);
  return x;
}

// grid: rows, or samples
GPU_INLINE void norm_bf16(const NormArgs& args) {
  const int thread = thread_index(), at = block_x(), first = thread * 4;
  const int pieces = (args.size + 3) / 4, count = thread < pieces ? (pieces - 1 - thread) / kNormThreads + 1 : 0;
  if (at >= launch_rows(args.plan, args.samples, args.first_sample)) return;
  const int64_t row = norm_row(args);
  float* hidden = args.hidden + row * args.hidden_stride;
  const float* added = args.added ? args.added + row * args.added_stride : nullptr;
  const bool writes = added && !args.samples;

  Float4 weight[kNormPieces] = {}, x[kNormPieces] = {};
  load_pieces(args.weight + first, count, weight);
  load_pieces(hidden + first, count, x);
  if (added) {
    Float4 sum[kNormPieces] = {};
    load_pieces(added + first, count, sum);
#pragma unroll 1
    for (int p = 1; p < args.parts; p += 3) add_parts(added + p * args.part_stride + first, args.part_stride, args.parts - p, count, sum);
    if (args.bias) {
      Float4 bias[kNormPieces] = {};
      load_pieces(args.bias + first, count, bias);
      add_pieces(sum, bias);
    }
    add_pieces(x, sum);
  }
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kNormPieces; ++j) {
    if (writes && j < count) store(hidden + first + j * kNormThreads * 4, x[j]);
    squares = add_squares(squares, x[j]);
  }

  constexpr int kKept = kNormThreads * kNormPieces * 4;  // elements
  const auto value = [&](int i) {
    const auto before = load<Float4>(hidden + i);
    if (!added) return before;
    auto sum = load<Float4>(added + i);
#pragma unroll 1
    for (int p = 1; p < args.parts; ++p) sum = sum4(sum, load<Float4>(added + p * args.part_stride + i));
    return sum4(before, args.bias ? sum4(sum, load<Float4>(args.bias + i)) : sum);
  };
#pragma unroll 1
  for (int i = first + kKept; i < args.size; i += kNormThreads * 4) {
    const Float4 y = value(i);
    if (writes) store(hidden + i, y);
    squares = add_squares(squares, y);
  }

  const float scale = norm_scale(args, block_sum(squares));
  auto* out = static_cast<uint16_t*>(args.out) + at * int64_t{args.out_stride};
#pragma unroll
  for (int j = 0; j < kNormPieces; ++j)
    if (j < count) store_normed(out + first + j * kNormThreads * 4, x[j], scale, weight[j]);
#pragma unroll 1
  for (int i = first + kKept; i < args.size; i += kNormThreads * 4)
    store_normed(out + i, writes ? load<Float4>(hidden + i) : value(i), scale, load<Float4>(args.weight + i));
}

// grid: rows. In bf16 it is part of the GEMM.
GPU_INLINE void swiglu_f32(const SwigluArgs& args) {
  const int row = block_x();
  if (row >= args.plan->rows) return;
  const float* gate = args.gate_up + row * int64_t{args.stride};
  auto* out = static_cast<float*>(args.out) + row * int64_t{args.out_stride};
  for (int i = thread_index(); i < args.size; i += 128) {
    const float g = args.bias ? gate[i] + args.bias[i] : gate[i];
    const float up = args.bias ? gate[args.size + i] + args.bias[args.size + i] : gate[args.size + i];
    out[i] = g / (1.0f + exp_f32(0.0f - g)) * up;
  }
}

// grid: (samples from first_sample on, ranks, kJoined of a part rounded up)
GPU_INLINE void join_logits(const JoinArgs& args) {
  const int row = block_x(), rank = block_y();
  if (row >= launch_rows(args.plan, 1, args.first_sample)) return;
  const float* from = args.parts + (int64_t{rank} * args.rows + row) * args.part;
  float* to = args.logits + int64_t{row} * args.stride + rank * args.part;
#pragma unroll
  for (int j = 0; j < kJoined / 512; ++j)
    if (const int i = block_z() * kJoined + j * 512 + thread_index() * 4; i < args.part) store(to + i, load<Words4>(from + i));
}

// grid: any. Bytes: those of the data.
GPU_INLINE void check_finite(const CheckArgs& args) {
  const auto* floats = static_cast<const float*>(args.data);
  const auto* halves = static_cast<const uint16_t*>(args.data);
  bool finite = true;
#pragma unroll 1
  for (int64_t i = block_x() * int64_t{128} + thread_index(); i < args.count; i += gridDim.x * int64_t{128}) {
    const float x = args.f32 ? F32::load(floats[i]) : Bf16::load(halves[i]);
    finite = finite && x - x == 0.0f;
  }
  if (!finite) atomicOr(args.found, 1u);
}

// grid: samples rounded up to blocks. Bytes: per sample whose slot goes on 12 read and 8 written, in 4 sectors.
GPU_INLINE void finish_rows(const FinishArgs& args) {
  const int i = block_x() * 128 + thread_index();
  if (i >= args.plan->samples) return;
  const int slot = plan_samples(args.plan)[i].advances_slot;
  if (slot < 0) return;
  const int token = args.sampled[i].token;
  SlotNext* next = &args.slots[slot].next;
  store(next, SlotNext{next->start + 1, token > 0 ? token : 0});  // kNotFinite: what follows is dropped, but must be an id
}

}  // namespace
}  // namespace seer::cuda
