// LengthEstimator: estimates how long the responses of a group are, and says how good the estimates were. Owned by
// context_actor, which sends each change to the scheduler; rollout_stats replays finishes through it. Pure.
//
// The estimate of a group is the largest length among its finished members, so a short member never lowers it. A group without one
// has no estimate: schedulers take it for as long as its limit (paper 3.2).
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "protocols/ids.h"

namespace seer {

class LengthEstimator {
 public:
  /// A member finished with this length; 0 counts as 1.
  void observe(GroupId group, int64_t length);
  /// REQUIRES: a member finished.
  int64_t estimate(GroupId group) const;

  /// Mean of |estimate - length| / length, with the estimate before that finish, over all but the first finish of each
  /// group. 0 if there were none.
  double estimate_error() const { return predicted_ == 0 ? 0 : error_sum_ / static_cast<double>(predicted_); }

  /// Share of the variance of log length that lies between groups: the one-way random-effects intraclass correlation,
  /// ANOVA estimator for unequal group sizes, clipped to [0, 1]. 0 if it is not defined: fewer than two groups with a
  /// finished member, no group with two, or no variance at all.
  double length_icc() const;

 private:
  struct Group {
    int64_t estimated_tokens = 0;
    int64_t finished = 0;
    double log_mean = 0;     // of the finished lengths
    double log_squares = 0;  // sum of squared deviations from log_mean
  };

  std::unordered_map<GroupId, size_t> slots_;  // only looked up; groups_ gives a fixed order to the sums
  std::vector<Group> groups_;
  double error_sum_ = 0;
  int64_t predicted_ = 0;
};

}  // namespace seer
