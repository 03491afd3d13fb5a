// ServedMachines: the machines on which `seer serve` runs requests: in this process, in a cluster, or servers of others. Used by serve_command.cpp.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "actors/gateway_actor.h"
#include "actors/log.h"
#include "cli/config.h"
#include "cli/machine_parts.h"
#include "gpu/model/weight_memory.h"
#include "protocols/result.h"
#include "served/server_dialect.h"

namespace seer {

class RoutedServers;

/// How long running requests may go on when the server shall end, or a machine shall leave.
inline constexpr int64_t kDrainUs = 60'000'000;

class ServedMachines {
 public:
  /// Starts machines in this process, enters the cluster, or connects to the servers. Errors: one sentence. REQUIRES: all but `stop` outlive them.
  static Result<std::unique_ptr<ServedMachines>> open(const ServeOptions& options, const LoadedModel& loaded,
                                                      const std::shared_ptr<GatewayDoor>& door, const EventLog& log,
                                                      const std::atomic<bool>& stop);
  virtual ~ServedMachines() = default;
  /// The gateway runs in it. It ends with the machines, after the gateway.
  virtual rt::system& system() = 0;
  virtual GatewayConfig gateway_config() const = 0;
  /// Instances of the machines that are there. Thread-safe, like the next.
  virtual int64_t instances_up() const = 0;
  /// Instances that there should be: also those of machines that were lost not long ago.
  virtual int64_t instances_expected() const = 0;
  /// Names of this process and of the servers that it passes requests on to (server_ids_of()). Thread-safe.
  virtual std::vector<std::string> server_ids() const { return {own_server_id()}; }
  /// Checksum of their weights at the start (ClusterIdentity).
  virtual uint64_t weights() const = 0;
  virtual GatewayFleet gateway_fleet() = 0;
  /// Keeps weights that were sent to this process for an update, under this name; the version is left to the caller. Thread-safe, like
  /// withdraw_weights(). May read all of them. Errors: kIo. REQUIRES: servers() is null; a server of others reads folders only.
  virtual Result<NewWeights> offer_weights(const std::string& name, std::shared_ptr<const WeightMemory> memory) = 0;
  /// The update is over. Memory that machines may still need is kept until they run with other weights.
  virtual void withdraw_weights(const std::string& name) = 0;
  /// Takes note of machines that have come and gone. An error: they cannot be used any more.
  virtual Status follow() { return {}; }
  /// Null: they are no servers of others.
  virtual RoutedServers* servers() { return nullptr; }
};

}  // namespace seer
