// `seer rollout` and `seer score`: the user's side: files in and out, progress, the report. Used by seer.cpp.
#pragma once
#include <atomic>

#include "cli/config.h"
#include "protocols/result.h"

namespace seer {

/// Runs the rollout, or with `compare` several in turn on the same work. `stop`: set by Ctrl-C.
Status rollout_command(const RolloutOptions& options, const std::atomic<bool>& stop);

/// Log-probabilities of given responses, in one prefill each.
Status score_command(const ScoreOptions& options, const std::atomic<bool>& stop);

}  // namespace seer
