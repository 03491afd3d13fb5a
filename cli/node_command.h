// seer node: runs one machine of a cluster until it is stopped: instances with their drafts, and a KV pool. Without --join it is
// the controller too.
#pragma once
#include <atomic>

#include "cli/config.h"
#include "protocols/result.h"

namespace seer {

/// Prints a line with its address once it is in the cluster. Errors: those of the model and the parts; kUnavailable (the port is
/// taken, the controller cannot be reached or is gone); kInvalidArgument (the cluster refuses it); the node has given up.
Status node_command(const NodeOptions& options, const std::atomic<bool>& stop);

}  // namespace seer
