// `seer status` and `seer drain`: a cluster seen and changed from outside.
#pragma once
#include <atomic>

#include "cli/config.h"

namespace seer {

/// Errors: the controller cannot be reached.
Status status_command(const StatusOptions& options, const std::atomic<bool>& stop);
/// Returns when the machine has left. Errors: it is not there; the controller cannot be reached.
Status drain_command(const DrainOptions& options, const std::atomic<bool>& stop);

}  // namespace seer
