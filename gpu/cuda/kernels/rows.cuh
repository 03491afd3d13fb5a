// Kernels that go over the rows of a pass: what is new in it, embeddings, norms, the activation, and what the slots feed next.
// Sums over a row are partial sums, element i in sum i % n in ascending order, then the tree (i, i + n/2) ... (0, 1): with 16 sums
// the bits of the CPU engine (gpu/cpu/kernels.h). Bytes are those of each array once per row, in f32 or the type of activations.
#pragma once
#include "gpu/cuda/kernel_args.h"
#include "gpu/cuda/kernels/gpu.h"

namespace seer::cuda {
namespace {

// grid: changes rounded up to blocks
GPU_INLINE void apply_changes(const ChangesArgs& args) {
  const Changes& n = *args.changes;
  const auto* slots = reinterpret_cast<const SlotChange*>(&n + 1);
  const auto* tables = reinterpret_cast<const TableChange*>(slots + n.slots);
  const auto* logs = reinterpret_cast<const LogChange*>(tables + n.tables);
  int i = block_x() * 128 + thread_index();
  if (i < n.slots) {
    args.slots[slots[i].slot] = slots[i].state;
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

// grid: rows rounded up to blocks
GPU_INLINE void begin_rows(const BeginArgs& args) {
  const int row = block_x() * 128 + thread_index();
  if (row >= args.plan->rows) return;
  const PlanRow planned = plan_rows(args.plan)[row];
  const SlotState& slot = args.slots[planned.slot];
  const int place = slot.start + planned.place;
  const int token = planned.token >= 0 ? planned.token : slot.last_token;
  const int block = args.tables[planned.slot * int64_t{args.table_stride} + place / args.block_tokens];
  args.log[block * int64_t{args.block_tokens} + place % args.block_tokens] = token;
  args.rows[row] = {planned.slot, slot.start + planned.offset, token, block, place, planned.tree < 0 ? kNoRoot : slot.start,
                    planned.parent, planned.tree};
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

// grid: rows
template <class T>
GPU_INLINE void embed(const EmbedArgs& args) {
  const int row = block_x();
  if (row >= args.plan->rows) return;
  const auto* from = static_cast<const typename T::Value*>(args.table) + args.rows[row].token * int64_t{args.table_stride};
  float* to = args.hidden + row * int64_t{args.hidden_stride};
  for (int i = thread_index(); i < args.columns; i += 128) to[i] = T::load(from[i]);
}
GPU_INLINE void embed_bf16(const EmbedArgs& args) { embed<Bf16>(args); }
GPU_INLINE void embed_f32(const EmbedArgs& args) { embed<F32>(args); }

// grid: rows, or samples
template <class T>
GPU_INLINE void norm(const NormArgs& args) {
  const int thread = thread_index(), at = block_x();
  if (at >= launch_rows(args.plan, args.samples, args.first_sample)) return;
  const int64_t row = args.samples ? plan_samples(args.plan)[args.first_sample + at].row : at;
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
    for (int i = thread; i < args.size; i += kNormThreads) hidden[i] = value(i);
    added = nullptr;
    UNLESS_PLANTED(9) __syncthreads();
  }
  auto* sums = reinterpret_cast<float*>(dynamic_shared());
  if (thread < args.sums) {
    float squares = 0;
    for (int i = thread; i < args.size; i += args.sums) {
      const float x = value(i);
      squares = fmaf(x, x, squares);
    }
    sums[thread] = squares;
  }
  for (int half = args.sums / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  __syncthreads();
  const float mean = sums[0] / static_cast<float>(args.size);
  const float scale = mean < kInfF ? 1.0f / sqrtf(mean + args.eps) : kNanF;
  auto* out = static_cast<typename T::Value*>(args.out) + at * int64_t{args.out_stride};
  for (int i = thread; i < args.size; i += kNormThreads) out[i] = T::round(value(i) * scale * args.weight[i]);
}
GPU_INLINE void norm_bf16(const NormArgs& args) { norm<Bf16>(args); }
GPU_INLINE void norm_f32(const NormArgs& args) { norm<F32>(args); }

// grid: rows
template <class T>
GPU_INLINE void swiglu(const SwigluArgs& args) {
  const int row = block_x();
  if (row >= args.plan->rows) return;
  const float* gate = args.gate_up + row * int64_t{args.stride};
  auto* out = static_cast<typename T::Value*>(args.out) + row * int64_t{args.out_stride};
  for (int i = thread_index(); i < args.size; i += 128) {
    const float g = args.bias ? gate[i] + args.bias[i] : gate[i];
    const float up = args.bias ? gate[args.size + i] + args.bias[args.size + i] : gate[args.size + i];
    out[i] = T::round(g / (1.0f + exp_f32(0.0f - g)) * up);
  }
}
GPU_INLINE void swiglu_bf16(const SwigluArgs& args) { swiglu<Bf16>(args); }
GPU_INLINE void swiglu_f32(const SwigluArgs& args) { swiglu<F32>(args); }

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

// grid: samples rounded up to blocks
GPU_INLINE void finish_rows(const FinishArgs& args) {
  const int i = block_x() * 128 + thread_index();
  if (i >= args.plan->samples) return;
  const int slot = plan_samples(args.plan)[i].advances_slot;
  if (slot < 0) return;
  const int token = args.sampled[i].token;
  args.slots[slot].last_token = token > 0 ? token : 0;  // kNotFinite: what follows is dropped, but must be an id
  ++args.slots[slot].start;
}

}  // namespace
}  // namespace seer::cuda
