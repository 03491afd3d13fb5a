// RolloutMachines: what a run of `seer rollout` runs on: instances within this process, the machines of a cluster, or servers of
// others; and the actor system from which it reaches them. Used by rollout_run. Single owner, not thread-safe.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/fleet.h"
#include "cli/cluster_machines.h"
#include "cli/cluster_net.h"
#include "cli/rollout_work.h"
#include "cli/server_fleet.h"
#include "cli/timeline.h"
#include "cli/watched_engine.h"
#include "gpu/step_profile.h"

namespace seer {

using LoadHistories = std::map<InstanceId, std::shared_ptr<LoadHistory>>;

class RolloutMachines {
 public:
  /// Starts them, or connects to them. Fills in the fields of `config` that they decide. Once `stop` is set, it no longer waits for
  /// others. REQUIRES: all but `config` outlive them.
  static Result<std::unique_ptr<RolloutMachines>> open(const RolloutOptions& options, const RolloutWork& work, const std::atomic<bool>& stop,
                                                       const EventLog& log, RolloutConfig& config);
  RolloutMachines(const RolloutMachines&) = delete;
  RolloutMachines& operator=(const RolloutMachines&) = delete;
  ~RolloutMachines();

  rt::system& system() { return net_ ? net_->system() : *local_system_; }
  KvDirectoryHandle directory() const { return fleet_ ? fleet_->directory() : cluster_->directory(); }
  RolloutHandle start_rollout(const RolloutConfig& config, RolloutTask task, const RolloutEvents& events);
  /// Takes in which machines of the cluster came and left. An error: the cluster is of no use any more.
  Status follow();

  /// Checksum of the weights, also of how they are computed with.
  uint64_t weights() const { return weights_; }
  /// What servers of others call their weights; empty: nothing, or the version.
  const std::string& weights_name() const { return weights_name_; }
  /// What steps of the servers of others cost; none: they are not of others.
  std::optional<Result<StepProfile>> learned() const;
  /// Of each instance, in order, up to wall_s seconds; empty unless options.html is set.
  std::vector<InstanceTimeline> timelines(double wall_s) const;

 private:
  explicit RolloutMachines(const RolloutOptions& options);
  Status start_here(const RolloutOptions& options, const RolloutWork& work, const EventLog& log);
  Status enter_cluster(const RolloutOptions& options, const RolloutWork& work, const std::atomic<bool>& stop, const EventLog& log, RolloutConfig& config);
  Status connect_servers(const RolloutOptions& options, const RolloutWork& work, const std::atomic<bool>& stop, const EventLog& log, RolloutConfig& config);

  uint64_t weights_ = 0;
  std::string weights_name_;
  // Each is used by those below it until they are destroyed.
  SlowWork aside_;
  LoadHistories histories_;
  std::optional<ServerFleet> servers_;
  SeerConfig config_{kActorThreads};
  std::optional<rt::system> local_system_;  // without a cluster: opens no port
  std::unique_ptr<ClusterNet> net_;
  std::optional<Fleet> fleet_;
  std::unique_ptr<ClusterMachines> cluster_;
};

}  // namespace seer
