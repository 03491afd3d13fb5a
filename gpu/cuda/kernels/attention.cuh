// Paged attention. In bf16, up to 16 rows (token of one sequence, query head of the group) of one KV head share an mma tile, so
// that KV is read once for all of them.
// The context is cut every kSplit positions, whatever the batch; within a split, warp w takes the positions [16 w, 16 w + 16) of
// every 64; warps, then splits, are added in ascending order. So a row's bits depend on its own query and the KV up to its own
// position only: not on the tile, the batch or the length of others.
// Bytes: (context of the tile) * 2 * padded_dim * 2 per tile and KV head; partial sums (padded_dim + 2) * 4 per row, head and split,
// written and read once. 4 * context * padded_dim operations per row and head.
#pragma once
#include "gpu/cuda/kernel_args.h"
#include "gpu/cuda/kernels/gpu.h"

namespace seer::cuda {
namespace {

// A row of keys is 2 * kDim bytes, in pieces of 16. Piece p is at place p ^ swizzle(row), so that eight rows read at one piece, as
// ldmatrix does, hit each bank once. Rows that are equal modulo 8 have the same swizzle, so addresses in the loop are sums with
// constants, and the place of piece 2 i + h is that of piece h, xor 2 i.
template <int kDim>
GPU_INLINE int swizzle(int row) { return PLANTED(8) ? 0 : kDim >= 64 ? row & 7 : row >> 1 & 3; }
template <int kDim>
GPU_INLINE int kv_piece(int row, int piece) { return row * kDim * 2 + ((piece ^ swizzle<kDim>(row)) << 4); }

// Where the path of a row in a tree has its keys; the values are kPathPositions after them.
template <class Value>
GPU_INLINE const Value* path_keys(const AttentionArgs& args, const RowState& row, int kv_head) {
  return static_cast<const Value*>(args.paths) + (int64_t{row.tree} * args.kv_heads + kv_head) * 2 * kPathPositions * args.padded_dim;
}

struct alignas(16) Sixteen {
  const uint16_t *keys, *values;
};
template <int kDim>
GPU_INLINE Sixteen find_sixteen(const AttentionArgs& args, const RowState& row, int kv_head, int position) {
  if (position >= (row.root & ~15)) {
    const uint16_t* keys = path_keys<uint16_t>(args, row, kv_head) + (position - (row.root & ~15)) * kDim;
    return {keys, keys + kPathPositions * kDim};
  }
  const int block = args.tables[row.slot * int64_t{args.table_stride} + position / args.block_tokens];
  const uint16_t* keys = static_cast<const uint16_t*>(args.kv) + args.kv_layer_elements + block * args.kv_block_elements +
                         (int64_t{kv_head} * 2 * args.block_tokens + position % args.block_tokens) * kDim;
  return {keys, keys + int64_t{args.block_tokens} * kDim};
}

// Where the KV of a position is that a row in a tree sees from its root on: that of its ancestor there, or its own.
GPU_INLINE int place_on_path(const RowState* rows, int row, int position) {
  while (rows[row].position > position) row = rows[row].parent;
  return rows[row].place;
}

// Rows that are not in a tree end at once.
// grid: (KV heads, rows). Bytes: (positions from the root's sixteen on) * 2 * head_bytes, read and written.
GPU_INLINE void copy_paths(const PathArgs& args) {
  const int head = block_x(), row = block_y();
  if (row >= args.plan->rows || args.rows[row].tree < 0) return;
  const RowState state = args.rows[row];
  const int first = state.root & ~15, count = state.position + 1 - first;
  auto* places = reinterpret_cast<int*>(dynamic_shared());  // of the positions from the root on
#pragma unroll 1
  for (int i = thread_index(); i <= state.position - state.root; i += 128) places[i] = place_on_path(args.rows, row, state.root + i);
  __syncthreads();
  const int32_t* table = args.tables + state.slot * int64_t{args.table_stride};
  unsigned char* to = args.paths + (int64_t{state.tree} * args.kv_heads + head) * 2 * kPathPositions * args.head_bytes;
  const int pieces = args.head_bytes / 8;  // in f32 a head is as long as the model says: an even number of floats
#pragma unroll 1
  for (int i = thread_index(); i < count * pieces; i += 128) {
    const int position = first + i / pieces, place = position < state.root ? position : places[position - state.root];
    const unsigned char* key = args.kv + table[place / args.block_tokens] * args.kv_block_bytes + args.kv_layer_bytes +
                               (int64_t{head} * 2 * args.block_tokens + place % args.block_tokens) * args.head_bytes + i % pieces * 8;
    store(to + i * 8, load<uint64_t>(key));
    store(to + (kPathPositions * pieces + i) * 8, load<uint64_t>(key + int64_t{args.block_tokens} * args.head_bytes));
  }
}

// The accepted path of each tree, as accepted_path() of gpu/accept_draft.h has it; its tokens take their places in the log.
// grid: trees; one thread works.
GPU_INLINE void accept_trees(const AcceptArgs& args) {
  if (block_x() >= args.plan->trees || thread_index() > 0) return;
  const PlanTree tree = plan_trees(args.plan)[block_x()];
  AcceptedPath& path = args.accepted[block_x()];
  const RowState root = args.rows[tree.first_row];
  const int32_t* table = args.tables + root.slot * int64_t{args.table_stride};
  int last = 0, count = 1;
  path.rows[0] = 0;
#pragma unroll 1
  for (int i = 1; i < tree.rows; ++i) {
    const RowState row = args.rows[tree.first_row + i];
    if (row.parent != tree.first_row + last || row.token != args.sampled[tree.first_sample + last].token) continue;
    path.rows[count] = last = i;
    const int place = root.position + count++;
    args.log[table[place / args.block_tokens] * int64_t{args.block_tokens} + place % args.block_tokens] = row.token;
  }
  path.slot = root.slot;
  path.start = root.position;
  path.count = count;
}

// Each thread moves its bytes of one position after the other: rows[i] >= i, so none is overwritten before it has moved.
// grid: (KV heads of all layers, trees)
GPU_INLINE void move_accepted(const MoveArgs& args) {
  if (block_y() >= args.plan->trees) return;
  const AcceptedPath& path = args.accepted[block_y()];
  const int32_t* table = args.tables + path.slot * int64_t{args.table_stride};
  const auto key = [&](int place) {
    return args.kv + table[place / args.block_tokens] * args.kv_block_bytes +
           (int64_t{block_x()} * 2 * args.block_tokens + place % args.block_tokens) * args.head_bytes + thread_index() * 4;
  };
  const int64_t to_value = int64_t{args.block_tokens} * args.head_bytes;
  if (thread_index() * 4 >= args.head_bytes) return;
#pragma unroll 1
  for (int i = 1; i < path.count; ++i) {
    if (path.rows[i] == i) continue;
    const unsigned char* from = key(path.start + path.rows[i]);
    unsigned char* to = key(path.start + i);
    store(to, load<uint32_t>(from));
    store(to + to_value, load<uint32_t>(from + to_value));
  }
}

// grid: (splits, KV heads, tiles)
template <int kDim>
GPU_INLINE void attention_split(const AttentionArgs& args) {
  constexpr int kPieces = kDim / 8, kTileBytes = kTilePositions * kDim * 2, kSumStride = kDim + 8;  // eight rows in other banks
  if (block_z() >= args.plan->tiles) return;
  const int thread = thread_index(), lane = thread % 32, warp = thread / 32;
  const int split = block_x(), kv_head = block_y(), group = args.heads / args.kv_heads;
  const PlanTile tile_rows = plan_tiles(args.plan)[block_z()];
  const int first_row = tile_rows.first_row, rows = tile_rows.rows * group;  // REQUIRES: <= kTileRows
  const int start = args.rows[first_row].position, positions = start + tile_rows.rows;
  const int begin = split * kSplit;
  if (begin >= positions) return;
  const int end = begin + kSplit < positions ? begin + kSplit : positions;
  const auto* query = static_cast<const uint16_t*>(args.query);
  unsigned char* shared = dynamic_shared();
  unsigned char* shared_query = shared + 4 * kTileBytes;
  auto* merge = reinterpret_cast<float*>(shared_query + kTileRows * kDim * 2);  // [warp][row][largest, sum]

  // Where the keys and the values of each sixteen positions of the split are.
  auto* sixteens = reinterpret_cast<Sixteen*>(merge + 4 * kTileRows * 2);
  if (thread < kSplit / 16)
    store(sixteens + thread,
          find_sixteen<kDim>(args, args.rows[first_row], kv_head, begin + thread * 16 < end ? begin + thread * 16 : begin));
  __syncthreads();

  // A thread copies one piece of the rows copy_row + kRowsAtOnce * j.
  constexpr int kRowsAtOnce = kAttentionThreads / kPieces;
  const int copy_row = thread / kPieces, piece = thread % kPieces, copy_at = kv_piece<kDim>(copy_row, piece);
  const int copy_from = copy_row % 16 * kDim + piece * 8;
  const auto load = [&](int tile) {
    unsigned char* keys = shared + tile % 2 * 2 * kTileBytes + copy_at;
    constexpr int kTogether = kRowsAtOnce > 16 ? kRowsAtOnce : 16;  // rows with one address to begin with
    Sixteen from[kTilePositions / kTogether];
#pragma unroll
    for (int g = 0; g < kTilePositions / kTogether; ++g) {
      from[g] = cuda::load<Sixteen>(sixteens + tile * 4 + g * kTogether / 16 + (kRowsAtOnce > 16 ? copy_row / 16 : 0));
      from[g].keys += copy_from;
      from[g].values += copy_from;
    }
#pragma unroll
    for (int j = 0; j < kTilePositions / kRowsAtOnce; ++j) {
      // Zeros after the end: what lies there might be no number.
      const bool valid = begin + tile * kTilePositions + j * kRowsAtOnce + copy_row < end;
      const Sixteen& at = from[j * kRowsAtOnce / kTogether];
      copy_async_16(keys + j * kRowsAtOnce * kDim * 2, at.keys + j * kRowsAtOnce % 16 * kDim, valid);
      copy_async_16(keys + kTileBytes + j * kRowsAtOnce * kDim * 2, at.values + j * kRowsAtOnce % 16 * kDim, valid);
    }
    copy_async_commit();
  };

#pragma unroll 1
  for (int i = thread; i < kTileRows * kPieces; i += kAttentionThreads) {
    const int row = i / kPieces;
    const bool valid = row < rows;
    const int64_t head = kv_head * group + (valid ? row % group : 0), token = first_row + (valid ? row / group : 0);
    copy_async_16(shared_query + kv_piece<kDim>(row, i % kPieces), query + (token * args.heads + head) * kDim + i % kPieces * 8, valid);
  }
  const int tiles = (end - begin + kTilePositions - 1) / kTilePositions;
  load(0);

  const int query_at = kv_piece<kDim>(lane % 16, lane / 16);
  const int key_at = kv_piece<kDim>(warp * 16 + lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const int value_at = kv_piece<kDim>(warp * 16 + lane / 8 % 2 * 8 + lane % 8, lane / 16);
  const int row_of[2] = {lane / 4, lane / 4 + 8};
  int limit[2];  // the last position that the row sees
  for (int h = 0; h < 2; ++h) limit[h] = start + row_of[h] / group;
  float out[kDim / 8][4] = {}, largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) {
      load(tile + 1);
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();
    const unsigned char* keys = shared + tile % 2 * 2 * kTileBytes;
    const unsigned char* values = keys + kTileBytes;
    float score[2][4] = {};
#pragma unroll
    for (int kk = 0; kk < kDim / 16; ++kk) {
      uint32_t q[4], k[4];
      load_matrix_x4(q, shared_query + (query_at ^ kk << 5));
      load_matrix_x4(k, keys + (key_at ^ kk << 5));
      mma(score[0], q, k[0], k[1]);
      mma(score[1], q, k[2], k[3]);
    }
    const int position = begin + tile * kTilePositions + warp * 16 + lane % 4 * 2;
    uint32_t weight[4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float best = largest[h];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& s = score[i / 2][h * 2 + i % 2];
        s = position + i / 2 * 8 + i % 2 <= limit[h] ? s * args.scale : -INFINITY;
        best = fmaxf(best, s);
      }
      best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
      best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
      const float base = best == -INFINITY ? 0.0f : best;
      const float shrink = exp2_approx(largest[h] - base);
      largest[h] = best;
      float p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) p[i] = exp2_approx(score[i / 2][h * 2 + i % 2] - base);
      weight[h] = pack_bf16(p[0], p[1]);
      weight[2 + h] = pack_bf16(p[2], p[3]);
      const float sum = (low_bf16(weight[h]) + high_bf16(weight[h])) + (low_bf16(weight[2 + h]) + high_bf16(weight[2 + h]));
      total[h] = fmaf(total[h], shrink, sum);
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d) {
        out[d][h * 2] *= shrink;
        out[d][h * 2 + 1] *= shrink;
      }
    }
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      uint32_t v[4];
      load_matrix_x4_transposed(v, values + (value_at ^ d << 5));
      mma(out[d * 2], weight, v[0], v[1]);
      mma(out[d * 2 + 1], weight, v[2], v[3]);
    }
    UNLESS_PLANTED(5) __syncthreads();
  }
  // The four warps' sums, relative to the largest of all; the tiles' memory is free now.
  auto* sums = reinterpret_cast<float*>(shared);  // [warp][row][kSumStride]
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    total[h] += __shfl_xor_sync(~0u, total[h], 1);
    total[h] += __shfl_xor_sync(~0u, total[h], 2);
    if (lane % 4 == 0) {
      merge[(warp * kTileRows + row_of[h]) * 2] = largest[h];
      merge[(warp * kTileRows + row_of[h]) * 2 + 1] = total[h];
    }
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d)
      store(sums + (warp * kTileRows + row_of[h]) * kSumStride + d * 8 + lane % 4 * 2,
            Float2{out[d][h * 2], out[d][h * 2 + 1]});
  }
  UNLESS_PLANTED(6) __syncthreads();
