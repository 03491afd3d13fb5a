// DraftScores: predicts how likely a candidate token is to be the next one, and learns from which earlier candidates were
// accepted. One per instance, shared by the draft trees of all its groups, so that a new group starts with calibrated
// scores. Used by DraftTree. Single owner, not thread-safe. The same sequence of calls gives the same scores.
//
// The evidence for a candidate is: how often it followed the longest known context and up to three shorter ones, whether the
// source being followed has it next, and how long ago it last followed the longest context. Each kind of evidence has a table
// of probabilities, which learns what share of candidates with that evidence was accepted. The logits are mixed with weights
// that depend on the length of the match and on the source (logistic mixing, as in the PAQ compressors). The weights are
// learned by gradient descent:
//   p = 1 / (1 + exp(-sum_i weight[set][i] * logit_i))
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace seer {

class DraftScores {
 public:
  static constexpr uint32_t kContexts = 4;            // contexts whose counts are mixed, the longest first
  static constexpr uint32_t kTables = kContexts + 2;  // plus those of the source and of the age
  using Cell = uint16_t;                              // index into a table

  /// The evidence for one candidate: its cell in each table and the set of weights; and the resulting probability.
  struct Evidence {
    std::array<Cell, kTables> cells;
    uint16_t weight_set;
    float probability;
  };
  static constexpr Cell kNoCell = 1280;  // nothing known: adds nothing to the logit

  DraftScores();

  /// The source that a draft follows: it has agreed for `run_tokens` tokens, after `misses` recent tokens that differed.
  struct Source {
    uint32_t run_tokens = 0, misses = 0;
    bool is_past = false;  // of an earlier iteration
  };
  /// Where a candidate followed the longest context last: in this response, in this iteration, or in earlier ones only.
  enum class Seen : uint8_t { kHere, kElsewhere, kInPast };
  struct LastSeen {
    Seen where = Seen::kElsewhere;
    int64_t tokens_ago = 0;  // kHere
  };
  /// What the candidates for one token have in common.
  class Row;

  /// The logit of the candidate's probability.
  float logit(const Evidence& evidence) const {
    const auto& weights = weights_[evidence.weight_set];
    float sum = weights[kTables] * kConstantInput;
    for (uint32_t i = 0; i < kTables; ++i) sum += weights[i] * logits_[i * kTableCells + evidence.cells[i]];
    return sum;
  }
  static float probability(float logit);
  /// Learns whether the candidate was accepted. REQUIRES: evidence.probability is set.
  void learn(const Evidence& evidence, bool accepted);

 private:
  static constexpr uint32_t kLengthClasses = 10;
  static constexpr uint32_t kTableCells = kLengthClasses * 128 + 1;
  static_assert(kNoCell == kTableCells - 1);
  static constexpr uint32_t kPresentSets = kLengthClasses * 3;  // as many again for candidates of earlier iterations only
  static constexpr float kConstantInput = 2;  // large enough to correct a bias of all cells within a thousand calls of learn()

  static uint32_t length_class(uint32_t tokens) {
    static constexpr std::array<uint8_t, 33> kClass = {0, 0, 0, 1, 2, 3, 3, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6,
                                                       6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 8, 8};
    return tokens > 32 ? 9 : kClass[tokens];
  }
  static uint32_t total_class(uint32_t total) {
    static constexpr std::array<uint8_t, 17> kClass = {0, 0, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4};
    return total <= 16 ? kClass[total] : total < 64 ? 5 : total < 256 ? 6 : 7;
  }

  struct Learned {
    float probability, seen;
  };
  std::vector<float> logits_;  // logits of learned_, by table and cell; 0 for kNoCell
  std::vector<Learned> learned_;
  std::array<std::array<float, kTables + 1>, 2 * kPresentSets> weights_;  // the last one is for the constant input
};

class DraftScores::Row {
 public:
  /// Of each context, the longest first: its length in tokens, and how often any token followed it. At most kContexts. No `source`: the
  /// draft follows none.
  Row(std::span<const uint32_t> lengths, std::span<const uint32_t> totals, std::optional<Source> source)
      : totals_(totals), source_(source), length_class_(length_class(lengths.empty() ? 0 : lengths[0])) {
    for (size_t i = 0; i < lengths.size(); ++i) context_cells_[i] = length_class(lengths[i]) * 128 + total_class(totals[i]) * 16;
    if (source)
      source_cells_ = length_class(source->run_tokens) * 128 + std::min(length_class_, 7u) * 16 + (source->is_past ? 8 : 0) +
                      std::min(source->misses, 3u);
  }

  /// `counts`: how often the candidate followed each context. `agrees`: the source has it next. `last`: none if it followed no context.
  /// Its probability is not set.
  Evidence evidence(std::span<const uint32_t> counts, bool agrees, std::optional<LastSeen> last) const {
    Evidence e = {};
    e.cells.fill(kNoCell);
    for (size_t i = 0; i < totals_.size(); ++i) e.cells[i] = static_cast<Cell>(context_cells_[i] + share(counts[i], totals_[i]));
    if (source_) e.cells[kContexts] = static_cast<Cell>(source_cells_ + (agrees ? 0 : 4));
    if (last) e.cells[kContexts + 1] = static_cast<Cell>(length_class_ * 128 + age_class(*last) * 16 + e.cells[0] % 16);
    const bool is_past = last ? last->where == Seen::kInPast : source_ && source_->is_past;
    const uint32_t source_class = !source_ ? 0 : agrees ? 1 : 2;
    e.weight_set = static_cast<uint16_t>((is_past ? kPresentSets : 0) + length_class_ * 3 + source_class);
    return e;
  }

 private:
  static uint32_t share(uint32_t count, uint32_t total) { return count == 0 ? 0 : count >= total ? 15 : 1 + count * 14 / total; }
  static uint32_t age_class(const LastSeen& last) {
    if (last.where != Seen::kHere) return last.where == Seen::kElsewhere ? 0 : 7;
    uint32_t age = 1;
    for (int64_t limit = 16; limit <= 4096 && last.tokens_ago >= limit; limit *= 4) ++age;
    return age;
  }

  std::span<const uint32_t> totals_;
  std::optional<Source> source_;
  uint32_t length_class_;  // of the longest context
  uint32_t source_cells_ = 0;
  std::array<uint32_t, kContexts> context_cells_;
};

}  // namespace seer
