// LengthEstimator: estimates how long the responses of a group are, and says how good the estimates were. Owned by
// context_actor, which sends each change to the scheduler; rollout_stats replays finishes through it. Pure.
//
// The estimate of a group is the largest length among its finished members; before any has finished, it is the original
// limit (paper 3.2). So a group counts as long until shown otherwise, and a short member never lowers the estimate.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "protocols/ids.h"

namespace seer {

class LengthEstimator {
 public:
  /// REQUIRES: the group is new, max_tokens >= 1.
  void add_group(GroupId group, int64_t max_tokens);
  bool has_group(GroupId group) const { return slots_.contains(group); }
  int64_t estimate(GroupId group) const { return at(group).estimated_tokens; }

  /// A member finished with this length; 0 (an aborted one) counts as 1. Returns whether the estimate changed.
  bool observe(GroupId group, int64_t length);

  /// Mean of |estimate - length| / length, with the estimate before that finish, over all but the first finish of each
  /// group: the limit is no prediction. 0 if there were none.
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
  const Group& at(GroupId group) const;

  std::unordered_map<GroupId, size_t> slots_;  // only looked up; groups_ gives a fixed order to the sums
  std::vector<Group> groups_;
  double error_sum_ = 0;
  int64_t predicted_ = 0;
};

}  // namespace seer
