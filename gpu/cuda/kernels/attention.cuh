// Paged attention. In bf16 up to kTileRows rows (token of one sequence, query head of the group) of one KV head share what is read of
// KV, 64 positions at a time; each of four warps has 16 of the rows, an mma tile. A warp without rows only copies.
// The context is cut every kSplit positions, whatever the batch. Within a split a row takes 64 positions at a time in ascending order:
// their scores, one rescaling of its sums, their values. Splits are added in ascending order. So a row's bits depend on its own query and
// the KV up to its own position only: not on the tile, the batch or the length of others. A block does one split, whose sums
// attention_combine adds; or all splits of a tile that is whole, in which case nothing goes through memory.
// Bytes: (context of the tile) * 2 * padded_dim * 2 per tile and KV head; the sums of splits, (padded_dim + 2) * 4 per split row, head and split,
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

// Where the key and the value of one position of a sixteen are: of its position kMiddle, so that the others are at offsets that fit into
// an instruction, of 12 bits.
constexpr int kMiddle = 4;
struct alignas(16) Sixteen {
  const uint16_t *keys, *values;
};
template <int kDim>
GPU_INLINE Sixteen find_sixteen(const AttentionArgs& args, const RowState& row, bool may_have_path, int kv_head, int position) {
  if (may_have_path && position >= (row.root & ~15)) {
    const uint16_t* keys = path_keys<uint16_t>(args, row, kv_head) + (position - (row.root & ~15)) * kDim;
    return {keys + kMiddle * kDim, keys + (kPathPositions + kMiddle) * kDim};
  }
  const int block = args.tables[row.slot * int64_t{args.table_stride} + position / args.block_tokens];
  const uint16_t* keys = static_cast<const uint16_t*>(args.kv) + args.kv_layer_elements + block * args.kv_block_elements +
                         (int64_t{kv_head} * 2 * args.block_tokens + position % args.block_tokens) * kDim;
  return {keys + kMiddle * kDim, keys + (int64_t{args.block_tokens} + kMiddle) * kDim};
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

// Adds the sums of a split to those of the splits before it. `best` is in units of log2.
struct SplitFactors {
  float before, split;
};
GPU_INLINE SplitFactors join_split(float& best, float& sum, float split_best, float split_sum) {
  const float most = fmaxf(best, split_best), base = most == -INFINITY ? 0.0f : most;
  const SplitFactors f{exp2_approx(best - base), exp2_approx(split_best - base)};
  best = most;
  sum = fmaf(sum, f.before, f.split * split_sum);
  return f;
}

// Where the largest score and the sum of a row and split are: those of the rows of a tile are neighbours.
GPU_INLINE Float2* split_stats(const AttentionArgs& args, int kv_head, int split, int row) {
  return static_cast<Float2*>(args.stats) + (int64_t{kv_head} * args.splits + split) * args.plan->split_rows * (args.heads / args.kv_heads) + row;
}

// grid: (splits, KV heads, tiles)
template <int kDim>
GPU_INLINE void attention_split(const AttentionArgs& args) {
  constexpr int kPieces = kDim / 8, kTileBytes = kTilePositions * kDim * 2, kSixteens = 2u * kSplit / 16;
  if (block_z() >= args.plan->tiles) return;
  const int thread = thread_index(), lane = thread % 32, warp = thread / 32;
  const int kv_head = block_y(), group = args.heads / args.kv_heads;
  const PlanTile tile_rows = plan_tiles(args.plan)[block_z()];
  const int first_row = tile_rows.first_row, rows = tile_rows.rows * group;  // REQUIRES: <= kTileRows
  const RowState* first = args.rows + first_row;
  const int start = first->position, positions = start + tile_rows.rows;
  const int begin = block_x() * kSplit;
  if (begin >= positions) return;
  const bool is_whole = tile_rows.first_split_row < 0;
  if (is_whole && begin > 0) return;
  const int end = is_whole || begin + kSplit > positions ? positions : begin + kSplit;
  const auto* query = static_cast<const uint16_t*>(args.query);
  unsigned char* shared = dynamic_shared();
  unsigned char* shared_query = shared + 4 * kTileBytes;
  // Where the keys and the values of each sixteen positions are, of the split at hand and the next. Those after the end are not read.
  auto* sixteens = reinterpret_cast<Sixteen*>(shared_query + kTileRows * kDim * 2);
  const auto find_split = [&](int split_begin, bool may_have_path) {
    const int position = split_begin + thread * 16;
    if (thread < kSplit / 16)
      store(sixteens + (position >> 4) % kSixteens, find_sixteen<kDim>(args, *first, may_have_path, kv_head, position < end ? position : begin));
  };
  find_split(begin, true);
  __syncthreads();

  // A thread copies one piece of the rows copy_row + kRowsAtOnce * j.
  constexpr int kRowsAtOnce = kAttentionThreads / kPieces;
  const int copy_row = thread / kPieces, piece = thread % kPieces, copy_at = kv_piece<kDim>(copy_row, piece);
  const int copy_from = copy_row % 16 * kDim + piece * 8;
  const auto load = [&](int position, int stage) {
    unsigned char* keys = shared + stage + copy_at;
    const Sixteen* at_tile = sixteens + (position >> 4) % kSixteens;
    constexpr int kTogether = kRowsAtOnce > 16 ? kRowsAtOnce : 16;  // rows with one address to begin with
    Sixteen from[kTilePositions / kTogether];
#pragma unroll
    for (int g = 0; g < kTilePositions / kTogether; ++g) {
      from[g] = cuda::load<Sixteen>(at_tile + g * kTogether / 16 + (kRowsAtOnce > 16 ? copy_row / 16 : 0));
      from[g] = {fixed(from[g].keys + copy_from), fixed(from[g].values + copy_from)};
    }
    const int left = end - position - copy_row;
#pragma unroll
    for (int row = 0; row < kTilePositions; row += kRowsAtOnce) {
      // Zeros after the end: what lies there might be no number, and a weight of 0 would not hide that.
      const int at = (row % 16 - kMiddle) * kDim;
      copy_async_16(keys + row * kDim * 2, from[row / kTogether].keys + at, row < left);
      copy_async_16(keys + kTileBytes + row * kDim * 2, from[row / kTogether].values + at, row < left);
    }
    copy_async_commit();
  };

#pragma unroll 1
  for (int i = thread; i < (rows + 15) / 16 * 16 * kPieces; i += kAttentionThreads) {
    const int row = i / kPieces;
    const bool valid = row < rows;
    const int64_t head = kv_head * group + (valid ? row % group : 0), token = first_row + (valid ? row / group : 0);
    copy_async_16(shared_query + kv_piece<kDim>(row, i % kPieces), query + (token * args.heads + head) * kDim + i % kPieces * 8, valid);
  }
  load(begin, 0);

  constexpr uint32_t kOnes = 0x3f803f80;  // two of them in bf16
  const bool computes = warp * 16 < rows;
  // What a lane tells ldmatrix: a row of sixteen and the half of an mma's 16 columns. Columns from 16 i on: xor 32 i, and as 128 bytes
  // are not swizzled, plus 128 for each four.
  const int key_at = kv_piece<kDim>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const int value_at = kv_piece<kDim>(lane % 16, lane / 16);  // of the query too
  const auto columns = [](int at, int i) { return (at ^ i % 4 << 5) + i / 4 * 128; };
  const unsigned char* own_query = shared_query + warp * 16 * kDim * 2;
  const int row_of[2] = {warp * 16 + lane / 4, warp * 16 + lane / 4 + 8};
  int limit[2];  // the last position that the row sees
  for (int h = 0; h < 2; ++h) limit[h] = start + row_of[h] / group;
  const int lowest = start + warp * 16 / group;
  // Sums of all splits so far.
  float out[kDim / 8][4] = {}, best[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  int stage = 0;  // where the tile at hand is
#pragma unroll 1
  for (int split_begin = begin; split_begin < end; split_begin += kSplit) {
    const int split_end = split_begin + kSplit < end ? split_begin + kSplit : end;
    if (split_end < end) find_split(split_end, false);  // a whole tile: no tree
    // The sum of the weights is a column of its own: that of values that are all 1.
    float value[kDim / 8][4] = {}, total[4] = {}, largest[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
    for (int position = split_begin; position < split_end; position += kTilePositions) {
      if (position + kTilePositions < end) {
        load(position + kTilePositions, 2 * kTileBytes - stage);
        copy_async_wait<1>();
      } else {
        copy_async_wait<0>();
      }
      __syncthreads();
      if (computes) {
        const unsigned char* keys = shared + stage;
        const unsigned char* values = keys + kTileBytes;
        float score[kTilePositions / 8][4] = {};
#pragma unroll
        for (int kk = 0; kk < kDim / 16; ++kk) {
          uint32_t q[4];
          load_matrix_x4(q, own_query + columns(value_at, kk));
#pragma unroll
          for (int n = 0; n < kTilePositions / 16; ++n) {
            uint32_t k[4];
            load_matrix_x4(k, keys + columns(key_at, kk) + n * 16 * kDim * 2);
            mma(score[n * 2], q, k[0], k[1]);
            mma(score[n * 2 + 1], q, k[2], k[3]);
          }
        }
        if (position + kTilePositions - 1 > lowest) {
          const int seen[2] = {limit[0] - position - lane % 4 * 2, limit[1] - position - lane % 4 * 2};
#pragma unroll
          for (int i = 0; i < kTilePositions / 2; ++i) {
            float& s = score[i / 4][i % 4];
            s = i / 4 * 8 + i % 2 <= seen[i % 4 / 2] ? s : -INFINITY;
          }
        }
        uint32_t weight[kTilePositions / 16][4];
        float shrink[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float most = largest[h];
#pragma unroll
          for (int i = 0; i < kTilePositions / 4; ++i) most = fmaxf(most, score[i / 2][h * 2 + i % 2]);
          most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
          most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
          const float base = most == -INFINITY ? 0.0f : 0.0f - most * args.scale;
          // Exactly 1 without a larger score: a row must not notice positions that only other rows of its tile see.
          shrink[h] = most == largest[h] ? 1.0f : exp2_approx(fmaf(largest[h], args.scale, base));
          largest[h] = most;
#pragma unroll
          for (int i = 0; i < kTilePositions / 4; ++i) {
            float& s = score[i / 2][h * 2 + i % 2];
            s = exp2_approx(fmaf(s, args.scale, base));
          }
#pragma unroll
          for (int i = 0; i < kTilePositions / 8; ++i)
            weight[i / 2][i % 2 * 2 + h] = pack_bf16(score[i][h * 2], score[i][h * 2 + 1]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) total[i] *= shrink[i / 2];
#pragma unroll
        for (int i = 0; i < kDim / 2; ++i) value[i / 4][i % 4] *= shrink[i % 4 / 2];
#pragma unroll
        for (int n = 0; n < kTilePositions / 16; ++n) {
          mma(total, weight[n], kOnes, kOnes);
#pragma unroll
          for (int d = 0; d < kDim / 16; ++d) {
            uint32_t v[4];
            load_matrix_x4_transposed(v, values + columns(value_at, d) + n * 16 * kDim * 2);
            mma(value[d * 2], weight[n], v[0], v[1]);
            mma(value[d * 2 + 1], weight[n], v[2], v[3]);
          }
        }
      }
      stage = 2 * kTileBytes - stage;
      UNLESS_PLANTED(5) __syncthreads();
    }
    if (!computes) continue;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (limit[h] < split_begin) continue;  // the row sees nothing of this split
      const SplitFactors f = join_split(best[h], sum[h], largest[h] * args.scale, total[h * 2]);
#pragma unroll
      for (int i = 0; i < kDim / 4; ++i) {
        float& o = out[i / 2][h * 2 + i % 2];
        o = fmaf(o, f.before, f.split * value[i / 2][h * 2 + i % 2]);
      }
    }
  }
  if (!computes) return;
  if (!is_whole) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (row_of[h] >= rows) continue;
      const int64_t split_row = tile_rows.first_split_row + row_of[h] / group, head = kv_head * group + row_of[h] % group;
      float* to = args.partial + ((split_row * args.heads + head) * args.splits + block_x()) * kDim + lane % 4 * 2;
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d) store(to + d * 8, Float2{out[d][h * 2], out[d][h * 2 + 1]});
      if (lane % 4 == 0) store(split_stats(args, kv_head, block_x(), tile_rows.first_split_row * group + row_of[h]), Float2{best[h], sum[h]});
    }
    return;
  }
  // Through the memory of the query, which only this warp reads, so that a row's elements are neighbours.
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float inverse = 1.0f / sum[h];
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d)
      store(shared_query + kv_piece<kDim>(row_of[h], d) + lane % 4 * 4, pack_bf16(out[d][h * 2] * inverse, out[d][h * 2 + 1] * inverse));
  }
  UNLESS_PLANTED(6) __syncwarp();
