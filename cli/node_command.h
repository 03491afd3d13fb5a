// seer node: one machine of a cluster, until it is stopped: instances with their drafts, and a KV pool; the controller too where
// it joins no other one.
#pragma once
#include <atomic>

#include "cli/config.h"
#include "protocols/result.h"

namespace seer {

/// Prints a line with its address once it has come in. Errors: of the model and the parts; kUnavailable (the port is taken, the
/// controller cannot be reached or is gone); kInvalidArgument (the cluster refuses it); the node has given up.
Status node_command(const NodeOptions& options, const std::atomic<bool>& stop);

}  // namespace seer
