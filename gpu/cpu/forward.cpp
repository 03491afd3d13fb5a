#include "gpu/cpu/forward.h"

#include <algorithm>
#include <cstring>
#include <ranges>

#include "gpu/accept_draft.h"
#include "gpu/sampler.h"
#include "protocols/check.h"

namespace seer {
namespace {

constexpr int32_t kRowGrainFloats = 16 * 1024;   // less than this is not worth waking a thread for
constexpr int32_t kScoreFloatsMax = 256 * 1024;  // of one attention piece: 1 MiB, half of a usual L2
constexpr int32_t kAttentionRowsMax = 16;

// Index of a sampled row's token among the samples of the sequence.
int32_t sampled_index(const SequenceStep& s, int32_t row) {
  return row - (static_cast<int32_t>(s.tokens.size()) - s.sample_rows);
}


int32_t row_grain(int64_t width) { return static_cast<int32_t>(std::max<int64_t>(1, kRowGrainFloats / width)); }

}  // namespace

CpuForward::CpuForward(const Model& model, const CpuKernels& kernels, KvCache& cache, ThreadPool& pool)
    : model_(&model),
      kernels_(kernels),
      cache_(cache),
      pool_(pool),
      linear_(kernels, pool),
      rope_(model.config),
      round_(model.head.rounds_inputs()),
      hidden_(model.config.hidden_size),
      normed_(model.config.hidden_size),
      qkv_(model.layers[0].qkv.rows()),
      attended_(model.config.query_size()),
      projected_(model.config.hidden_size),
      gate_up_(model.layers[0].gate_up.rows()),
      activated_(model.config.intermediate_size),
      head_sampler_(model.config.vocab_size, linear_, pool),
      attention_scratch_(pool.threads()),
      tails_(pool.threads()) {}

int64_t CpuForward::Span::last_position(int32_t first, int32_t count) const {
  int64_t last = 0;
  for (int32_t r = first; r < first + count; ++r) last = std::max(last, position(r));
  return last;
}

std::vector<std::vector<SampledToken>> CpuForward::run(const StepBatch& batch) {
  std::vector<std::vector<SampledToken>> sampled(batch.sequences.size());
  if (std::ranges::any_of(batch.sequences, &SequenceStep::gives_kept)) kept_.resize(batch.sequences.size());
  int64_t positions = 0;
  for (const SequenceStep& s : batch.sequences)
    positions = std::max(positions, s.start + static_cast<int64_t>(s.tokens.size()));
  rope_.reserve(positions);
  clear_new_blocks(batch);

  std::vector<std::vector<int32_t>> depths(batch.sequences.size());  // by row; empty without a tree
  std::vector<Span> spans;
  int32_t rows = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceStep& sequence = batch.sequences[i];
    sampled[i].resize(sequence.sample_rows);
    if (sequence.gives_kept()) kept_[i].resize(sequence.sample_rows);
    for (const int32_t parent : sequence.parents) depths[i].push_back(parent < 0 ? 0 : depths[i][parent] + 1);
    const auto total = static_cast<int32_t>(sequence.tokens.size());
    for (int32_t first = 0; first < total;) {
      const int32_t taken = std::min(total - first, kSlabRows - rows);
      spans.push_back(
          {&sequence, static_cast<int32_t>(i), first, rows, taken, depths[i].empty() ? nullptr : depths[i].data()});
      first += taken;
      rows += taken;
      if (rows == kSlabRows) {
        run_slab(spans, rows, sampled);
        spans.clear();
        rows = 0;
      }
    }
  }
  if (rows > 0) run_slab(spans, rows, sampled);
  for (size_t i = 0; i < batch.sequences.size(); ++i)
    if (!batch.sequences[i].parents.empty()) keep_accepted(batch.sequences[i], sampled[i]);
  return sampled;
}

// Moves the KV of the accepted path to where it would be without the tree.
void CpuForward::keep_accepted(const SequenceStep& sequence, std::span<const SampledToken> sampled) {
  const std::vector<int32_t> path = accepted_path(sequence.tokens, sequence.parents, sampled);
  const auto moved = static_cast<int32_t>(std::ranges::mismatch(path, std::views::iota(0)).in1 - path.begin());
  if (moved == std::ssize(path)) return;
  const ModelConfig& c = model_->config;
  pool_.run(c.layers, [&](int32_t layer, int32_t) {
    for (int32_t head = 0; head < c.kv_heads; ++head)
      for (int32_t i = moved; i < std::ssize(path); ++i) {  // forwards: path[i] >= i
        const int64_t from = sequence.start + path[i], to = sequence.start + i;
        cache_.copy_position(cache_.tile(sequence.blocks, from, layer, head), from,
                             cache_.tile(sequence.blocks, to, layer, head), to);
      }
  });
}

