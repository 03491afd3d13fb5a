// Partial rollout in virtual time, as APRIL does it: an iteration issues over_issue times the requests that it needs and
// is stopped when as many as it needs are finished; the others carry over to the next iteration. A baseline that is NOT
// strictly synchronous: responses are made with the weights of several iterations, and short ones come first. Used by
// `seer simulate`, which marks it in every report.
//
// The model, in its steady state: kPartialIterations iterations run back to back, and the last one is reported.
//  - An iteration starts with what the one before left unfinished, and new groups up to over_issue x the workload's
//    requests: the workload's own groups first, then others drawn from the same lengths (a trace begins anew).
//  - Weights changed, so the KV of what carries over is gone: it is prefilled, prompt and response so far. Each such
//    request is dealt for itself, ahead of the new groups; new groups are dealt whole, as verl does.
//  - The iteration ends as soon as the workload's number of requests is finished; total_s is the time until then.
//  - output_tokens are those of the finished responses, whichever iteration made them, and tokens/s is that by total_s:
//    what goes to training. What is generated for unfinished responses counts in the iteration that finishes them.
#pragma once
#include <cstdint>

#include "cli/sim/sim_policy.h"
#include "cli/sim/sim_rollout.h"
#include "cli/sim/workload.h"

namespace seer {

/// Of which the last is reported. The first has nothing to carry over, and finishes short responses only: moonlight
/// (seed 1, over-issue 2) takes 786, 1 171, 1 079 and 1 119 s in the first four.
inline constexpr int64_t kPartialIterations = 3;

/// Requests are placed by scheduler.policy, that of sim_policy(kPartialPolicy). `run.workload` and `seed` are the caller's to fill. Errors: as of simulate_rollout(). REQUIRES: over_issue >= 1.
Result<SimRun> simulate_partial(const ClusterModel& cluster, const Workload& workload, uint64_t seed, double over_issue,
                                const ChunkSchedulerConfig& scheduler,
                                const std::optional<SimDrafting>& drafting = {}, const EventLog& log = {});

}  // namespace seer
