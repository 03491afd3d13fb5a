#include "actors/policy/schedule/rollout_stats.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "actors/policy/schedule/length_estimator.h"

namespace seer {

RolloutStats rollout_stats(std::span<const FinishRecord> records, int64_t started_us) {
  RolloutStats stats;
  if (records.empty()) return stats;
  std::vector<FinishRecord> by_finish(records.begin(), records.end());
  std::sort(by_finish.begin(), by_finish.end(), [](const FinishRecord& a, const FinishRecord& b) {
    return std::tie(a.finished_us, a.request) < std::tie(b.finished_us, b.request);
  });
  LengthEstimator lengths;
  for (const FinishRecord& record : by_finish) {
    if (!record.failed && !record.aborted) lengths.observe(record.request.group, record.output_tokens);
    stats.failed += record.failed;
    stats.aborted += record.aborted;
    stats.output_tokens += record.output_tokens;
    stats.preemptions += record.preemptions;
    stats.migrations += record.migrations;
    stats.reprefill_tokens += record.reprefill_tokens;
  }
  const size_t before_tail = (by_finish.size() * 9 + 9) / 10;  // 90 %, rounded up
  const auto seconds_at = [&](size_t index) {
    return static_cast<double>(by_finish[index].finished_us - started_us) * 1e-6;
  };
  stats.requests = static_cast<int64_t>(by_finish.size());
  stats.wall_s = seconds_at(by_finish.size() - 1);
  stats.tail_s = stats.wall_s - seconds_at(before_tail - 1);
  stats.tokens_per_s = stats.wall_s > 0 ? static_cast<double>(stats.output_tokens) / stats.wall_s : 0;
  stats.length_icc = lengths.length_icc();
  stats.estimate_error = lengths.estimate_error();
  return stats;
}

}  // namespace seer
