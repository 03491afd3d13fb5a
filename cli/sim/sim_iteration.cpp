#include "cli/sim/sim_iteration.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

namespace seer {

double rewards_end_s(std::span<const double> completions_s, const IterationTimes& times) {
  std::vector<double> done_s(completions_s.begin(), completions_s.end());
  std::ranges::sort(done_s);
  std::priority_queue<double, std::vector<double>, std::greater<>> busy_until_s;  // of each worker that has judged
  double end_s = 0;
  for (const double done : done_s) {
    double start_s = done;
    if (static_cast<int64_t>(busy_until_s.size()) >= times.reward_workers) {
      start_s = std::max(done, busy_until_s.top());
      busy_until_s.pop();
    }
    busy_until_s.push(start_s + times.reward_s);
    end_s = std::max(end_s, start_s + times.reward_s);
  }
  return end_s;
}

double iteration_s(double rollout_s, std::span<const double> completions_s, const IterationTimes& times) {
  return std::max(rollout_s, rewards_end_s(completions_s, times)) + times.train_s + times.update_s;
}

}  // namespace seer
