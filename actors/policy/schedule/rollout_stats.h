// RolloutStats: the figures of one rollout, computed from one record per finished request. rollout_actor uses it for its summary. Pure.
#pragma once
#include <cstdint>
#include <span>

#include "protocols/fields.h"
#include "protocols/ids.h"

namespace seer {

struct FinishRecord {
  RequestId request;
  int64_t finished_us = 0;
  int64_t output_tokens = 0;
  int64_t reprefill_tokens = 0;  // tokens whose KV was computed again
  bool failed = false;           // ended with an error, so its length is not learned
  bool aborted = false;          // cancelled; likewise
  SEER_FIELDS(FinishRecord, request, finished_us, output_tokens, reprefill_tokens, failed, aborted)
};

struct RolloutStats {
  int64_t requests = 0;
  int64_t failed = 0;
  int64_t aborted = 0;
  int64_t output_tokens = 0;
  double tail_s = 0;  // from when 90 % of the requests were done until the last one was
  int64_t reprefill_tokens = 0;
  double length_icc = 0;      // see LengthEstimator::length_icc()
  double estimate_error = 0;  // see LengthEstimator::estimate_error(), in the order of finishing
  SEER_FIELDS(RolloutStats, requests, failed, aborted, output_tokens, tail_s, reprefill_tokens, length_icc, estimate_error)
};

/// Records may come in any order; requests that finished at the same time count in the order of their ids.
RolloutStats rollout_stats(std::span<const FinishRecord> records);

}  // namespace seer