#pragma unroll 1
  for (int i = thread; i < rows * kDim; i += kAttentionThreads) {
    const int row = i / kDim, d = i % kDim;
    float best = -INFINITY;
    for (int w = 0; w < 4; ++w) best = fmaxf(best, merge[(w * kTileRows + row) * 2]);
    const float base = best == -INFINITY ? 0.0f : best;
    float sum = 0, value = 0;
    for (int w = 0; w < 4; ++w) {
      const float factor = exp2_approx(merge[(w * kTileRows + row) * 2] - base);
      sum = fmaf(factor, merge[(w * kTileRows + row) * 2 + 1], sum);
      value = fmaf(factor, sums[(w * kTileRows + row) * kSumStride + d], value);
    }
    const int64_t at =
        ((first_row + row / group) * int64_t{args.heads} + kv_head * group + row % group) * args.splits + split;
    args.partial[at * kDim + d] = value;
    if (d == 0) {
      args.partial_max[at] = best;
      args.partial_sum[at] = sum;
    }
  }
}
GPU_INLINE void attention_32(const AttentionArgs& args) { attention_split<32>(args); }
GPU_INLINE void attention_64(const AttentionArgs& args) { attention_split<64>(args); }
GPU_INLINE void attention_128(const AttentionArgs& args) { attention_split<128>(args); }

