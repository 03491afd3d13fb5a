// `seer status` and `seer drain`: show and change a cluster from outside.
#pragma once
#include <atomic>

#include "cli/config.h"

namespace seer {

/// Errors: the controller cannot be reached.
Status status_command(const StatusOptions& options, const std::atomic<bool>& stop);
/// Returns when the machine has left. Errors: no such machine; the controller cannot be reached.
Status drain_command(const DrainOptions& options, const std::atomic<bool>& stop);

}  // namespace seer
