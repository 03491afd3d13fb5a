#include "actors/policy/draft_budget.h"

#include <algorithm>
#include <utility>

#include "protocols/check.h"

namespace seer {
namespace {

constexpr double kPriorVerifies = 16;  // that the prior counts as many as

}  // namespace

std::vector<std::string> draft_rule_names() { return {"uniform", "printed", "marginal"}; }

DraftRule parse_draft_rule(std::string_view name) {
  const std::vector<std::string> names = draft_rule_names();
  const auto it = std::find(names.begin(), names.end(), name);
  SEER_CHECK(it != names.end(), name);
  return static_cast<DraftRule>(it - names.begin());
}

DraftBudget::DraftBudget(DraftBudgetConfig config, StepNs step_ns) : config_(config), step_ns_(std::move(step_ns)) {
  SEER_CHECK(config_.gamma_max >= 0 && config_.lambda >= 0 && config_.memory >= 1, config_.gamma_max, config_.memory);
  for (size_t c = 0; c < kClasses; ++c) {
    seen_[c].resize(static_cast<size_t>(config_.gamma_max));
    b_[c].assign(static_cast<size_t>(config_.gamma_max), config_.prior_accept);
  }
}

void DraftBudget::verified(Class of, int64_t drafted, int64_t accepted) {
  SEER_CHECK(accepted >= 0 && accepted <= drafted, drafted, accepted);
  const double kept = 1 - 1 / config_.memory;
  std::vector<Seen>& seen = seen_[of];
  const int64_t tried = std::min({drafted, accepted + 1, config_.gamma_max});
  for (int64_t i = 0; i < tried; ++i) {
    Seen& at = seen[static_cast<size_t>(i)];
    at.tried = kept * at.tried + 1;
    at.stood = kept * at.stood + (i < accepted ? 1 : 0);
  }
}

double DraftBudget::acceptance(Class of, int64_t position) const {
  if (b_[of].empty()) return 0;
  return b_[of][static_cast<size_t>(std::clamp<int64_t>(position, 1, config_.gamma_max) - 1)];
}

double DraftBudget::expected_gain(Class of, int64_t tokens) const {
  double gain = 1, stands = 1;
  for (int64_t i = 1; i <= tokens; ++i) gain += stands *= acceptance(of, i);
  return gain;
}

double DraftBudget::time_per_token(const StepShape& decode, const std::array<int64_t, kClasses>& sequences,
                                   const Lengths& lengths) const {
  StepShape shape = decode;
  double gained = 0, draft_ns = 0;
  for (size_t c = 0; c < kClasses; ++c) {
    const int64_t g = lengths.tokens[c], extra = g * sequences[c];
    gained += static_cast<double>(sequences[c]) * expected_gain(static_cast<Class>(c), g);
    if (g > 0) draft_ns += config_.draft_ns * static_cast<double>(sequences[c]);
    shape.rows += extra;
    shape.sampled_rows += extra;
    shape.kv_tokens += extra;
    // Row i of a draft attends to the context and i tokens of the draft.
    shape.attended += extra * (decode.kv_tokens / std::max<int64_t>(1, decode.sequences)) + extra * (g + 1) / 2;
  }
  return (draft_ns + step_ns_(shape)) / gained;
}

DraftBudget::Lengths DraftBudget::choose(const StepShape& decode, const std::array<int64_t, kClasses>& sequences) {
  if (decode.sequences == 0 || config_.gamma_max == 0) return {};
  for (size_t c = 0; c < kClasses; ++c) {
    double before = config_.prior_accept;  // what is not known is taken to be like the position before
    for (size_t i = 0; i < b_[c].size(); ++i)
      before = b_[c][i] = (seen_[c][i].stood + kPriorVerifies * before) / (seen_[c][i].tried + kPriorVerifies);
  }
  int64_t best = 0;
  double best_ns = time_per_token(decode, sequences, {});
  const double plain_ns = best_ns;
  for (int64_t g = 1; g <= config_.gamma_max; ++g) {
    const double ns = time_per_token(decode, sequences, {{g, g}});
    if (ns < best_ns) best_ns = ns, best = g;
  }
  if (best == 0 || config_.rule == DraftRule::kUniform) return {{best, best}};
  const Lengths dealt = deal_out(best * decode.sequences, sequences);
  return time_per_token(decode, sequences, dealt) < plain_ns ? dealt : Lengths{{best, best}};
}

/// Algorithm 1 from its line 4 on.
DraftBudget::Lengths DraftBudget::deal_out(int64_t budget, const std::array<int64_t, kClasses>& sequences) const {
  const int64_t high = sequences[kHigh], low = sequences[kLow];
  Lengths lengths;
  auto& [g_high, g_low] = lengths.tokens;
  int64_t left = budget;
  if (high > 0) g_high = 1, left -= high;
  while (left > 0) {
    const double high_benefit = benefit(kHigh, high, g_high), low_benefit = benefit(kLow, low, g_low);
    if (high > 0 && high_benefit > config_.lambda * low_benefit && g_high < config_.gamma_max && left >= high)
      ++g_high, left -= high;
    else if (low > 0 && g_low < config_.gamma_max && left >= low)
      ++g_low, left -= low;
    else
      break;
  }
  return lengths;
}

/// Of one more draft token for every sequence of the class.
double DraftBudget::benefit(Class of, int64_t sequences, int64_t tokens) const {
  const auto count = static_cast<double>(sequences);
  if (config_.rule == DraftRule::kPrinted)
    return count * ((tokens == 0 ? 1 : acceptance(of, tokens)) - acceptance(of, tokens + 1));
  return count * (expected_gain(of, tokens + 1) - expected_gain(of, tokens));
}

}  // namespace seer
