#include "actors/policy/schedule/rollout_stats.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace seer;

namespace {

FinishRecord finish(uint32_t group, uint32_t sample, double second, int64_t tokens) {
  return {.request = {{group}, sample},
          .finished_us = 5'000'000 + static_cast<int64_t>(second * 1e6),
          .output_tokens = tokens};
}

}  // namespace

TEST_CASE("rollout stats: nothing finished gives all zeros") {
  const RolloutStats stats = rollout_stats({});
  CHECK(stats.requests == 0);
  CHECK(stats.tail_s == 0);
}

TEST_CASE("rollout stats: the tail begins when 90 percent of the requests are done") {
  std::vector<FinishRecord> records;
  for (uint32_t i = 0; i < 20; ++i) records.push_back(finish(0, i, 1.0 + i, 100));
  RolloutStats stats = rollout_stats(records);
  CHECK(stats.tail_s == doctest::Approx(2));  // 18 of 20 are done at 18 s
  CHECK(stats.output_tokens == 2000);
  records.resize(11);
  CHECK(rollout_stats(records).tail_s == doctest::Approx(1));  // 10 of 11: the first that reach 90 %
  records.resize(1);
  CHECK(rollout_stats(records).tail_s == 0);
}

TEST_CASE("rollout stats: counts are sums over the records") {
  std::vector<FinishRecord> records = {finish(0, 0, 1, 10), finish(0, 1, 2, 20)};
  records[0].reprefill_tokens = 20;
  records[1].reprefill_tokens = 300;
  const RolloutStats stats = rollout_stats(records);
  CHECK(stats.requests == 2);
  CHECK(stats.output_tokens == 30);
  CHECK(stats.reprefill_tokens == 320);
}

TEST_CASE("rollout stats: the estimate error follows the order of finishing, not of the records") {
  // In time: group 0 finishes 100, then 200 (estimate 100: error 0.5), then 50 (estimate 200: error 3).
  std::vector<FinishRecord> records = {finish(0, 2, 3, 50), finish(0, 0, 1, 100), finish(0, 1, 2, 200)};
  const RolloutStats stats = rollout_stats(records);
  CHECK(stats.estimate_error == doctest::Approx(1.75));
  std::reverse(records.begin(), records.end());
  CHECK(rollout_stats(records).estimate_error == stats.estimate_error);
}

TEST_CASE("rollout stats: the ICC is that of the logs of the lengths") {
  const std::vector<FinishRecord> records = {finish(0, 0, 1, 2), finish(0, 1, 2, 8), finish(1, 0, 3, 32),
                                             finish(1, 1, 4, 128)};
  CHECK(rollout_stats(records).length_icc == doctest::Approx(7.0 / 9.0));
}

TEST_CASE("rollout stats: a failed request counts, but nothing is learned from its length") {
  std::vector<FinishRecord> records = {finish(0, 0, 1, 100), finish(0, 1, 2, 100), finish(0, 2, 3, 7)};
  records[2].failed = true;
  const RolloutStats stats = rollout_stats(records);
  CHECK(stats.requests == 3);
  CHECK(stats.failed == 1);
  CHECK(stats.output_tokens == 207);
  CHECK(stats.estimate_error == 0);
}