// Clears each block whose first position this step writes, so that nothing of its former owner is left: equal sequences
// then have equal blocks, byte for byte, as far as they are filled.
void CpuForward::clear_new_blocks(const StepBatch& batch) {
  const int64_t block_tokens = cache_.layout().block_tokens;
  for (const SequenceStep& s : batch.sequences) {
    const int64_t end = s.start + static_cast<int64_t>(s.tokens.size());
    for (int64_t block = (s.start + block_tokens - 1) / block_tokens; block * block_tokens < end; ++block) {
      const std::span<std::byte> bytes = cache_.block(s.blocks[block]);
      std::memset(bytes.data(), 0, bytes.size());
    }
  }
}

void CpuForward::run_slab(const std::vector<Span>& spans, int32_t rows,
                          std::vector<std::vector<SampledToken>>& sampled) {
  for (Activations* a : {&hidden_, &normed_, &qkv_, &attended_, &projected_, &gate_up_, &activated_})
    a->reserve_rows(rows);
  embed(spans);
  plan_attention(spans);
  for (int32_t i = 0; i < model_->config.layers; ++i) layer(i, spans, rows);
  sample(spans, sampled);
}

void CpuForward::embed(const std::vector<Span>& spans) {
  const PackedMatrix& embedding = model_->embedding_matrix();
  pool_.run_ranges(static_cast<int32_t>(spans.size()), row_grain(hidden_.stride),
                   [&](int32_t begin, int32_t end, int32_t) {
                     for (int32_t i = begin; i < end; ++i)
                       for (int32_t r = 0; r < spans[i].rows; ++r)
                         embedding.read_row(spans[i].sequence->tokens[spans[i].first_in_sequence + r],
                                            hidden_.row(spans[i].first_in_slab + r));
                   });
}

void CpuForward::layer(int32_t index, const std::vector<Span>& spans, int32_t rows) {
  const LayerWeights& w = model_->layers[index];
  const int32_t hidden = model_->config.hidden_size, inner = model_->config.intermediate_size;
  const float eps = model_->config.rms_norm_eps;
  // hidden += projected (+ bias).
  const auto add_projected = [&](int32_t r, const std::vector<float>& bias) {
    if (!bias.empty()) kernels_.add(projected_.row(r), bias.data(), hidden);
    kernels_.add(hidden_.row(r), projected_.row(r), hidden);
  };

  pool_.run_ranges(rows, row_grain(hidden), [&](int32_t begin, int32_t end, int32_t) {
    for (int32_t r = begin; r < end; ++r)
      kernels_.rms_norm(hidden_.row(r), w.input_norm.data(), hidden, eps, round_, normed_.row(r));
  });
  linear_.multiply(w.qkv, normed_, rows, qkv_);
  store_kv(index, spans, rows);
  attend(index);
  linear_.multiply(w.output, attended_, rows, projected_);
  pool_.run_ranges(rows, row_grain(hidden), [&](int32_t begin, int32_t end, int32_t) {
    for (int32_t r = begin; r < end; ++r) {
      add_projected(r, w.output_bias);
      kernels_.rms_norm(hidden_.row(r), w.post_norm.data(), hidden, eps, round_, normed_.row(r));
    }
  });
  linear_.multiply(w.gate_up, normed_, rows, gate_up_);
  pool_.run_ranges(rows, row_grain(inner), [&](int32_t begin, int32_t end, int32_t) {
    for (int32_t r = begin; r < end; ++r) {
      float* gate = gate_up_.row(r);
      if (!w.gate_up_bias.empty()) kernels_.add(gate, w.gate_up_bias.data(), 2 * inner);
      kernels_.swiglu(gate, gate + inner, inner, round_, activated_.row(r));
    }
  });
  linear_.multiply(w.down, activated_, rows, projected_);
  pool_.run_ranges(rows, row_grain(hidden), [&](int32_t begin, int32_t end, int32_t) {
    for (int32_t r = begin; r < end; ++r) add_projected(r, w.down_bias);
  });
}