#pragma unroll 1
  for (int row = warp * 16; row < warp * 16 + 16 && row < rows; ++row) {
    auto* to = static_cast<uint16_t*>(args.out) + (first_row + row / group) * int64_t{args.out_stride} +
               (kv_head * group + row % group) * args.head_dim;
#pragma unroll 1
    for (int i = lane * 2; i < args.head_dim; i += 64)
      store(to + i, cuda::load<uint32_t>(shared_query + kv_piece<kDim>(row, i / 8) + i % 8 * 2));
  }
}
GPU_INLINE void attention_32(const AttentionArgs& args) { attention_split<32>(args); }
GPU_INLINE void attention_64(const AttentionArgs& args) { attention_split<64>(args); }
GPU_INLINE void attention_128(const AttentionArgs& args) { attention_split<128>(args); }

// Adds the splits of each row, those that its context has, kSplitsAtOnce at a time: their loads come first. A thread has two elements.
// Rows of whole tiles end at once.
// grid: (elements of a row's heads, two per thread, rounded up to blocks; rows)
GPU_INLINE void attention_combine(const AttentionArgs& args) {
  const int i = block_x() * kAttentionThreads + thread_index(), row = block_y();
  const int head = i / (args.padded_dim / 2), d = i % (args.padded_dim / 2) * 2, group = args.heads / args.kv_heads;
  const int position = args.rows[row].position, split_row = plan_rows(args.plan)[row].split_row;
  if (head >= args.heads || d >= args.head_dim || lacks_row(args.plan, row, position | split_row) || split_row < 0) return;
  const int splits = position / kSplit + 1, stats_stride = args.plan->split_rows * group;
  const float* partial = args.partial + (int64_t{split_row} * args.heads + head) * args.splits * args.padded_dim + d;
  const Float2* all_stats = split_stats(args, head / group, 0, split_row * group + head % group);
  float best = -INFINITY, sum = 0;
  Float2 value{0, 0};
#pragma unroll 1
  for (int first = 0; first < splits; first += kSplitsAtOnce) {
    Float2 stats[kSplitsAtOnce], part[kSplitsAtOnce];
#pragma unroll
    for (int s = 0; s < kSplitsAtOnce; ++s) {
      if (first + s >= splits) break;
      stats[s] = load<Float2>(all_stats + (first + s) * int64_t{stats_stride});
      part[s] = load<Float2>(partial + (first + s) * args.padded_dim);
    }
#pragma unroll
    for (int s = 0; s < kSplitsAtOnce; ++s) {
      if (first + s >= splits) break;
      const SplitFactors f = join_split(best, sum, stats[s].x, stats[s].y);
      value.x = fmaf(value.x, f.before, f.split * part[s].x);
      value.y = fmaf(value.y, f.before, f.split * part[s].y);
    }
  }
  const float inverse = 1.0f / sum;
  auto* out = static_cast<uint16_t*>(args.out) + row * int64_t{args.out_stride} + head * args.head_dim;
  store(out + d, pack_bf16(value.x * inverse, value.y * inverse));
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
    int p = 0;
#pragma unroll 1
    do sum = fmaf(weights[p], keys(p)[(p >= (at.root & ~15) ? kPathPositions : args.block_tokens) * args.padded_dim + d], sum);
    while (++p < count);
    out[d] = sum * inverse;
  }
}

}  // namespace
}  // namespace seer::cuda