// Adds the splits of each row, those that its context has.
// grid: (heads, rows)
GPU_INLINE void attention_combine(const AttentionArgs& args) {
  const int head = block_x(), row = block_y();
  if (row >= args.plan->rows) return;
  const int splits = args.rows[row].position / kSplit + 1;
  const int64_t first = (int64_t{row} * args.heads + head) * args.splits;
  float best = -INFINITY;
  for (int s = 0; s < splits; ++s) best = fmaxf(best, args.partial_max[first + s]);
  auto* out = static_cast<uint16_t*>(args.out) + row * int64_t{args.out_stride} + head * args.head_dim;
  const int d = thread_index();
  if (d >= args.head_dim) return;
  float sum = 0, value = 0;
  for (int s = 0; s < splits; ++s) {
    const float factor = exp2_approx(args.partial_max[first + s] - best);
    sum = fmaf(factor, args.partial_sum[first + s], sum);
    value = fmaf(factor, args.partial[(first + s) * args.padded_dim + d], value);
  }
  out[d] = Bf16::round(value / sum);
}

// For comparison with the CPU, in its order (gpu/cpu/attention_body.h), not for speed.
// grid: (heads, rows)
GPU_INLINE void attention_f32(const AttentionArgs& args) {
  const int thread = thread_index(), head = block_x(), row = block_y();
  if (row >= args.plan->rows) return;
  const RowState at = args.rows[row];
  const int kv_head = head / (args.heads / args.kv_heads), count = at.position + 1;
  const int32_t* table = args.tables + at.slot * int64_t{args.table_stride};
  const auto* kv = static_cast<const float*>(args.kv) + args.kv_layer_elements;
  const auto* query = static_cast<const float*>(args.query) + (int64_t{row} * args.heads + head) * args.padded_dim;
  float* weights = args.partial + (int64_t{row} * args.heads + head) * args.splits * kSplit;
  auto* shared = reinterpret_cast<float*>(dynamic_shared());
  const float* path = at.tree < 0 ? nullptr : path_keys<float>(args, at, kv_head);
  const auto keys = [&](int position) {
    if (position >= (at.root & ~15)) return path + (position - (at.root & ~15)) * args.padded_dim;
    return kv + table[position / args.block_tokens] * args.kv_block_elements +
           (int64_t{kv_head} * 2 * args.block_tokens + position % args.block_tokens) * args.padded_dim;
  };
  float best = -INFINITY;
  for (int p = thread; p < count; p += kAttentionThreads) {
    const float* key = keys(p);
    float sum = 0;
#pragma unroll 1
    for (int d = 0; d < args.head_dim; ++d) sum = fmaf(query[d], key[d], sum);
    weights[p] = sum * args.scale;
    best = fmaxf(best, weights[p]);
  }
  shared[thread] = best;
  __syncthreads();
  for (int t = 0; t < kAttentionThreads; ++t) best = fmaxf(best, shared[t]);
#pragma unroll 1
  for (int p = thread; p < count; p += kAttentionThreads) weights[p] = exp_f32(weights[p] - best);
  __syncthreads();
  float* sums = shared + kAttentionThreads;
  if (thread < 16) {
    float sum = 0;
#pragma unroll 1
    for (int p = thread; p < count; p += 16) sum += weights[p];
    sums[thread] = sum;
  }
  for (int half = 8; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  __syncthreads();
  const float inverse = 1.0f / sums[0];
  auto* out = static_cast<float*>(args.out) + row * int64_t{args.out_stride} + head * args.head_dim;
  for (int d = thread; d < args.head_dim; d += kAttentionThreads) {
    float sum = 0;
#pragma unroll 1
    for (int p = 0; p < count; ++p) sum = fmaf(weights[p], keys(p)[(p >= (at.root & ~15) ? kPathPositions : args.block_tokens) * args.padded_dim + d], sum);
    out[d] = sum * inverse;
  }
}

}  // namespace
}  // namespace seer::cuda