// Applies bias, head norms and rope to the rows of qkv_. Keys and values go to the cache, queries stay.
void CpuForward::store_kv(int32_t layer_index, const std::vector<Span>& spans, int32_t rows) {
  const LayerWeights& w = model_->layers[layer_index];
  const ModelConfig& c = model_->config;
  const bool round_query = cache_.layout().bf16;  // keys are rounded when they are stored
  const auto prepare_head = [&](float* x, const std::vector<float>& norm, int64_t position, bool round) {
    if (c.qk_norm) kernels_.rms_norm(x, norm.data(), c.head_dim, c.rms_norm_eps, false, x);
    kernels_.rope(x, rope_.cosines(position), rope_.sines(position), rope_.half(), round);
  };
  pool_.run_ranges(rows, row_grain(qkv_.stride), [&](int32_t begin, int32_t end, int32_t) {
    auto span = std::upper_bound(spans.begin(), spans.end(), begin,
                                 [](int32_t r, const Span& s) { return r < s.first_in_slab + s.rows; });
    for (int32_t r = begin; r < end; ++r) {
      if (r == span->first_in_slab + span->rows) ++span;
      const int64_t position = span->position(r - span->first_in_slab), slot = span->slot(r - span->first_in_slab);
      float* query = qkv_.row(r);
      float* key = query + c.query_size();
      float* value = key + c.kv_size();
      if (c.qkv_bias) kernels_.add(query, w.qkv_bias.data(), c.query_size() + 2 * c.kv_size());
      for (int32_t h = 0; h < c.heads; ++h) prepare_head(query + h * c.head_dim, w.q_norm, position, round_query);
      for (int32_t h = 0; h < c.kv_heads; ++h) {
        prepare_head(key + h * c.head_dim, w.k_norm, position, false);
        cache_.write(span->sequence->blocks, slot, layer_index, h, key + h * c.head_dim, value + h * c.head_dim);
      }
    }
  });
}

// Cuts the spans into pieces whose scores fit in a core's cache, and sizes the scratch for the largest.
void CpuForward::plan_attention(const std::vector<Span>& spans) {
  const ModelConfig& c = model_->config;
  const int32_t group = c.heads / c.kv_heads;
  int64_t scratch = 0;
  pieces_.clear();
  for (const Span& span : spans) {
    const int64_t row_floats = group * (span.last_position(0, span.rows) + 1);
    const auto fit = static_cast<int32_t>(std::clamp<int64_t>(kScoreFloatsMax / row_floats, 1, kAttentionRowsMax));
    for (int32_t first = 0; first < span.rows; first += fit) {
      const int32_t rows = std::min(fit, span.rows - first);
      pieces_.push_back({&span, first, rows});
      scratch = std::max(scratch, attention_scratch_floats(rows, group, c.head_dim, span.last_position(first, rows)));
    }
  }
  for (AlignedArray<float>& s : attention_scratch_)
    if (static_cast<int64_t>(s.size()) < scratch) s = AlignedArray<float>(scratch + scratch / 4);  // room to grow into
}

void CpuForward::attend(int32_t layer_index) {
  const int32_t heads = model_->config.kv_heads;
  pool_.run_ranges(static_cast<int32_t>(pieces_.size()) * heads, 1, [&](int32_t begin, int32_t end, int32_t thread) {
    for (int32_t i = begin; i < end; ++i) attend_piece(i, i + 1 < end, layer_index, thread);
  });
}

// Task `index` is of piece index / kv_heads and head index % kv_heads. `goes_on`: this thread runs the next task afterwards.
void CpuForward::attend_piece(int32_t index, bool goes_on, int32_t layer_index, int32_t thread) {
  const ModelConfig& c = model_->config;
  const AttentionPiece& piece = pieces_[index / c.kv_heads];
  const int32_t head = index % c.kv_heads;
  const Span& span = *piece.span;
  const int32_t group = c.heads / c.kv_heads, row = span.first_in_slab + piece.first;
  AttentionTask task;
  task.kv = cache_.view(span.sequence->blocks, layer_index, head);
  if (goes_on) {
    const AttentionPiece& next = pieces_[(index + 1) / c.kv_heads];
    task.next_kv = cache_.view(next.span->sequence->blocks, layer_index, (index + 1) % c.kv_heads);
    task.next_tiles = next.span->slot(next.first) / kTilePositions;
  }
  task.position = span.position(piece.first);
  task.rows = piece.rows;
  task.group = group;
  task.head_dim = c.head_dim;
  task.scale = 1.0f / __builtin_sqrtf(static_cast<float>(c.head_dim));
  task.query = qkv_.row(row) + head * group * c.head_dim;
  task.query_stride = qkv_.stride;
  task.out = attended_.row(row) + head * group * c.head_dim;
  task.out_stride = attended_.stride;
  task.round_out = round_;
  task.scratch = attention_scratch_[thread].data();
  if (span.depths) {
    const int64_t start = span.sequence->start;
    const int64_t tail_tiles =
        span.last_position(piece.first, piece.rows) / kTilePositions - start / kTilePositions + 1;
    const auto bytes = static_cast<size_t>(tail_tiles * piece.rows * cache_.tile_bytes());
    AlignedArray<std::byte>& tails = tails_[thread];
    if (tails.size() < bytes) tails = AlignedArray<std::byte>(bytes);
    fill_tails(piece, layer_index, head, tail_tiles, tails.data());
    task.position = start;
    task.depths = span.depths + span.first_in_sequence + piece.first;
    task.tails = tails.data();
    task.tail_bytes = tail_tiles * cache_.tile_bytes();
  }
  kernels_.attention(task);
}

