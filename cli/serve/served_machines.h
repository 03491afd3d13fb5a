// ServedMachines: the machines on which `seer serve` runs requests, in this process or in a cluster. Used by serve_command.cpp.
#pragma once
#include <atomic>
#include <memory>

#include "actors/gateway_actor.h"
#include "actors/log.h"
#include "cli/config.h"
#include "cli/machine_parts.h"
#include "protocols/result.h"

namespace seer {

class ServedMachines {
 public:
  /// Starts machines in this process, or enters the cluster. Errors: one sentence. REQUIRES: all but `stop` outlive them.
  static Result<std::unique_ptr<ServedMachines>> open(const ServeOptions& options, const LoadedModel& loaded,
                                                      const std::shared_ptr<GatewayDoor>& door, const EventLog& log,
                                                      const std::atomic<bool>& stop);
  virtual ~ServedMachines() = default;
  /// The gateway runs in it. It ends with the machines, after the gateway.
  virtual rt::system& system() = 0;
  virtual GatewayConfig gateway_config() const = 0;
  /// Checksum of their weights at the start (ClusterIdentity).
  virtual uint64_t weights() const = 0;
  virtual GatewayFleet gateway_fleet() = 0;
  /// Takes note of machines that have come and gone. An error: they cannot be used any more.
  virtual Status follow() { return {}; }
};

}  // namespace seer
