// Paged attention over Lanes; part of kernel_body.h. Three passes per task: scores of all positions, softmax, weighted
// sum of V. The order of operations of one query depends on its own position only:
//   score   the dot product of kernels.h over the head, for 16 positions at once, times `scale`;
//   weights p = exp(score - largest), rounded to bf16 if the cache is bf16; their sum in 16 partial sums;
//   out     bf16: per tile of 16 positions two FMA sums (even and odd positions), then sum += even + odd;
//           f32: one FMA chain over ascending positions; at the end times 1 / (sum of weights).
// Positions after the query's own are never read into a sum, so their content cannot matter. Each row of a draft tree
// reads its last tiles from its own copy, laid out as it would be without the tree.
#pragma once

namespace seer {
namespace {

// Address of a tile. Tiles of a sequence are read in order, but blocks may be anywhere, so the kernels prefetch the next
// tile by its own address.
SEER_INLINE const std::byte* tile_keys(const KvView& kv, int64_t tile, int64_t tile_bytes) {
  const auto t = static_cast<uint32_t>(tile), per_block = static_cast<uint32_t>(kv.block_tiles);
  return kv.memory + kv.blocks[t / per_block] * kv.block_bytes + kv.offset_bytes + t % per_block * tile_bytes;
}
SEER_INLINE int64_t half_tile_bytes(const KvView& kv, int32_t padded) {
  return static_cast<int64_t>(padded) * kTilePositions * (kv.bf16 ? 2 : 4);
}
// On AMD's cores into the L2 cache: the L1 cache has too few lines on their way. Decode with 64 sequences at a context of 2 000 on one core
// of a Zen 4: AVX2 1.2 times as fast, AVX-512 1.3.
SEER_INLINE void prefetch(const std::byte* p, bool into_l2) {
  if (into_l2)
    __builtin_prefetch(p, 0, 2);
  else
    __builtin_prefetch(p);
}
constexpr int64_t kPrefetchTiles = 4;  // ahead: a tile takes about 50 ns, memory about 150 ns
SEER_INLINE int64_t tile_ahead(int64_t tile, int64_t tile_end) {
  return tile + kPrefetchTiles < tile_end ? tile + kPrefetchTiles : tile_end - 1;
}

// kRows queries against kTiles tiles at once: a broadcast of a query or a weight then serves all of them, and there are
// enough independent sums to hide the latency of an FMA.
template <int kRows>
constexpr int kTilesTogether = 2 * kRows <= Lanes::kOnePassRows ? 2 : 1;

// Adds dot products of kRows rows of bf16 values with 16 columns to `sums`: a pass for the even sums and one for the odd ones, for
// more rows than the registers hold both for. Term i of row m is rows[m * stride + i]; the lines of pairs begin at `lines`, and
// those at `next` are prefetched. kTerms: how many terms, or 0 if `terms` says it.
template <int kTerms, int kRows>
SEER_INLINE void add_two_passes(const float* rows, int64_t stride, const uint16_t* lines, const std::byte* next, bool into_l2,
                                int terms, F (&sums)[kRows]) {
  const float* row[kRows];
  for (int m = 0; m < kRows; ++m) {
    row[m] = rows + m * stride;
    asm("" : "+r"(row[m]));  // one register per row, or the compiler keeps the address of every term
  }
  if (kTerms > 0) terms = kTerms;
  F even[kRows], odd[kRows], other;
  for (int m = 0; m < kRows; ++m) even[m] = odd[m] = Lanes::set1(0.0f);
#pragma GCC unroll 16
  for (int i = 0; i < terms; i += 2) {
    F line;
    prefetch(next + i * 32, into_l2);
    Lanes::load_pairs(lines + i * 16, line, other);
    for (int m = 0; m < kRows; ++m) Lanes::add_product(even[m], Lanes::set1(row[m][i]), line);
  }
#pragma GCC unroll 16
  for (int i = 1; i < terms; i += 2) {
    F line;
    Lanes::load_pairs(lines + (i - 1) * 16, other, line);
    for (int m = 0; m < kRows; ++m) Lanes::add_product(odd[m], Lanes::set1(row[m][i]), line);
  }
  for (int m = 0; m < kRows; ++m) sums[m] = Lanes::add(sums[m], Lanes::add(even[m], odd[m]));
}

// Scores of kRows queries against the 16 positions of each tile; `next` are the tiles to prefetch. Score m of tile t
// goes to scores + m * score_stride + t * 16.
template <int kRows, int kTiles, bool kBf16>
SEER_INLINE void score_tile(const float* query, int32_t padded, const std::byte* const (&keys)[kTiles],
                            const std::byte* const (&next)[kTiles], bool into_l2, float* scores, int64_t score_stride) {
  F sums[kRows][kTiles];
  for (int m = 0; m < kRows; ++m)
    for (int t = 0; t < kTiles; ++t) sums[m][t] = Lanes::set1(0.0f);
  if constexpr (kBf16 && kRows > Lanes::kOnePassRows) {
    static_assert(kTiles == 1);
    F column[kRows];
    for (int m = 0; m < kRows; ++m) column[m] = sums[m][0];
    const auto* k = reinterpret_cast<const uint16_t*>(keys[0]);
    int32_t d = 0;
    for (; d + 32 <= padded; d += 32) add_two_passes<32>(query + d, padded, k + d * 16, next[0] + d * 32, into_l2, 32, column);
    if (d < padded) add_two_passes<0>(query + d, padded, k + d * 16, next[0] + d * 32, into_l2, padded - d, column);
    for (int m = 0; m < kRows; ++m) sums[m][0] = column[m];
  } else if constexpr (kBf16) {
    for (int32_t d = 0; d < padded; d += 32) {
      F even[kRows][kTiles], odd[kRows][kTiles];
      for (int m = 0; m < kRows; ++m)
        for (int t = 0; t < kTiles; ++t) even[m][t] = odd[m][t] = Lanes::set1(0.0f);
      const int32_t end = d + 32 < padded ? d + 32 : padded;
      for (int32_t i = d; i < end; i += 2) {
        F k_even[kTiles], k_odd[kTiles];
        for (int t = 0; t < kTiles; ++t) {
          prefetch(next[t] + i * 32, into_l2);
          Lanes::load_pairs(reinterpret_cast<const uint16_t*>(keys[t]) + i * 16, k_even[t], k_odd[t]);
        }
        for (int m = 0; m < kRows; ++m) {
          const F q_even = Lanes::set1(query[m * padded + i]), q_odd = Lanes::set1(query[m * padded + i + 1]);
          for (int t = 0; t < kTiles; ++t) {
            even[m][t] = Lanes::fma(q_even, k_even[t], even[m][t]);
            odd[m][t] = Lanes::fma(q_odd, k_odd[t], odd[m][t]);
          }
        }
      }
      for (int m = 0; m < kRows; ++m)
        for (int t = 0; t < kTiles; ++t) sums[m][t] = Lanes::add(sums[m][t], Lanes::add(even[m][t], odd[m][t]));
    }
  } else {
    for (int32_t i = 0; i < padded; ++i) {
      F key[kTiles];
      for (int t = 0; t < kTiles; ++t) {
        prefetch(next[t] + i * 64, into_l2);
        key[t] = Lanes::load(reinterpret_cast<const float*>(keys[t]) + i * 16);
      }
      for (int m = 0; m < kRows; ++m) {
        const F q = Lanes::set1(query[m * padded + i]);
        for (int t = 0; t < kTiles; ++t) sums[m][t] = Lanes::fma(q, key[t], sums[m][t]);
      }
    }
  }
  for (int m = 0; m < kRows; ++m)
    for (int t = 0; t < kTiles; ++t) Lanes::store(scores + m * score_stride + t * 16, sums[m][t]);
}

// Adds the first `count` positions of a tile, weighted, to the sums of kRows queries over kChunks times 16 dimensions,
// from `chunk` on. `out` holds the sums, padded floats per query.
template <int kRows, int kChunks, bool kBf16>
SEER_INLINE void weigh_tile(const float* weights, int64_t stride, int32_t padded, const std::byte* values,
                            const std::byte* next, bool into_l2, int32_t chunk, int count, float* out) {
  F sums[kRows][kChunks];
  for (int m = 0; m < kRows; ++m)
    for (int c = 0; c < kChunks; ++c) sums[m][c] = Lanes::load(out + m * padded + (chunk + c) * 16);
  if constexpr (kBf16 && kRows > Lanes::kOnePassRows) {
    static_assert(kChunks == 1);
    F column[kRows];
    for (int m = 0; m < kRows; ++m) column[m] = sums[m][0];
    const auto* v = reinterpret_cast<const uint16_t*>(values) + chunk * 256;
    if (count == 16)
      add_two_passes<16>(weights, stride, v, next + chunk * 512, into_l2, 16, column);
    else
      add_two_passes<0>(weights, stride, v, next + chunk * 512, into_l2, count, column);
    for (int m = 0; m < kRows; ++m) sums[m][0] = column[m];
  } else if constexpr (kBf16) {
    const auto* v = reinterpret_cast<const uint16_t*>(values) + chunk * 256;
    F even[kRows][kChunks], odd[kRows][kChunks];
    for (int m = 0; m < kRows; ++m)
      for (int c = 0; c < kChunks; ++c) even[m][c] = odd[m][c] = Lanes::set1(0.0f);
    F v_even[kChunks], v_odd[kChunks];
    int i = 0;
    for (; i + 2 <= count; i += 2, v += 32) {
      for (int c = 0; c < kChunks; ++c) {
        prefetch(next + (chunk + c) * 512 + i * 32, into_l2);
        Lanes::load_pairs(v + c * 256, v_even[c], v_odd[c]);
      }
      for (int m = 0; m < kRows; ++m) {
        const F w_even = Lanes::set1(weights[m * stride + i]), w_odd = Lanes::set1(weights[m * stride + i + 1]);
        for (int c = 0; c < kChunks; ++c) {
          even[m][c] = Lanes::fma(w_even, v_even[c], even[m][c]);
          odd[m][c] = Lanes::fma(w_odd, v_odd[c], odd[m][c]);
        }
      }
    }
    if (i < count)
      for (int c = 0; c < kChunks; ++c) {
        Lanes::load_pairs(v + c * 256, v_even[c], v_odd[c]);
        for (int m = 0; m < kRows; ++m)
          even[m][c] = Lanes::fma(Lanes::set1(weights[m * stride + i]), v_even[c], even[m][c]);
      }
    for (int m = 0; m < kRows; ++m)
      for (int c = 0; c < kChunks; ++c) sums[m][c] = Lanes::add(sums[m][c], Lanes::add(even[m][c], odd[m][c]));
  } else {
    const auto* v = reinterpret_cast<const float*>(values) + chunk * 16;
    for (int i = 0; i < count; ++i, v += padded) {
      F value[kChunks];
      for (int c = 0; c < kChunks; ++c) {
        prefetch(next + (i * padded + (chunk + c) * 16) * 4, into_l2);
        value[c] = Lanes::load(v + c * 16);
      }
      for (int m = 0; m < kRows; ++m) {
        const F w = Lanes::set1(weights[m * stride + i]);
        for (int c = 0; c < kChunks; ++c) sums[m][c] = Lanes::fma(w, value[c], sums[m][c]);
      }
    }
  }
  for (int m = 0; m < kRows; ++m)
    for (int c = 0; c < kChunks; ++c) Lanes::store(out + m * padded + (chunk + c) * 16, sums[m][c]);
}

// Softmax weights of one query over positions [0, count), in place; the rest of the last tile is undefined.
// Returns 1 / (their sum).
template <bool kBf16>
float softmax(float* scores, int64_t count, float scale) {
  const F factor = Lanes::set1(scale), lowest = Lanes::set1(-__builtin_inff());
  F best = lowest;
  for_pieces(count, [&](int64_t i, int n) {
    const F s = Lanes::mul(Lanes::load(scores + i), factor);
    Lanes::store(scores + i, s);
    best = Lanes::max(best, Lanes::select_first(n, s, lowest));
  });
  const F largest = Lanes::set1(Lanes::largest(best));
  F sums = Lanes::set1(0.0f);
  for_pieces(count, [&](int64_t i, int n) {
    const F p = rounded_if(kBf16, exp_lanes<Lanes, true>(Lanes::sub(Lanes::load(scores + i), largest)));
    Lanes::store(scores + i, p);
    sums = Lanes::add(sums, Lanes::select_first(n, p, Lanes::set1(0.0f)));
  });
  return 1.0f / Lanes::sum(sums);
}

// Where some queries read their tiles: `kv` begins with tile `first`.
struct TileSource {
  KvView kv;
  int64_t first = 0;
  SEER_INLINE const std::byte* tile(int64_t t, int64_t half_bytes) const {
    return tile_keys(kv, t - first, 2 * half_bytes);
  }
};

// Weighted V of kRows queries over the tiles [tile_begin, tile_end); of the last tile only `last_count` positions count.
// `out` holds the sums so far, padded floats per query.
template <int kRows, bool kBf16>
__attribute__((noinline)) void weigh_tiles(const TileSource& source, const float* weights, int64_t stride,
                                           int32_t padded, int64_t tile_begin, int64_t tile_end, int last_count,
                                           float* out) {
  const int64_t half_bytes = half_tile_bytes(source.kv, padded);
  constexpr int kChunks = kTilesTogether<kRows>;
  const bool into_l2 = runs_on_amd();
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    const int count = t + 1 == tile_end ? last_count : 16;
    const std::byte* values = source.tile(t, half_bytes) + half_bytes;
    const std::byte* next = source.tile(tile_ahead(t, tile_end), half_bytes) + half_bytes;
    int32_t chunk = 0;
    for (; chunk + kChunks <= padded / 16; chunk += kChunks)
      weigh_tile<kRows, kChunks, kBf16>(weights + t * 16, stride, padded, values, next, into_l2, chunk, count, out);
    for (; chunk < padded / 16; ++chunk)
      weigh_tile<kRows, 1, kBf16>(weights + t * 16, stride, padded, values, next, into_l2, chunk, count, out);
  }
}

template <int kRows, bool kBf16>
__attribute__((noinline)) void score_tiles(const TileSource& source, const float* query, int32_t padded,
                                           int64_t tile_begin, int64_t tile_end, float* scores, int64_t stride) {
  const int64_t half_bytes = half_tile_bytes(source.kv, padded);
  const auto tile = [&](int64_t t) { return source.tile(t, half_bytes); };
  const auto next = [&](int64_t t) {  // after the last keys come the first values
    if (t + kPrefetchTiles < tile_end) return tile(t + kPrefetchTiles);
    const int64_t value = tile_begin + t + kPrefetchTiles - tile_end;
    return tile(value < tile_end ? value : tile_end - 1) + half_bytes;
  };
  const bool into_l2 = runs_on_amd();
  int64_t t = tile_begin;
  if constexpr (kTilesTogether<kRows> == 2)
    for (; t + 2 <= tile_end; t += 2)
      score_tile<kRows, 2, kBf16>(query, padded, {tile(t), tile(t + 1)}, {next(t), next(t + 1)}, into_l2, scores + t * 16,
                                  stride);
  for (; t < tile_end; ++t) score_tile<kRows, 1, kBf16>(query, padded, {tile(t)}, {next(t)}, into_l2, scores + t * 16, stride);
}

// Calls fn.operator()<n>(first) for runs of n <= kAttentionRows queries that cover [0, queries): whole runs, then one
// with the rest, so that keys and values are read as rarely as possible.
template <int kRows, class Fn>
SEER_INLINE void for_rest(int32_t first, int32_t rest, Fn fn) {
  if constexpr (kRows > 0) {
    if (rest == kRows) return fn.template operator()<kRows>(first);
    for_rest<kRows - 1>(first, rest, fn);
  }
}
template <int kRows, class Fn>
SEER_INLINE void for_rows(int32_t first, int32_t queries, Fn fn) {
  for (; first + kRows <= queries; first += kRows) fn.template operator()<kRows>(first);
  for_rest<kRows - 1>(first, queries - first, fn);
}

template <bool kBf16>
void attend(const AttentionTask& task) {
  constexpr int kRows = Lanes::kAttentionRows;
  const int32_t padded = (task.head_dim + 15) / 16 * 16, queries = task.rows * task.group;
  const bool tree = task.depths != nullptr;
  const auto positions_of = [&](int32_t row) { return task.position + (tree ? task.depths[row] : row) + 1; };
  const auto tiles_of = [&](int32_t row) { return (positions_of(row) + 15) / kTilePositions; };
  int64_t tiles = 0;
  for (int32_t row = 0; row < task.rows; ++row) tiles = tiles_of(row) > tiles ? tiles_of(row) : tiles;
  const int64_t stride = tiles * kTilePositions;
  // Tiles that are whole for every row are read once for all rows, the others once per row (in a tree, from its tail).
  const int64_t shared_tiles = (task.position + (tree ? 0 : 1)) / kTilePositions;
  const TileSource cache{.kv = task.kv};
  static constexpr int32_t kTailBlock = 0;
  const auto source_of = [&](int32_t row) {
    if (!tree) return cache;
    return TileSource{.kv = {.memory = task.tails + row * task.tail_bytes,
                             .blocks = &kTailBlock,
                             .block_tiles = 1 << 30,
                             .bf16 = task.kv.bf16},
                      .first = shared_tiles};
  };
  // Query r = row * group + head.
  float* query = task.scratch;
  float* sums = query + static_cast<int64_t>(queries) * padded;
  float* inverse = sums + static_cast<int64_t>(queries) * padded;
  float* scores = inverse + static_cast<int64_t>(queries) * 16;
  for (int32_t r = 0; r < queries; ++r) {
    const float* from = task.query + r / task.group * task.query_stride + r % task.group * task.head_dim;
    for (int32_t d = 0; d < padded; ++d) query[r * padded + d] = d < task.head_dim ? from[d] : 0.0f;
    for (int32_t d = 0; d < padded; ++d) sums[r * padded + d] = 0.0f;
  }
  for_rows<kRows>(0, queries, [&]<int kN>(int32_t r) {
    score_tiles<kN, kBf16>(cache, query + r * padded, padded, 0, tree ? shared_tiles : tiles, scores + r * stride,
                           stride);
  });
  for (int32_t row = 0; tree && row < task.rows; ++row)
    for_rows<kRows>(row * task.group, (row + 1) * task.group, [&]<int kN>(int32_t r) {
      score_tiles<kN, kBf16>(source_of(row), query + r * padded, padded, shared_tiles, tiles_of(row),
                             scores + r * stride, stride);
    });
  for (int32_t r = 0; r < queries; ++r)
    inverse[r] = softmax<kBf16>(scores + r * stride, positions_of(r / task.group), task.scale);

  for_rows<kRows>(0, queries, [&]<int kN>(int32_t r) {
    weigh_tiles<kN, kBf16>(cache, scores + r * stride, stride, padded, 0, shared_tiles, 16, sums + r * padded);
  });
  for (int32_t row = 0; row < task.rows; ++row) {
    const int64_t tile_end = tiles_of(row);
    if (tile_end == shared_tiles) continue;
    const int last_count = static_cast<int>(positions_of(row) - (tile_end - 1) * 16);
    const TileSource source = source_of(row);
    for_rows<kRows>(row * task.group, (row + 1) * task.group, [&]<int kN>(int32_t r) {
      weigh_tiles<kN, kBf16>(source, scores + r * stride, stride, padded, shared_tiles, tile_end, last_count,
                             sums + r * padded);
    });
  }
  for (int32_t r = 0; r < queries; ++r) {
    float* to = task.out + r / task.group * task.out_stride + r % task.group * task.head_dim;
    for_pieces(task.head_dim, [&](int64_t i, int count) {
      const F y = Lanes::mul(Lanes::load(sums + r * padded + i), Lanes::set1(inverse[r]));
      store(to + i, rounded_if(task.round_out, y), count);
    });
  }
}

void attention(const AttentionTask& task) {
  if (task.kv.bf16)
    attend<true>(task);
  else
    attend<false>(task);
}

}  // namespace
}  // namespace seer
