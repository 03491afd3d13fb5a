// DecodeTimes: how long decode steps take, by the size of the batch and its context. Filled with measured steps; between and beyond
// them it interpolates along straight lines, since a step's time grows about linearly with both. Within what was measured, a larger step
// never takes less, even where other programs delayed a smaller one meanwhile. Used by cli/policy_auto. Plain data.
#pragma once
#include <cstdint>
#include <map>

namespace seer {

class DecodeTimes {
 public:
  /// Adds a measured step. `context_tokens`: of each of its sequences.
  void add(int64_t sequences, int64_t context_tokens, double step_us);
  /// Predicts the microseconds of a step; 0: nothing was added.
  double step_us(int64_t sequences, int64_t context_tokens) const;

 private:
  std::map<int64_t, std::map<int64_t, double>> us_;  // by sequences, then by context
};

}  // namespace seer
