// A whole iteration of training around a simulated rollout: rewards are computed by servers of their own while the rollout runs, and
// after both come training and the update of the weights. Used by `seer simulate`. Pure.
#pragma once
#include <cstdint>
#include <span>

namespace seer {

struct IterationTimes {
  double reward_s = 0;         // to judge one response
  int64_t reward_workers = 64; // responses judged at a time
  double train_s = 0;
  double update_s = 0;         // from the trainer's weights to those of all instances

  bool is_given() const { return reward_s > 0 || train_s > 0 || update_s > 0; }
};

/// When the last response is judged: each waits, in the order of completion, for a free worker. `completions_s` in any order.
double rewards_end_s(std::span<const double> completions_s, const IterationTimes& times);

/// From the start of the rollout, which takes `rollout_s`, to new weights on all instances.
double iteration_s(double rollout_s, std::span<const double> completions_s, const IterationTimes& times);

}  // namespace seer
