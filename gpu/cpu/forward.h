// CpuForward: the arithmetic of one step: token rows in, KV written, sampled (or scored) tokens out. Owned by CpuEngine
// and called on its thread only; spreads each layer's loops over the thread pool.
//
// What makes it exact: every value of a row is computed by a kernel whose order of operations does not depend on the
// other rows (kernels.h); loops are split over outputs, rows and heads, never over a sum; a row's own K and V are read
// back from the cache, as later rows will read them.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gpu/cpu/head_sampler.h"
#include "gpu/cpu/kernels.h"
#include "gpu/cpu/kv_cache.h"
#include "gpu/cpu/linear.h"
#include "gpu/cpu/rope_table.h"
#include "gpu/cpu/thread_pool.h"
#include "gpu/engine.h"
#include "gpu/model/weight_store.h"

namespace seer {

class CpuForward {
 public:
  // Rows are computed in slabs, so that memory for activations is bounded. Rows of one sequence come in order, so a
  // slab finds the KV of the earlier ones.
  static constexpr int32_t kSlabRows = 256;

  /// All are borrowed and outlive this; the model only needs to live until set_weights() replaces it.
  CpuForward(const Model& model, const CpuKernels& kernels, KvCache& cache, ThreadPool& pool);

  /// Uses other weights of the same model (load_weights()) from the next run() on.
  void set_weights(const Model& model) { model_ = &model; }

  /// REQUIRES: the batch is valid as engine.h says.
  std::vector<std::vector<SampledToken>> run(const StepBatch& batch);
  /// StepResult::kept of the last run().
  std::vector<std::vector<KeptList>> take_kept() { return std::exchange(kept_, {}); }

 private:
  // Consecutive rows of one sequence within a slab.
  struct Span {
    const SequenceStep* sequence;
    int32_t sequence_index;
    int32_t first_in_sequence;  // index of its first row in sequence->tokens
    int32_t first_in_slab;
    int32_t rows;
    const int32_t* depths;  // of all rows of the sequence if they are a draft tree, else null

    /// slot() is where K and V of row `r` of the span are written, position() is its position for the model.
    int64_t slot(int32_t r) const { return sequence->start + first_in_sequence + r; }
    int64_t position(int32_t r) const { return depths ? sequence->start + depths[first_in_sequence + r] : slot(r); }
    int64_t last_position(int32_t first, int32_t count) const;
  };
  struct AttentionPiece {  // query rows of one span that are computed together
    const Span* span;
    int32_t first;  // within the span
    int32_t rows;
  };

  void run_slab(const std::vector<Span>& spans, int32_t rows, std::vector<std::vector<SampledToken>>& sampled);
  void clear_new_blocks(const StepBatch& batch);
  void embed(const std::vector<Span>& spans);
  void layer(int32_t index, const std::vector<Span>& spans, int32_t rows);
  void store_kv(int32_t layer, const std::vector<Span>& spans, int32_t rows);
  void attend(int32_t layer);
  void plan_attention(const std::vector<Span>& spans);
  void attend_piece(int32_t index, bool goes_on, int32_t layer, int32_t thread);
  void fill_tails(const AttentionPiece& piece, int32_t layer, int32_t head, int64_t tail_tiles, std::byte* tails);
  void keep_accepted(const SequenceStep& sequence, std::span<const SampledToken> sampled);
  void sample(const std::vector<Span>& spans, std::vector<std::vector<SampledToken>>& sampled);
  void sample_rows(std::span<const std::pair<const Span*, int32_t>> picks,
                   std::vector<std::vector<SampledToken>>& sampled);

  std::vector<std::vector<KeptList>> kept_;
  const Model* model_;
  const CpuKernels& kernels_;
  KvCache& cache_;
  ThreadPool& pool_;
  Linear linear_;
  RopeTable rope_;
  const bool round_;  // inputs of a GEMM are rounded to bf16, because of the type of the weights

  Activations hidden_, normed_, qkv_, attended_, projected_, gate_up_, activated_;
  HeadSampler head_sampler_;
  std::vector<AttentionPiece> pieces_;
  std::vector<AlignedArray<float>> attention_scratch_;  // one per thread
  std::vector<AlignedArray<std::byte>> tails_;          // of tree rows, one per thread
};

}  // namespace seer
