// RoutedMachines: servers that others run (SGLang, vLLM, Seer), on which `seer serve --engines` runs requests. They may be added,
// drained and removed at any time, through /workers.
#pragma once
#include <atomic>
#include <memory>

#include "cli/serve/served_machines.h"

namespace seer {

/// Waits a few seconds for the servers to answer; those that do not take part when they do. Errors: one sentence.
/// REQUIRES: all but `stop` outlive the machines.
Result<std::unique_ptr<ServedMachines>> route_to_servers(const ServeOptions& options, const LoadedModel& loaded,
                                                         const std::shared_ptr<GatewayDoor>& door, const EventLog& log,
                                                         const std::atomic<bool>& stop);

}  // namespace seer
