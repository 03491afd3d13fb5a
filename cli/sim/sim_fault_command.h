// seer simulate --faults: runs the workload on a small cluster that is short of memory, with the faults of actors/sim/sim_faults.h.
// Faults stop after the time that the work would take without them. The engines keep KV, so that a block in the wrong place is
// noticed; with "+sd" they verify drafts in which about a third of the tokens are wrong.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "cli/config.h"
#include "cli/sim/sim_rollout.h"
#include "protocols/result.h"

namespace seer {

inline constexpr int64_t kFaultRequests = 64;  // if --requests is not given

/// Runs every policy with this seed and prints a line for each. Errors: kCorrupt (a run failed; the sentence has seed, policy and
/// fault), kInvalidArgument (a request fits in no instance), kCancelled on `stop`.
Status run_fault_seed(const ClusterModel& cluster, const SimWork& work, const SimulateOptions& options,
                      const std::string& workload, uint64_t seed, const EventLog& log, const std::atomic<bool>& stop);

}  // namespace seer
