#include "actors/policy/schedule/length_estimator.h"

#include <algorithm>
#include <cmath>

#include "protocols/check.h"

namespace seer {
namespace {

constexpr double kNoVariance = 1e-12;  // below this the sums are rounding errors; different lengths give far more

}  // namespace

void LengthEstimator::observe(GroupId id, int64_t length) {
  length = std::max<int64_t>(1, length);
  const auto [slot, is_new] = slots_.try_emplace(id, groups_.size());
  Group& group = is_new ? groups_.emplace_back() : groups_[slot->second];
  if (!is_new) {
    error_sum_ += std::abs(static_cast<double>(group.estimated_tokens - length)) / static_cast<double>(length);
    ++predicted_;
  }
  group.estimated_tokens = std::max(group.estimated_tokens, length);
  ++group.finished;  // Welford's method: no cancellation, and equal lengths give a deviation of exactly 0
  const double log_length = std::log(static_cast<double>(length));
  const double deviation = log_length - group.log_mean;
  group.log_mean += deviation / static_cast<double>(group.finished);
  group.log_squares += deviation * (log_length - group.log_mean);
}

int64_t LengthEstimator::estimate(GroupId id) const {
  const auto slot = slots_.find(id);
  SEER_CHECK(slot != slots_.end(), id);
  return groups_[slot->second].estimated_tokens;
}

// With k groups of n_i members, N in all, group means m_i and total mean m:
//   MSB = sum n_i (m_i - m)^2 / (k - 1)      MSW = sum of squares within groups / (N - k)
//   n0  = (N - sum n_i^2 / N) / (k - 1)      var_between = (MSB - MSW) / n0
//   ICC = var_between / (var_between + MSW)
double LengthEstimator::length_icc() const {
  double groups = 0, members = 0, size_squares = 0, sum = 0, within = 0;
  for (const Group& group : groups_) {
    const auto size = static_cast<double>(group.finished);
    groups += 1;
    members += size;
    size_squares += size * size;
    sum += size * group.log_mean;
    within += group.log_squares;
  }
  if (groups < 2 || members == groups) return 0;
  const double mean = sum / members;
  double between = 0;
  for (const Group& group : groups_)
    between += static_cast<double>(group.finished) * (group.log_mean - mean) * (group.log_mean - mean);
  const double mean_square_between = between / (groups - 1);
  const double mean_square_within = within / (members - groups);
  const double typical_size = (members - size_squares / members) / (groups - 1);
  const double var_between = std::max(0.0, (mean_square_between - mean_square_within) / typical_size);
  if (var_between + mean_square_within < kNoVariance) return 0;
  return var_between / (var_between + mean_square_within);
}

}  // namespace seer
