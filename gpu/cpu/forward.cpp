#include "gpu/cpu/forward.h"

#include <algorithm>
#include <cstring>

#include "gpu/sampler.h"
#include "protocols/check.h"

namespace seer {
namespace {

constexpr int32_t kRowGrainFloats = 16 * 1024;   // less than this is not worth waking a thread for
constexpr int32_t kScoreFloatsMax = 256 * 1024;  // of one attention piece: 1 MiB, half of a usual L2
constexpr int32_t kAttentionRowsMax = 16;

int32_t row_grain(int64_t width) { return static_cast<int32_t>(std::max<int64_t>(1, kRowGrainFloats / width)); }

}  // namespace

CpuForward::CpuForward(const Model& model, const CpuKernels& kernels, KvCache& cache, ThreadPool& pool)
    : model_(model),
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
      logits_(model.config.vocab_size),
      attention_scratch_(pool.threads()) {}

std::vector<std::vector<SampledToken>> CpuForward::run(const StepBatch& batch) {
  std::vector<std::vector<SampledToken>> sampled(batch.sequences.size());
  int64_t positions = 0;
  for (const SequenceStep& s : batch.sequences)
    positions = std::max(positions, s.start + static_cast<int64_t>(s.tokens.size()));
  rope_.reserve(positions);
  clear_new_blocks(batch);

  std::vector<Span> spans;
  int32_t rows = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceStep& sequence = batch.sequences[i];
    sampled[i].resize(sequence.sample_rows);
    const auto total = static_cast<int32_t>(sequence.tokens.size());
    for (int32_t first = 0; first < total;) {
      const int32_t taken = std::min(total - first, kSlabRows - rows);
      spans.push_back({&sequence, static_cast<int32_t>(i), first, rows, taken});
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
  return sampled;
}

// A block whose first position is written now holds nothing of its former owner afterwards: equal sequences then have
// equal blocks, byte for byte, as far as they were filled.
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
  for (int32_t i = 0; i < model_.config.layers; ++i) layer(i, spans, rows);
  sample(spans, sampled);
}

void CpuForward::embed(const std::vector<Span>& spans) {
  const PackedMatrix& embedding = model_.embedding_matrix();
  pool_.run_ranges(static_cast<int32_t>(spans.size()), row_grain(hidden_.stride),
                   [&](int32_t begin, int32_t end, int32_t) {
                     for (int32_t i = begin; i < end; ++i)
                       for (int32_t r = 0; r < spans[i].rows; ++r)
                         embedding.read_row(spans[i].sequence->tokens[spans[i].first_in_sequence + r],
                                            hidden_.row(spans[i].first_in_slab + r));
                   });
}

void CpuForward::layer(int32_t index, const std::vector<Span>& spans, int32_t rows) {
  const LayerWeights& w = model_.layers[index];
  const int32_t hidden = model_.config.hidden_size, inner = model_.config.intermediate_size;
  const float eps = model_.config.rms_norm_eps;
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

// Bias, norms of heads and rope on the rows of qkv_; keys and values to the cache, queries stay.
void CpuForward::store_kv(int32_t layer_index, const std::vector<Span>& spans, int32_t rows) {
  const LayerWeights& w = model_.layers[layer_index];
  const ModelConfig& c = model_.config;
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
      const int64_t position = span->position() + r - span->first_in_slab;
      float* query = qkv_.row(r);
      float* key = query + c.query_size();
      float* value = key + c.kv_size();
      if (c.qkv_bias) kernels_.add(query, w.qkv_bias.data(), c.query_size() + 2 * c.kv_size());
      for (int32_t h = 0; h < c.heads; ++h) prepare_head(query + h * c.head_dim, w.q_norm, position, round_query);
      for (int32_t h = 0; h < c.kv_heads; ++h) {
        prepare_head(key + h * c.head_dim, w.k_norm, position, false);
        cache_.write(span->sequence->blocks, position, layer_index, h, key + h * c.head_dim, value + h * c.head_dim);
      }
    }
  });
}

