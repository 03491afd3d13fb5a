// Warnings before a rollout, about things that are not errors but that a user should know.
// Used by rollout_command.cpp only. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cli/config.h"
#include "cli/rollout_work.h"

namespace seer {

/// A sentence for each. `cores`: how many this process may use; 0: not known.
std::vector<std::string> run_warnings(const RolloutOptions& options, const RolloutWork& work, int64_t cores);

}  // namespace seer
