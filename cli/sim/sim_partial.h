// Partial rollout in virtual time, as in APRIL: an iteration issues over_issue times as many requests as it needs and stops when
// enough are finished; the others carry over to the next iteration. This baseline is NOT strictly synchronous: responses are
// made with the weights of several iterations, and short ones come first. Used by `seer simulate`, which marks it in every report.
//
// The model, in its steady state: kPartialIterations iterations run back to back, and the last one is reported.
//  - An iteration starts with the unfinished requests of the last one, and new groups up to over_issue x the workload's
//    requests: the workload's own groups first, then others drawn from the same lengths (a trace starts again).
//  - Weights changed, so requests that carry over have no KV; their prompt and response so far are prefilled. Each such
//    request is placed on its own, before the new groups; new groups are placed whole, as in verl.
//  - The iteration ends as soon as the workload's number of requests is finished; total_s is the time until then.
//  - output_tokens counts what goes to training: all tokens of the responses finished here, whichever iteration made them.
//    Tokens of an unfinished response count in the iteration that finishes it. tokens/s is output_tokens / total_s.
#pragma once
#include <atomic>
#include <cstdint>

#include "cli/sim/sim_policy.h"
#include "cli/sim/sim_rollout.h"
#include "cli/sim/workload.h"

namespace seer {

/// Number of iterations; the last is reported. In the first, nothing is carried over and only short responses finish: moonlight
/// (seed 1, over-issue 2) takes 786, 1 171, 1 079 and 1 119 s in the first four.
inline constexpr int64_t kPartialIterations = 3;

/// scheduler.policy places the requests; it must be that of sim_policy(kPartialPolicy). The caller fills in `run.workload` and
/// `seed`. `stop`: as in SimWork. Errors: those of simulate_rollout(). REQUIRES: over_issue >= 1.
Result<SimRun> simulate_partial(const ClusterModel& cluster, const Workload& workload, uint64_t seed, double over_issue,
                                const ChunkSchedulerConfig& scheduler,
                                const std::optional<SimDrafting>& drafting = {}, const EventLog& log = {},
                                const std::atomic<bool>* stop = nullptr);

}  // namespace seer