// Cuts the spans into pieces whose scores fit in a core's cache, and sizes the scratch for the largest.
void CpuForward::plan_attention(const std::vector<Span>& spans) {
  const ModelConfig& c = model_.config;
  const int32_t group = c.heads / c.kv_heads;
  int64_t scratch = 0;
  pieces_.clear();
  for (const Span& span : spans) {
    const int64_t row_floats = group * (span.position() + span.rows);
    const auto fit = static_cast<int32_t>(std::clamp<int64_t>(kScoreFloatsMax / row_floats, 1, kAttentionRowsMax));
    for (int32_t first = 0; first < span.rows; first += fit) {
      const int32_t rows = std::min(fit, span.rows - first);
      pieces_.push_back({&span, first, rows});
      scratch = std::max(scratch, attention_scratch_floats(rows, group, c.head_dim, span.position() + first));
    }
  }
  for (AlignedArray<float>& s : attention_scratch_)
    if (static_cast<int64_t>(s.size()) < scratch) s = AlignedArray<float>(scratch + scratch / 4);  // room to grow into
}

void CpuForward::attend(int32_t layer_index) {
  const ModelConfig& c = model_.config;
  const int32_t group = c.heads / c.kv_heads;
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(c.head_dim));
  pool_.run_ranges(static_cast<int32_t>(pieces_.size()) * c.kv_heads, 1,
                   [&](int32_t begin, int32_t end, int32_t thread) {
                     for (int32_t i = begin; i < end; ++i) {
                       const AttentionPiece& piece = pieces_[i / c.kv_heads];
                       const int32_t head = i % c.kv_heads, row = piece.span->first_in_slab + piece.first;
                       kernels_.attention({.kv = cache_.view(piece.span->sequence->blocks, layer_index, head),
                                           .position = piece.span->position() + piece.first,
                                           .rows = piece.rows,
                                           .group = group,
                                           .head_dim = c.head_dim,
                                           .scale = scale,
                                           .query = qkv_.row(row) + head * group * c.head_dim,
                                           .query_stride = qkv_.stride,
                                           .out = attended_.row(row) + head * group * c.head_dim,
                                           .out_stride = attended_.stride,
                                           .round_out = round_,
                                           .scratch = attention_scratch_[thread].data()});
                     }
                   });
}

void CpuForward::sample(const std::vector<Span>& spans, std::vector<std::vector<SampledToken>>& sampled) {
  std::vector<std::pair<int32_t, int32_t>> picks;  // span, row within it
  for (size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    const int32_t first_sampled = static_cast<int32_t>(span.sequence->tokens.size()) - span.sequence->sample_rows;
    for (int32_t r = std::max(0, first_sampled - span.first_in_sequence); r < span.rows; ++r)
      picks.emplace_back(static_cast<int32_t>(i), r);
  }
  for (size_t i = 0; i < picks.size(); i += kLogitRows)
    sample_rows(spans, std::span(picks).subspan(i, std::min<size_t>(kLogitRows, picks.size() - i)), sampled);
}

void CpuForward::sample_rows(const std::vector<Span>& spans, std::span<const std::pair<int32_t, int32_t>> picks,
                             std::vector<std::vector<SampledToken>>& sampled) {
  const ModelConfig& c = model_.config;
  const auto rows = static_cast<int32_t>(picks.size());
  logits_.reserve_rows(rows);
  pool_.run_ranges(rows, row_grain(c.hidden_size), [&](int32_t begin, int32_t end, int32_t) {
    for (int32_t i = begin; i < end; ++i)
      kernels_.rms_norm(hidden_.row(spans[picks[i].first].first_in_slab + picks[i].second), model_.final_norm.data(),
                        c.hidden_size, c.rms_norm_eps, round_, normed_.row(i));
  });
  linear_.multiply(model_.head, normed_, rows, logits_);
  pool_.run_ranges(rows, 1, [&](int32_t begin, int32_t end, int32_t) {
    for (int32_t i = begin; i < end; ++i) {
      const Span& span = spans[picks[i].first];
      const SequenceStep& s = *span.sequence;
      const int32_t row = span.first_in_sequence + picks[i].second;  // within the sequence's tokens
      const int32_t out = row - (static_cast<int32_t>(s.tokens.size()) - s.sample_rows);
      const std::span<float> logits(logits_.row(i), static_cast<size_t>(c.vocab_size));
      SampledToken& result = sampled[span.sequence_index][out];
      if (!s.targets.empty()) {
        result = {s.targets[out], token_logprob(logits, s.targets[out], *s.sampling)};
        continue;
      }
      std::vector<int32_t> seen;
      if (s.sampling->repetition_penalty != 1.0f) {
        seen = s.history;
        seen.insert(seen.end(), s.tokens.begin(), s.tokens.begin() + row + 1);
      }
      const RowSample drawn = sample_row(logits, *s.sampling, s.seed, s.start + row + 1, seen);
      result = {drawn.token, drawn.logprob};
    }
  });
}

}  // namespace seer