// Copies, for each row of a tree, the tiles from the root's on as they would be if the tree had only this row's path.
void CpuForward::fill_tails(const AttentionPiece& piece, int32_t layer_index, int32_t head, int64_t tail_tiles,
                            std::byte* tails) {
  const SequenceStep& s = *piece.span->sequence;
  const int64_t tile_bytes = cache_.tile_bytes(), first_position = s.start / kTilePositions * kTilePositions;
  for (int32_t r = 0; r < piece.rows; ++r) {
    std::byte* tail = tails + r * tail_tiles * tile_bytes;
    std::memcpy(tail, cache_.tile(s.blocks, s.start, layer_index, head), static_cast<size_t>(tile_bytes));
    for (int32_t row = piece.span->first_in_sequence + piece.first + r; row >= 0; row = s.parents[row]) {
      const int64_t from = s.start + row, to = s.start + piece.span->depths[row];
      cache_.copy_position(cache_.tile(s.blocks, from, layer_index, head), from,
                           tail + (to - first_position) / kTilePositions * tile_bytes, to);
    }
  }
}

void CpuForward::sample(const std::vector<Span>& spans, std::vector<std::vector<SampledToken>>& sampled) {
  std::vector<std::pair<const Span*, int32_t>> picks;  // sampled rows: span, and row within it
  for (const Span& span : spans) {
    const int32_t first_sampled = static_cast<int32_t>(span.sequence->tokens.size()) - span.sequence->sample_rows;
    for (int32_t r = std::max(0, first_sampled - span.first_in_sequence); r < span.rows; ++r)
      picks.emplace_back(&span, r);
  }
  for (size_t i = 0; i < picks.size(); i += HeadSampler::kRowsMax)
    sample_rows(std::span(picks).subspan(i, std::min<size_t>(HeadSampler::kRowsMax, picks.size() - i)), sampled);
}

void CpuForward::sample_rows(std::span<const std::pair<const Span*, int32_t>> picks,
                             std::vector<std::vector<SampledToken>>& sampled) {
  const ModelConfig& c = model_->config;
  const auto rows = static_cast<int32_t>(picks.size());
  pool_.run_ranges(rows, row_grain(c.hidden_size), [&](int32_t begin, int32_t end, int32_t) {
    for (int32_t i = begin; i < end; ++i)
      kernels_.rms_norm(hidden_.row(picks[i].first->first_in_slab + picks[i].second), model_->final_norm.data(),
                        c.hidden_size, c.rms_norm_eps, round_, normed_.row(i));
  });
  std::vector<HeadRow> head_rows;
  for (const auto& [span, r] : picks) {
    const SequenceStep& s = *span->sequence;
    const int32_t row = span->first_in_sequence + r, out = sampled_index(s, row);
    HeadRow head_row{.sampling = s.sampling.get(), .seed = s.seed, .position = span->position(r) + 1};
    if (head_row.position < s.ends_from) head_row.banned = ending_ids(*s.sampling, c.eos_ids);
    if (!s.targets.empty()) {
      head_row.target = s.targets[out];
    } else if (s.sampling->repetition_penalty != 1.0f) {
      head_row.penalty_tokens = s.history;
      for (int32_t p = row; p >= 0; p = s.parents.empty() ? p - 1 : s.parents[p])
        head_row.penalty_tokens.push_back(s.tokens[p]);
    }
    head_rows.push_back(std::move(head_row));
  }
  std::vector<SampledToken> tokens(picks.size());
  std::vector<KeptList> kept(kept_.empty() ? 0 : picks.size());
  head_sampler_.run(model_->head, normed_, head_rows, tokens, kept);
  for (size_t i = 0; i < picks.size(); ++i) {
    const auto& [span, r] = picks[i];
    const int32_t out = sampled_index(*span->sequence, span->first_in_sequence + r);
    sampled[span->sequence_index][out] = tokens[i];
    if (span->sequence->gives_kept()) kept_[span->sequence_index][out] = std::move(kept[i]);
  }
}

}  // namespace seer
