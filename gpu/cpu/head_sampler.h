// HeadSampler: the end of a step: turns the normed rows that are sampled or scored into tokens. The head is computed part
// by part (kPartIds ids), and the logits of a part are used while they are in the core's cache: rows that need only a
// sample or a log-probability never have all their logits in memory. Owned by CpuForward.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/cpu/linear.h"
#include "gpu/engine.h"

namespace seer {

struct HeadRow {
  const SamplingParams* sampling = nullptr;
  uint64_t seed = 0;
  int64_t position = 0;                 // of the sampled token
  int32_t target = -1;                  // >= 0: this token is scored, nothing is sampled
  std::vector<int32_t> penalty_tokens, banned;  // see sampler.h
};

class HeadSampler {
 public:
  /// All are borrowed and outlive this.
  HeadSampler(int32_t vocab, Linear& linear, ThreadPool& pool);

  static constexpr int32_t kRowsMax = 64;

  /// Sets tokens[i] from row i of `normed`, and kept[i] unless `kept` is empty. REQUIRES: head has `vocab` rows; at most kRowsMax
  /// rows; tokens.size() == rows.size().
  void run(const PackedMatrix& head, Activations& normed, std::span<const HeadRow> rows, std::span<SampledToken> tokens,
           std::span<KeptList> kept = {});

 private:
  Linear& linear_;
  ThreadPool& pool_;
  std::vector<AlignedArray<float>> part_logits_;  // [kRowsMax, kPartIds] of one part, one per thread
  Activations whole_logits_;                      // of the rows that need them all
};

}  // namespace seer
