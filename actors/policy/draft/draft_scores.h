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
#include <array>
#include <cstdint>
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

  /// A candidate followed a context of `match_tokens` tokens `count` times of `total`: context_cells() + share().
  static Cell context_cells(uint32_t match_tokens, uint32_t total) {
    return static_cast<Cell>(length_class(match_tokens) * 128 + total_class(total) * 16);
  }
  static Cell share(uint32_t count, uint32_t total) {
    return static_cast<Cell>(count == 0 ? 0 : count >= total ? 15 : 1 + count * 14 / total);
  }
  /// The source has agreed for `run_tokens` tokens, after `misses` recent tokens that differed; the longest context has
  /// match_tokens. `agrees`: the source has the candidate next. `past`: the source is of an earlier iteration.
  static Cell source_cell(uint32_t run_tokens, uint32_t misses, uint32_t match_tokens, bool agrees, bool past) {
    const uint32_t match = length_class(match_tokens);
    return static_cast<Cell>(length_class(run_tokens) * 128 + (match < 7 ? match : 7) * 16 + (past ? 8 : 0) +
                             (agrees ? 0 : 4) + (misses < 3 ? misses : 3));
  }
  /// Where a candidate followed the longest context last: in this response, in this iteration, or in earlier ones only.
  enum class Seen : uint8_t { kHere, kElsewhere, kInPast };
  /// Where the candidate was last seen and, for kHere, how many tokens ago: age_cells() + share() of the longest context.
  static Cell age_cells(uint32_t match_tokens, Seen seen, int64_t tokens_ago) {
    const uint32_t age = seen == Seen::kElsewhere ? 0
                         : seen == Seen::kInPast  ? 7
                         : tokens_ago < 16   ? 1
                         : tokens_ago < 64   ? 2
                         : tokens_ago < 256  ? 3
                         : tokens_ago < 1024 ? 4
                         : tokens_ago < 4096 ? 5
                                             : 6;
    return static_cast<Cell>(length_class(match_tokens) * 128 + age * 16);
  }
  enum class Source : uint8_t { kNone, kAgrees, kDiffers };
  /// `past`: the candidate is known from earlier iterations only.
  static uint16_t weight_set(uint32_t match_tokens, Source source, bool past) {
    return static_cast<uint16_t>((past ? kPresentSets : 0) + length_class(match_tokens) * 3 +
                                 static_cast<uint32_t>(source));
  }

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

}  // namespace seer
