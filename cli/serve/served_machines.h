// ServedMachines: where the requests of `seer serve` run: machines of this process, or of a cluster. Used by serve_command.cpp.
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
  /// Starts machines of this process, or comes into the cluster. Errors: one sentence. REQUIRES: all but `stop` outlive them.
  static Result<std::unique_ptr<ServedMachines>> open(const ServeOptions& options, const LoadedModel& loaded,
                                                      const std::shared_ptr<GatewayDoor>& door, const EventLog& log,
                                                      const std::atomic<bool>& stop);
  virtual ~ServedMachines() = default;
  /// That the gateway is spawned in. It ends with the machines, after the gateway.
  virtual rt::system& system() = 0;
  virtual GatewayConfig gateway_config() const = 0;
  virtual GatewayFleet gateway_fleet() = 0;
  /// Takes in which machines have come and gone. An error: they are of no use any more.
  virtual Status follow() { return {}; }
};

}  // namespace seer
