// DraftBudget: how many draft tokens the sequences of an instance get, from what verifying them costs and from how many
// have stood so far. Owned by instance_actor, asked every so many steps. Pure: no clock, no threads. O(classes * gamma_max
// * gamma_max) per decision. Single owner, not thread-safe.
//
// A sequence is of the high class (the probe of its group, whose length the others wait to know) or of the low one.
// Time per token of the batch, T_SD of paper section 3.4: (D + T) / sum over sequences of (1 + b1 + b1 b2 + ...), with
// D the time to make the drafts, T that of the step which verifies them, and b_i the probability that the draft token at
// position i stands, given that those before it do. It is learned per class and position from every verify; older ones
// count less.
//
// Rules (paper 3.4, Algorithm 1): all share the budget g* B, where g* minimises T_SD with equal drafts; they differ in
// how it is dealt out.
//   uniform   g* for every sequence.
//   printed   Algorithm 1 as printed: the benefit of one more token is B_x (b[g] - b[g + 1]), a fall in acceptance.
//   marginal  the same with the gain expected of one more token, B_x b[1] ... b[g + 1].
// No class gets a draft where even the best does not pay.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "protocols/step_cost.h"

namespace seer {

enum class DraftRule : uint8_t { kUniform, kPrinted, kMarginal };

struct DraftBudgetConfig {
  DraftRule rule = DraftRule::kUniform;
  int64_t gamma_max = 8;     // draft tokens of one sequence in one step at most (paper: 8)
  double lambda = 2;         // the high class gets one more where it promises so many times more (paper: 2)
  double draft_ns = 1500;    // to make one sequence's draft
  double prior_accept = 0.5; // b_i before anything is known
  double memory = 4096;      // verifies of a class after which an old one counts 1/e
};

/// uniform, printed, marginal.
std::vector<std::string> draft_rule_names();
/// REQUIRES: one of draft_rule_names().
DraftRule parse_draft_rule(std::string_view name);

class DraftBudget {
 public:
  enum Class : uint8_t { kHigh = 0, kLow = 1 };
  static constexpr size_t kClasses = 2;
  struct Lengths {
    std::array<int64_t, kClasses> tokens{};  // per sequence of the class
    bool operator==(const Lengths&) const = default;
  };
  using StepNs = std::function<double(const StepShape&)>;

  /// `step_ns`: T, what a step of this shape takes. REQUIRES: gamma_max >= 0, lambda >= 0, memory >= 1.
  DraftBudget(DraftBudgetConfig config, StepNs step_ns);

  /// For a batch of decoding sequences: `decode` is the shape of their step without drafts, `sequences` how many are of
  /// each class. Takes what was learned since the last call into account.
  Lengths choose(const StepShape& decode, const std::array<int64_t, kClasses>& sequences);
  /// A verify of `drafted` tokens of which the first `accepted` stood.
  void verified(Class of, int64_t drafted, int64_t accepted);

  /// b_i, i from 1. Beyond gamma_max as at gamma_max.
  double acceptance(Class of, int64_t position) const;
  /// 1 + b1 + b1 b2 + ..., `tokens` terms: what a verify is expected to gain.
  double expected_gain(Class of, int64_t tokens) const;

 private:
  struct Seen {
    double tried = 0, stood = 0;
  };
  double time_per_token(const StepShape& decode, const std::array<int64_t, kClasses>& sequences,
                        const Lengths& lengths) const;
  Lengths deal_out(int64_t budget, const std::array<int64_t, kClasses>& sequences) const;
  double benefit(Class of, int64_t sequences, int64_t tokens) const;

  DraftBudgetConfig config_;
  StepNs step_ns_;
  std::array<std::vector<Seen>, kClasses> seen_;      // by position - 1
  std::array<std::vector<double>, kClasses> b_;       // likewise, as of the last choose()
};

}  // namespace seer
