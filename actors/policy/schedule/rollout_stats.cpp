#include "actors/policy/schedule/rollout_stats.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "actors/policy/schedule/length_estimator.h"

namespace seer {

RolloutStats rollout_stats(std::span<const FinishRecord> records) {
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
    stats.reprefill_tokens += record.reprefill_tokens;
  }
  const size_t before_tail = (by_finish.size() * 9 + 9) / 10;  // 90 %, rounded up
  stats.requests = static_cast<int64_t>(by_finish.size());
  stats.tail_s = static_cast<double>(by_finish.back().finished_us - by_finish[before_tail - 1].finished_us) * 1e-6;
  stats.length_icc = lengths.length_icc();
  stats.estimate_error = lengths.estimate_error();
  return stats;
}

}  // namespace seer
