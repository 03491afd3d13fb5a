// Paged attention over Lanes; part of kernel_body.h. Two passes per task: over the keys, for the scores and the largest of
// them; over the values, whose weights are computed just before them, so that memory is never left waiting. The order of
// operations of one query depends on its own position only:
//   score   the dot product of kernels.h over the head, for 16 positions at once, times `scale`;
//   weights p = exp(score - largest), rounded to bf16 if the cache is bf16; their sum in 16 partial sums;
//   out     bf16: per tile of 16 positions two FMA sums (even and odd positions), then sum += even + odd;
//           f32: one FMA chain over ascending positions; at the end times 1 / (sum of weights).
// Positions after the query's own are never read into a sum, so their content cannot matter. Each row of a draft tree
// reads its last tiles from its own copy, laid out as it would be without the tree.
#pragma once
#include "gpu/cpu/weight_prefetch.h"

namespace seer {
namespace {

SEER_INLINE const std::byte* tile_keys(const KvView& kv, int64_t tile, int64_t tile_bytes) {
  const auto t = static_cast<uint32_t>(tile), per_block = static_cast<uint32_t>(kv.block_tiles);
  return kv.memory + kv.blocks[t / per_block] * kv.block_bytes + kv.offset_bytes + t % per_block * tile_bytes;
}
SEER_INLINE int64_t half_tile_bytes(const KvView& kv, int32_t padded) {
  return static_cast<int64_t>(padded) * kTilePositions * (kv.bf16 ? 2 : 4);
}

// The cache's type, and where KV is prefetched to: on AMD's cores into the L2 cache, since the L1 cache has too few lines on
// their way. Decode with 64 sequences at a context of 2 000 on one core of a Zen 4: AVX2 1.2 times as fast, AVX-512 1.3; on one of a
// Zen 5: AVX2 1.05, but AVX-512 0.93.
template <bool bf16, bool into_l2>
struct KvKind {
  static constexpr bool kBf16 = bf16;
  // How far ahead, in halves of tiles: one takes 50 to 100 ns, memory about 150 ns.
  static constexpr int64_t kHalvesAhead = into_l2 ? 4 : Lanes::kHalvesAhead;
  static SEER_INLINE void prefetch(const std::byte* p) { prefetch_in_place<into_l2 ? CacheLevel::kL2 : CacheLevel::kL1>(p); }
};

// What to prefetch. A task reads the keys of its tiles, then their values, then the next task its keys: these halves of tiles
// are one stream, prefetched at a distance, each by its own address, since blocks may be anywhere.
template <class Kv>
class KvAhead {
 public:
  SEER_INLINE KvAhead(const AttentionTask& task, int64_t tiles, int64_t half_bytes)
      : task_(task), tiles_(tiles), half_bytes_(half_bytes) {}
  /// The half to prefetch while the kernel reads the keys or values of `tile`, which are at `reading`; those if there is none.
  SEER_INLINE const std::byte* beside_keys(int64_t tile, const std::byte* reading) const { return beside(tile, reading); }
  SEER_INLINE const std::byte* beside_values(int64_t tile, const std::byte* reading) const {
    return beside(tiles_ + tile, reading);
  }

 private:
  SEER_INLINE const std::byte* beside(int64_t index, const std::byte* reading) const {
    const int64_t half = index + Kv::kHalvesAhead;
    if (half < tiles_) return tile_keys(task_.kv, half, 2 * half_bytes_);
    if (half < 2 * tiles_) return tile_keys(task_.kv, half - tiles_, 2 * half_bytes_) + half_bytes_;
    return half - 2 * tiles_ < task_.next_tiles ? tile_keys(task_.next_kv, half - 2 * tiles_, 2 * half_bytes_) : reading;
  }

