#include "cli/sim/sim_gap.h"

#include <algorithm>

namespace seer {

SimGap gap_of(const SimRun& run, const TimePrices& prices, const ClusterModel& cluster) {
  if (prices.bound_s <= 0 || run.responses.empty() || run.steps.empty()) return {};
  SimGap gap{.idle = prices.machine * static_cast<double>(cluster.instances) * run.idle_share,
             .waiting = 0, .early = 0, .prefill = 0, .batch = 0, .mix = 0};
  for (size_t i = 0; i < run.responses.size(); ++i) {
    const double price = prices.waiting_of(run.responses[i].decode_steps) / run.total_s, end_s = run.completions_s[i];
    gap.waiting += price * (end_s - run.responses[i].batch_s);
    gap.early += price * (run.total_s - end_s);
  }
  for (const StepsTaken& taken : run.steps) {
    const int64_t sequences = taken.shape.sequences, kv_tokens = std::max(sequences, taken.shape.kv_tokens);
    const StepShape decode{sequences, sequences, sequences, kv_tokens, kv_tokens};
    const double all = static_cast<double>(taken.steps) / (1e9 * run.total_s);
    const double decode_ns = std::min(taken.step_ns, static_cast<double>(cluster.step_ns(decode)));
    gap.prefill += all * prices.machine * (taken.step_ns - decode_ns);
    gap.batch += all * (prices.machine * decode_ns - prices.rows_worth_ns(sequences, kv_tokens, decode_ns));
  }
  gap.mix = 1 - prices.bound_s / run.total_s - gap.idle - gap.waiting - gap.early - gap.prefill - gap.batch;
  return gap;
}

}  // namespace seer
