// seer simulate: rollout iterations in virtual time, policies side by side.
#pragma once
#include <atomic>

#include "cli/config.h"
#include "protocols/result.h"

namespace seer {

/// Runs every policy with every seed, prints the table, and writes the files asked for.
/// Errors: those of load_workload() and read_step_profile(), kInvalidArgument (options that do not fit
/// together), kCancelled if `stop` is set: then no file is written.
Status simulate_command(const SimulateOptions& options, const std::atomic<bool>& stop);

}  // namespace seer
