// seer simulate: rollout iterations in virtual time, policies side by side.
#pragma once
#include <atomic>
#include <string>

#include "cli/config.h"
#include "protocols/result.h"

namespace seer {

/// "seer+sd" is seer with speculative decoding, and so for every policy.
inline const std::string kDraftingSuffix = "+sd";
inline bool drafts(const std::string& policy) { return policy.ends_with(kDraftingSuffix); }
inline std::string scheduling_of(const std::string& policy) {
  return policy.substr(0, policy.size() - (drafts(policy) ? kDraftingSuffix.size() : 0));
}

/// Runs every policy with every seed, prints the table, and writes the files asked for.
/// Errors: those of load_workload() and read_step_profile(), kInvalidArgument (what does not fit together), kCancelled
/// on `stop`: then no file is written.
Status simulate_command(const SimulateOptions& options, const std::atomic<bool>& stop);

}  // namespace seer