  const AttentionTask& task_;
  const int64_t tiles_, half_bytes_;
};

// kRows queries against kTiles tiles at once: a broadcast of a query or a weight then serves all of them, and there are
// enough independent sums to hide the latency of an FMA.
template <int kRows>
constexpr int kTilesTogether = 2 * kRows <= Lanes::kOnePassRows ? 2 : 1;

// Adds dot products of kRows rows of bf16 values with 16 columns to `sums`: a pass for the even sums and one for the odd ones, for
// more rows than the registers hold both for. Term i of row m is rows[m * stride + i]; the lines of pairs begin at `lines`, and
// those at `next` are prefetched. kTerms: how many terms, or 0 if `terms` says it.
template <class Kv, int kTerms, int kRows>
SEER_INLINE void add_two_passes(const float* rows, int64_t stride, const uint16_t* lines, const std::byte* next,
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
    Kv::prefetch(next + i * 32);
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
template <int kRows, int kTiles, class Kv>
SEER_INLINE void score_tile(const float* query, int32_t padded, const std::byte* const (&keys)[kTiles],
                            const std::byte* const (&next)[kTiles], float* scores, int64_t score_stride) {
  F sums[kRows][kTiles];
  for (int m = 0; m < kRows; ++m)
    for (int t = 0; t < kTiles; ++t) sums[m][t] = Lanes::set1(0.0f);
  if constexpr (Kv::kBf16 && kRows > Lanes::kOnePassRows) {
    static_assert(kTiles == 1);
    F column[kRows];
    for (int m = 0; m < kRows; ++m) column[m] = sums[m][0];
    const auto* k = reinterpret_cast<const uint16_t*>(keys[0]);
    int32_t d = 0;
    for (; d + 32 <= padded; d += 32) add_two_passes<Kv, 32>(query + d, padded, k + d * 16, next[0] + d * 32, 32, column);
    if (d < padded) add_two_passes<Kv, 0>(query + d, padded, k + d * 16, next[0] + d * 32, padded - d, column);
    for (int m = 0; m < kRows; ++m) sums[m][0] = column[m];
  } else if constexpr (Kv::kBf16) {
    for (int32_t d = 0; d < padded; d += 32) {
      F even[kRows][kTiles], odd[kRows][kTiles];
      for (int m = 0; m < kRows; ++m)
        for (int t = 0; t < kTiles; ++t) even[m][t] = odd[m][t] = Lanes::set1(0.0f);
      const int32_t end = d + 32 < padded ? d + 32 : padded;
      for (int32_t i = d; i < end; i += 2) {
        F k_even[kTiles], k_odd[kTiles];
        for (int t = 0; t < kTiles; ++t) {
          Kv::prefetch(next[t] + i * 32);
          Lanes::load_pairs(reinterpret_cast<const uint16_t*>(keys[t]) + i * 16, k_even[t], k_odd[t]);
        }
        for (int m = 0; m < kRows; ++m) {
          const F q_even = Lanes::set1(query[m * padded + i]), q_odd = Lanes::set1(query[m * padded + i + 1]);
          for (int t = 0; t < kTiles; ++t) {
            Lanes::add_product(even[m][t], q_even, k_even[t]);
            Lanes::add_product(odd[m][t], q_odd, k_odd[t]);
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
        Kv::prefetch(next[t] + i * 64);
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
template <int kRows, int kChunks, class Kv>
SEER_INLINE void weigh_tile(const float* weights, int64_t stride, int32_t padded, const std::byte* values,
                            const std::byte* next, int32_t chunk, int count, float* out) {
  F sums[kRows][kChunks];
  for (int m = 0; m < kRows; ++m)
    for (int c = 0; c < kChunks; ++c) sums[m][c] = Lanes::load(out + m * padded + (chunk + c) * 16);
  if constexpr (Kv::kBf16 && kRows > Lanes::kOnePassRows) {
    static_assert(kChunks == 1);
    F column[kRows];
    for (int m = 0; m < kRows; ++m) column[m] = sums[m][0];
    const auto* v = reinterpret_cast<const uint16_t*>(values) + chunk * 256;
    if (count == 16)
      add_two_passes<Kv, 16>(weights, stride, v, next + chunk * 512, 16, column);
    else
      add_two_passes<Kv, 0>(weights, stride, v, next + chunk * 512, count, column);
    for (int m = 0; m < kRows; ++m) sums[m][0] = column[m];
  } else if constexpr (Kv::kBf16) {
    const auto* v = reinterpret_cast<const uint16_t*>(values) + chunk * 256;
    F even[kRows][kChunks], odd[kRows][kChunks];
    for (int m = 0; m < kRows; ++m)
      for (int c = 0; c < kChunks; ++c) even[m][c] = odd[m][c] = Lanes::set1(0.0f);
    F v_even[kChunks], v_odd[kChunks];
    int i = 0;
    for (; i + 2 <= count; i += 2, v += 32) {
      for (int c = 0; c < kChunks; ++c) {
        Kv::prefetch(next + (chunk + c) * 512 + i * 32);
        Lanes::load_pairs(v + c * 256, v_even[c], v_odd[c]);
      }
      for (int m = 0; m < kRows; ++m) {
        const F w_even = Lanes::set1(weights[m * stride + i]), w_odd = Lanes::set1(weights[m * stride + i + 1]);
        for (int c = 0; c < kChunks; ++c) {
          Lanes::add_product(even[m][c], w_even, v_even[c]);
          Lanes::add_product(odd[m][c], w_odd, v_odd[c]);
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
        Kv::prefetch(next + (i * padded + (chunk + c) * 16) * 4);
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

// Multiplies `count` scores by `scale`, and takes the largest of them and of `best`; the rest of the last tile is undefined.
SEER_INLINE F scale_scores(float* scores, int64_t count, float scale, F best) {
  const F factor = Lanes::set1(scale);
  for_pieces(count, [&](int64_t i, int n) {
    const F s = Lanes::mul(Lanes::load(scores + i), factor);
    Lanes::store(scores + i, s);
    best = Lanes::max(best, n == 16 ? s : Lanes::select_first(n, s, Lanes::set1(-__builtin_inff())));
  });
  return best;
}

// Softmax weights of `count` scores, in place, and adds them to `sums`; the rest of the last tile is undefined.
template <bool kBf16>
SEER_INLINE F weights_of_scores(float* scores, int64_t count, float largest, F sums) {
  for_pieces(count, [&](int64_t i, int n) {
    F p = exp_lanes<Lanes, true>(Lanes::sub(Lanes::load(scores + i), Lanes::set1(largest)));
    if constexpr (kBf16) p = rounded_positive(p);
    Lanes::store(scores + i, p);
    sums = Lanes::add(sums, n == 16 ? p : Lanes::select_first(n, p, Lanes::set1(0.0f)));
  });
  return sums;
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
// `out` holds the sums so far, padded floats per query. `ahead`: prefetches, or null.
template <int kRows, class Kv>
__attribute__((noinline)) void weigh_tiles(const TileSource& source, const float* weights, int64_t stride,
                                           int32_t padded, int64_t tile_begin, int64_t tile_end, int last_count,
                                           float* out, const KvAhead<Kv>* ahead) {
  const int64_t half_bytes = half_tile_bytes(source.kv, padded);
  constexpr int kChunks = kTilesTogether<kRows>;
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    const int count = t + 1 == tile_end ? last_count : 16;
    const std::byte* values = source.tile(t, half_bytes) + half_bytes;
    const std::byte* next = ahead ? ahead->beside_values(t, values) : values;
    int32_t chunk = 0;
    for (; chunk + kChunks <= padded / 16; chunk += kChunks)
      weigh_tile<kRows, kChunks, Kv>(weights + t * 16, stride, padded, values, next, chunk, count, out);
    for (; chunk < padded / 16; ++chunk)
      weigh_tile<kRows, 1, Kv>(weights + t * 16, stride, padded, values, next, chunk, count, out);
  }
}

template <int kRows, class Kv>
__attribute__((noinline)) void score_tiles(const TileSource& source, const float* query, int32_t padded,
                                           int64_t tile_begin, int64_t tile_end, float* scores, int64_t stride,
                                           const KvAhead<Kv>* ahead) {
  const int64_t half_bytes = half_tile_bytes(source.kv, padded);
  const auto next = [&](int64_t t, const std::byte* keys) { return ahead ? ahead->beside_keys(t, keys) : keys; };
  int64_t t = tile_begin;
  if constexpr (kTilesTogether<kRows> == 2)
    for (; t + 2 <= tile_end; t += 2) {
      const std::byte *a = source.tile(t, half_bytes), *b = source.tile(t + 1, half_bytes);
      score_tile<kRows, 2, Kv>(query, padded, {a, b}, {next(t, a), next(t + 1, b)}, scores + t * 16, stride);
    }
  for (; t < tile_end; ++t) {
    const std::byte* keys = source.tile(t, half_bytes);
    score_tile<kRows, 1, Kv>(query, padded, {keys}, {next(t, keys)}, scores + t * 16, stride);
  }
}

// Calls fn.operator()<n>(first) for runs of n <= kRows queries that cover [first, queries): as few as possible, so that keys and
// values are read as rarely as possible, of about the same size.
template <int kRows, class Fn>
SEER_INLINE void for_run(int32_t first, int32_t rows, Fn fn) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return fn.template operator()<kRows>(first);
    for_run<kRows - 1>(first, rows, fn);
  }
}
template <int kRows, class Fn>
SEER_INLINE void for_rows(int32_t first, int32_t queries, Fn fn) {
  for (int32_t runs = (queries - first + kRows - 1) / kRows; runs > 0; --runs) {
    const int32_t rows = (queries - first + runs - 1) / runs;
    for_run<kRows>(first, rows, fn);
    first += rows;
  }
}

// Keys or values that are read by one run of queries after the other before the next ones: half of an L1 cache.
constexpr int64_t kPieceBytes = 16 * 1024;
// Calls fn(begin, end) for pieces of the tiles [0, tiles).
template <class Fn>
SEER_INLINE void for_tiles(int64_t tiles, int64_t half_bytes, Fn fn) {
  const int64_t piece = half_bytes < kPieceBytes ? kPieceBytes / half_bytes : 1;
  for (int64_t t = 0; t < tiles; t += piece) fn(t, t + piece < tiles ? t + piece : tiles);
}

template <class Kv>
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
  const int64_t half_bytes = half_tile_bytes(task.kv, padded), cached_tiles = tree ? shared_tiles : tiles;
  const KvAhead<Kv> ahead(task, cached_tiles, half_bytes);

  // Query r = row * group + head.
  float* query = task.scratch;
  float* out = query + static_cast<int64_t>(queries) * padded;
  float* best = out + static_cast<int64_t>(queries) * padded;  // scores in 16 columns each, then the largest
  float* sums = best + static_cast<int64_t>(queries) * 16;     // of weights, 16 partial ones each
  float* scores = sums + static_cast<int64_t>(queries) * 16;
  for (int32_t r = 0; r < queries; ++r) {
    const float* from = task.query + r / task.group * task.query_stride + r % task.group * task.head_dim;
    for (int32_t d = 0; d < padded; ++d) query[r * padded + d] = d < task.head_dim ? from[d] : 0.0f;
    for (int32_t d = 0; d < padded; ++d) out[r * padded + d] = 0.0f;
    Lanes::store(best + r * 16, Lanes::set1(-__builtin_inff()));
    Lanes::store(sums + r * 16, Lanes::set1(0.0f));
  }
  // Of query r, the tiles from `begin` on, up to `end` or its last position.
  const auto count_of = [&](int32_t r, int64_t begin, int64_t end) {
    const int64_t positions = positions_of(r / task.group), last = end * kTilePositions;
    return (positions < last ? positions : last) - begin * kTilePositions;
  };
  const auto scale = [&](int32_t r, int64_t begin, int64_t end) {
    Lanes::store(best + r * 16, scale_scores(scores + r * stride + begin * 16, count_of(r, begin, end), task.scale,
                                             Lanes::load(best + r * 16)));
  };
  const auto weights = [&](int32_t r, int64_t begin, int64_t end) {
    Lanes::store(sums + r * 16, weights_of_scores<Kv::kBf16>(scores + r * stride + begin * 16, count_of(r, begin, end),
                                                         best[r * 16], Lanes::load(sums + r * 16)));
  };

  for_tiles(cached_tiles, half_bytes, [&](int64_t begin, int64_t end) {
    for_rows<kRows>(0, queries, [&]<int kN>(int32_t r) {
      score_tiles<kN, Kv>(cache, query + r * padded, padded, begin, end, scores + r * stride, stride,
                          r == 0 ? &ahead : nullptr);
    });
    for (int32_t r = 0; r < queries; ++r) scale(r, begin, end);
  });
  for (int32_t row = 0; tree && row < task.rows; ++row) {
    for_rows<kRows>(row * task.group, (row + 1) * task.group, [&]<int kN>(int32_t r) {
      score_tiles<kN, Kv>(source_of(row), query + r * padded, padded, shared_tiles, tiles_of(row),
                          scores + r * stride, stride, nullptr);
    });
    for (int32_t r = row * task.group; r < (row + 1) * task.group; ++r) scale(r, shared_tiles, tiles_of(row));
  }
  for (int32_t r = 0; r < queries; ++r) best[r * 16] = Lanes::largest(Lanes::load(best + r * 16));

  for_tiles(shared_tiles, half_bytes, [&](int64_t begin, int64_t end) {
    for (int32_t r = 0; r < queries; ++r) weights(r, begin, end);
    for_rows<kRows>(0, queries, [&]<int kN>(int32_t r) {
      weigh_tiles<kN, Kv>(cache, scores + r * stride, stride, padded, begin, end, 16, out + r * padded,
                          r == 0 ? &ahead : nullptr);
    });
  });
  for (int32_t row = 0; row < task.rows; ++row) {
    const int64_t tile_end = tiles_of(row);
    if (tile_end == shared_tiles) continue;
    const int last_count = static_cast<int>(positions_of(row) - (tile_end - 1) * 16);
    const TileSource source = source_of(row);
    for (int32_t r = row * task.group; r < (row + 1) * task.group; ++r) weights(r, shared_tiles, tile_end);
    for_rows<kRows>(row * task.group, (row + 1) * task.group, [&]<int kN>(int32_t r) {
      weigh_tiles<kN, Kv>(source, scores + r * stride, stride, padded, shared_tiles, tile_end, last_count,
                          out + r * padded, nullptr);
    });
  }
  for (int32_t r = 0; r < queries; ++r) {
    const F inverse = Lanes::set1(1.0f / Lanes::sum(Lanes::load(sums + r * 16)));
    float* to = task.out + r / task.group * task.out_stride + r % task.group * task.head_dim;
    for_pieces(task.head_dim, [&](int64_t i, int count) {
      const F y = Lanes::mul(Lanes::load(out + r * padded + i), inverse);
      store(to + i, rounded_if(task.round_out, y), count);
    });
  }
}

template <bool kIntoL2>
SEER_INLINE void attend_kind(const AttentionTask& task) {
  if (task.kv.bf16)
    attend<KvKind<true, kIntoL2>>(task);
  else
    attend<KvKind<false, kIntoL2>>(task);
}

void attention(const AttentionTask& task) {
  if (core_kind == CoreKind::kZen4 || (core_kind == CoreKind::kZen5 && !Lanes::kZen5KvIntoL1))
    attend_kind<true>(task);
  else
    attend_kind<false>(task);
}

}  // namespace
}  // namespace seer
