// RolloutStats: the figures of one rollout, computed from one record per finished request. rollout_actor (for the report), the
// simulator and benchmarks use it, so that a figure means the same everywhere. Pure.
#pragma once
#include <cstdint>
#include <span>

#include "protocols/fields.h"
#include "protocols/ids.h"

namespace seer {

struct FinishRecord {
  RequestId request;
  int64_t finished_us = 0;  // on the clock of started_us
  int64_t output_tokens = 0;
  int64_t preemptions = 0;       // KV dropped for lack of room
  int64_t migrations = 0;        // chunks started on another instance than the one before
  int64_t reprefill_tokens = 0;  // tokens whose KV was computed again
  bool failed = false;           // ended with an error, so its length is not learned
  bool aborted = false;          // cancelled; likewise
  SEER_FIELDS(FinishRecord, request, finished_us, output_tokens, preemptions, migrations, reprefill_tokens, failed, aborted)
};

struct RolloutStats {
  int64_t requests = 0;
  int64_t failed = 0;
  int64_t aborted = 0;
  int64_t output_tokens = 0;
  double wall_s = 0;  // from the start until the last request finished
  double tokens_per_s = 0;
  double tail_s = 0;  // wall_s minus the time when 90 % of the requests were done
  int64_t preemptions = 0;
  int64_t migrations = 0;
  int64_t reprefill_tokens = 0;
  double length_icc = 0;      // see LengthEstimator::length_icc()
  double estimate_error = 0;  // see LengthEstimator::estimate_error(), in the order of finishing
  SEER_FIELDS(RolloutStats, requests, failed, aborted, output_tokens, wall_s, tokens_per_s, tail_s, preemptions, migrations,
              reprefill_tokens, length_icc, estimate_error)
};

/// Records may come in any order; requests that finished at the same time count in the order of their ids.
RolloutStats rollout_stats(std::span<const FinishRecord> records, int64_t started_us);

}  // namespace seer
