#include "cli/serve/served_machines.h"

#include <utility>

#include "actors/fleet.h"
#include "cli/cluster_machines.h"
#include "cli/cluster_net.h"
#include "cli/engine_source.h"
#include "cli/policy_auto.h"

namespace seer {
namespace {

/// The machines of this process.
class LocalMachines final : public ServedMachines {
 public:
  LocalMachines(const ServeOptions& options, const LoadedModel& loaded, const EventLog& log)
      : options_(options), loaded_(loaded), fleet_(system_, FleetLinks{}, log) {
    if (is_auto()) scheduler_.policy = kSeerPolicy;
  }
  Status start() {
    SEER_ASSIGN_OR_RETURN(NodeMakers makers, make_local_makers(options_, options_.nodes, loaded_, aside_));
    makers.make_engine = [this, make = makers.make_engine](InstanceId id) {
      auto engine = make(id);
      if (engine.ok()) weights_ = (*engine)->info().layout_hash;  // the same for all, also at a restart
      return engine;
    };
    return fleet_.start_nodes(fleet_config(options_, options_.nodes), std::make_shared<const NodeMakers>(std::move(makers)));
  }
  rt::system& system() override { return system_; }
  GatewayConfig gateway_config() const override {
    return {.rollout = {.scheduler = scheduler_, .instances_expected = static_cast<size_t>(options_.instances)},
            .version = WeightVersion{static_cast<uint64_t>(options_.weight_version)}};
  }
  uint64_t weights() const override { return weights_; }
  GatewayFleet gateway_fleet() override {
    GatewayFleet fleet{
        .start_rollout = [this](const RolloutConfig& c, const RolloutEvents& events) { return fleet_.start_rollout(c, {}, events); },
        .end_rollout = [this](RolloutId id) { fleet_.end_rollout(id); },
        .update_weights = [this](const NewWeights& weights, const WeightsSink& reply_to) { return fleet_.update_weights(weights, reply_to); },
        .nodes = [this] { return fleet_.nodes(); }};
    if (is_auto())
      fleet.choose_schedule = [this](std::vector<GroupSpec> like, std::function<void(GatewaySchedule)> then) {
        measuring_.put([this, like = std::move(like), then = std::move(then)] { then(measured(like)); });
      };
    return fleet;
  }

 private:
  bool is_auto() const { return options_.scheduler.policy == kAutoPolicy; }
  /// More requests like these will come than an instance can run at a time.
  GatewaySchedule measured(const std::vector<GroupSpec>& like) const {
    InstanceWork work = instance_work(like, options_);
    work.requests = work.rows_max;
    const auto choice = choose_policy(engine_source(options_, loaded_.model), work, options_, scheduler_);
    if (!choice.ok()) return {scheduler_, choice.error().detail};
    return {chosen(scheduler_, *choice), choice_text(*choice)};
  }

  const ServeOptions& options_;
  const LoadedModel& loaded_;
  ChunkSchedulerConfig scheduler_ = options_.scheduler;
  std::atomic<uint64_t> weights_{0};
  SlowWork aside_{{}, [](std::function<void()>& f) { f(); }};
  SeerConfig config_{kActorThreads};
  rt::system system_{config_};
  Fleet fleet_;
  SlowWork measuring_{{}, [](std::function<void()>& f) { f(); }};  // ends before the system, in which the gateway was
};

Result<std::unique_ptr<ServedMachines>> start_machines(const ServeOptions& options, const LoadedModel& loaded, const EventLog& log) {
  SEER_RETURN_IF_ERROR(check_sizes(options, loaded.model->config));
  auto machines = std::make_unique<LocalMachines>(options, loaded, log);
  SEER_RETURN_IF_ERROR(machines->start());
  return std::unique_ptr<ServedMachines>(std::move(machines));
}

/// Those of a cluster.
class JoinedMachines final : public ServedMachines {
 public:
  static constexpr size_t kSpareIds = 4;  // a rollout is opened for new weights and after some ten thousand responses

  JoinedMachines(const ServeOptions& options, std::unique_ptr<ClusterNet> net, std::unique_ptr<ClusterMachines> cluster)
      : scheduler_(options.scheduler), net_(std::move(net)), cluster_(std::move(cluster)) {
    if (scheduler_.policy == kAutoPolicy) scheduler_.policy = kSeerPolicy;  // they are not measured
  }
  rt::system& system() override { return net_->system(); }
  GatewayConfig gateway_config() const override {
    return {.rollout = {.scheduler = scheduler_, .instances_expected = cluster_->entered().instances}, .version = cluster_->entered().version};
  }
  uint64_t weights() const override { return cluster_->entered().weights; }
  GatewayFleet gateway_fleet() override {
    return {.start_rollout = [this](const RolloutConfig& c, const RolloutEvents& events) { return cluster_->start_rollout(c, {}, events); },
            .end_rollout = [this](RolloutId id) { cluster_->end_rollout(id); },
            .update_weights = [this](const NewWeights& weights, const WeightsSink& reply_to) { return cluster_->update_weights(weights, reply_to); },
            .weights_are = [this](const ClusterWeights& weights) { cluster_->weights_are(weights); },
            .next_rollout = [this] { return cluster_->take_id(); },
            .nodes = [this] { return cluster_->nodes(); }};
  }
  Status follow() override {
    cluster_->follow();
    return cluster_->status();
  }

 private:
  ChunkSchedulerConfig scheduler_;
  const std::unique_ptr<ClusterNet> net_;
  const std::unique_ptr<ClusterMachines> cluster_;
};

Result<std::unique_ptr<ServedMachines>> join_cluster(const ServeOptions& options, const std::shared_ptr<GatewayDoor>& door,
                                                     const EventLog& log, const std::atomic<bool>& stop) {
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<ClusterNet> net, ClusterNet::create(options.cluster_access));
  const auto node_left = [door](NodeId node) { door->put([node](GatewayActor& gateway) { gateway.lose_node(node); }); };
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<ClusterMachines> cluster,
                        ClusterMachines::enter(*net,
                                               {.address = options.cluster,
                                                .wait_s = options.controller_wait_s,
                                                .spare_ids = JoinedMachines::kSpareIds,
                                                .node_left = node_left},
                                               stop, log));
  auto machines = std::make_unique<JoinedMachines>(options, std::move(net), std::move(cluster));
  SEER_RETURN_IF_ERROR(machines->follow());  // it knows the machines that are there before the first request comes
  return std::unique_ptr<ServedMachines>(std::move(machines));
}

}  // namespace

Result<std::unique_ptr<ServedMachines>> ServedMachines::open(const ServeOptions& options, const LoadedModel& loaded,
                                                             const std::shared_ptr<GatewayDoor>& door, const EventLog& log,
                                                             const std::atomic<bool>& stop) {
  return options.cluster.empty() ? start_machines(options, loaded, log) : join_cluster(options, door, log, stop);
}

}  // namespace seer
