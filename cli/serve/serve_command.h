// `seer serve`: the front door. One process with all machines, behind an HTTP server.
#pragma once
#include <atomic>

#include "cli/config.h"
#include "protocols/result.h"

namespace seer {

/// Serves until `stop` is set, then lets the requests that run end. Prints one line with the address once it answers.
Status serve_command(const ServeOptions& options, const std::atomic<bool>& stop);

}  // namespace seer
