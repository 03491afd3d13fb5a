#include "cli/serve/served_machines.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "actors/fleet.h"
#include "actors/weight_source_actor.h"
#include "cli/cluster_machines.h"
#include "cli/cluster_net.h"
#include "cli/engine_source.h"
#include "cli/policy_auto.h"
#include "cli/serve/routed_machines.h"

namespace seer {
namespace {

/// The machines of this process.
class LocalMachines final : public ServedMachines {
 public:
  LocalMachines(const ServeOptions& options, const LoadedModel& loaded, const std::shared_ptr<GatewayDoor>& door, const EventLog& log)
      : options_(options), loaded_(loaded), door_(door), log_(log), fleet_(system_, FleetLinks{}, log), ends_(system_) {
    if (scheduler_.policy == kAutoPolicy) scheduler_.policy = kSeerPolicy;  // until it has chosen
  }
  Status start() {
    if (is_measured(options_.scheduler)) measure();  // before the first request: none waits for it
    SEER_ASSIGN_OR_RETURN(NodeMakers makers, make_local_makers(options_, options_.nodes, loaded_, aside_));
    makers.make_engine = [this, make = makers.make_engine](InstanceId id) {
      auto engine = make(id);
      if (engine.ok()) weights_ = (*engine)->info().kv_hash;  // the same for all, also at a restart
      return engine;
    };
    SEER_RETURN_IF_ERROR(fleet_.start_nodes(fleet_config(options_, options_.nodes), std::make_shared<const NodeMakers>(std::move(makers))));
    nodes_ = fleet_.nodes();
    for (const auto& [id, node] : nodes_) ends_.monitor(node);
    return {};
  }
  rt::system& system() override { return system_; }
  GatewayConfig gateway_config() const override {
    return {.rollout = {.scheduler = scheduler_, .instances_expected = static_cast<size_t>(options_.instances)},
            .version = WeightVersion{static_cast<uint64_t>(options_.weight_version)},
            .weights = weights_};
  }
  int64_t instances_up() const override { return options_.instances; }
  int64_t instances_expected() const override { return options_.instances; }
  uint64_t weights() const override { return weights_; }
  GatewayFleet gateway_fleet() override {
    GatewayFleet fleet{
        .start_rollout = [this](const RolloutConfig& c, const RolloutEvents& events) { return start_rollout(c, events); },
        .end_rollout = [this](RolloutId id) { fleet_.end_rollout(id); },
        .update_weights = [this](const NewWeights& weights, const WeightsSink& reply_to) { return fleet_.update_weights(weights, reply_to); },
        .nodes = [this] { return fleet_.nodes(); }};
    if (is_measured(options_.scheduler))
      fleet.choose_schedule = [this](const std::vector<GroupSpec>& like, const std::function<void(GatewaySchedule)>& then) { then(schedule_for(like)); };
    return fleet;
  }
  Result<NewWeights> offer_weights(const std::string& name, std::shared_ptr<const WeightMemory> memory) override {
    loaded_.loader->offer(name, std::move(memory));
    return NewWeights{.version = {}, .folder = name};
  }
  void withdraw_weights(const std::string& name) override { loaded_.loader->withdraw(name); }
  Status follow() override {
    bool has_message = true;
    while (has_message) has_message = ends_.receive(0, [&](const rt::down& message) { last_end_ = lose_node(message); });
    return nodes_.empty() ? Status(fail(Code::kUnavailable, last_end_)) : Status();
  }

 private:
  /// Waits for the instances of the nodes that are there.
  RolloutHandle start_rollout(RolloutConfig config, const RolloutEvents& events) {
    config.instances_expected = 0;
    for (const auto& [id, node] : fleet_.nodes()) config.instances_expected += node_config(fleet_config(options_, options_.nodes), id).instances.size();
    return fleet_.start_rollout(std::move(config), {}, events);
  }
  /// Returns the reason that it gave. The rollouts have heard of it.
  std::string lose_node(const rt::down& message) {
    const auto gone = std::ranges::find_if(nodes_, [&](const auto& node) { return rt::is_source(message, node.second); });
    if (gone == nodes_.end()) return {};
    const NodeId id = gone->first;
    nodes_.erase(gone);
    door_->put([this, id](GatewayActor& gateway) {  // which uses the fleet
      fleet_.remove_node(id);
      gateway.lose_node(id);
    });
    return rt::reason_text(message, cat("node ", id, " is gone"));
  }
  void measure() {
    auto steps = measure_decode_steps(engine_source(options_, loaded_.model()), options_);
    if (steps.ok()) step_us_ = *std::move(steps);
    else log_.warn(rt::now_us(&system_), "steps_not_measured", {{"error", steps.error().detail}});
  }
  /// More requests like these will come than an instance can run at a time.
  GatewaySchedule schedule_for(const std::vector<GroupSpec>& like) const {
    if (!step_us_) return {scheduler_, "steps could not be measured"};
    InstanceWork work = instance_work(like, options_);
    work.requests = work.rows_max;
    const PolicyChoice choice = choose_policy(step_us_, engine_source(options_, loaded_.model()), work, options_, scheduler_);
    return {chosen(options_.scheduler, choice), choice_text(options_.scheduler, choice)};
  }

  const ServeOptions& options_;
  const LoadedModel& loaded_;
  const std::shared_ptr<GatewayDoor> door_;
  const EventLog log_;
  ChunkSchedulerConfig scheduler_ = options_.scheduler;
  DecodeStepUs step_us_;
  std::atomic<uint64_t> weights_{0};
  SlowWork aside_{{}, [](std::function<void()>& f) { f(); }};
  SeerConfig config_{kActorThreads};
  rt::system system_{config_};
  Fleet fleet_;
  std::map<NodeId, NodeHandle> nodes_;  // of the fleet, but for those that have ended
  rt::Inbox<> ends_;                    // hears of that
  std::string last_end_;                // the reason of the last one
};

Result<std::unique_ptr<ServedMachines>> start_machines(const ServeOptions& options, const LoadedModel& loaded,
                                                       const std::shared_ptr<GatewayDoor>& door, const EventLog& log) {
  SEER_RETURN_IF_ERROR(check_sizes(options, loaded.model()->config));
  auto machines = std::make_unique<LocalMachines>(options, loaded, door, log);
  SEER_RETURN_IF_ERROR(machines->start());
  return std::unique_ptr<ServedMachines>(std::move(machines));
}

/// The machines of a cluster.
class JoinedMachines final : public ServedMachines {
 public:
  static constexpr size_t kSpareIds = 4;  // a rollout is opened for new weights, after some ten thousand responses, and after a pause
  static constexpr int64_t kIdleUs = 5'000'000;

  JoinedMachines(const ServeOptions& options, std::unique_ptr<ClusterNet> net, std::unique_ptr<ClusterMachines> cluster)
      : scheduler_(options.scheduler), net_(std::move(net)), cluster_(std::move(cluster)) {
    if (scheduler_.policy == kAutoPolicy) scheduler_.policy = kSeerPolicy;  // they are not measured
  }
  ~JoinedMachines() override {
    for (const auto& [name, source] : sources_) rt::stop(source);
  }
  rt::system& system() override { return net_->system(); }
  GatewayConfig gateway_config() const override {
    return {.rollout = {.scheduler = scheduler_, .instances_expected = cluster_->entered().instances},
            .version = cluster_->entered().version,
            .weights = cluster_->entered().weights,
            .idle_us = kIdleUs};
  }
  int64_t instances_up() const override { return cluster_->instances_up(); }
  int64_t instances_expected() const override { return cluster_->instances_expected(); }
  uint64_t weights() const override { return cluster_->entered().weights; }
  GatewayFleet gateway_fleet() override {
    return {.start_rollout = [this](const RolloutConfig& c, const RolloutEvents& events) { return cluster_->start_rollout(c, {}, events); },
            .end_rollout = [this](RolloutId id) { cluster_->end_rollout(id); },
            .update_weights = [this](const NewWeights& weights, const WeightsSink& reply_to) { return cluster_->update_weights(weights, reply_to); },
            .weights_are = [this](const ClusterWeights& weights) { weights_are(weights); },
            .changed_late = [this](const WeightsUpdated& answer) { cluster_->changed_late(answer); },
            .next_rollout = [this] { return cluster_->take_id(); },
            .nodes = [this] { return cluster_->nodes(); }};
  }
  Result<NewWeights> offer_weights(const std::string& name, std::shared_ptr<const WeightMemory> memory) override {
    SEER_ASSIGN_OR_RETURN(const uint32_t crc, memory->crc());
    const uint64_t bytes = memory->bytes();
    const std::lock_guard lock(mutex_);
    const auto source = rt::spawn<WeightSourceActor>(net_->system(), std::move(memory));
    sources_[name] = source;
    return NewWeights{.version = {}, .folder = name, .source = source, .bytes = bytes, .crc = crc};
  }
  void withdraw_weights(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    if (name != running_) forget(name);
  }
  Status follow() override {
    cluster_->follow();
    return cluster_->status();
  }

 private:
  /// Machines that come later read them too.
  void weights_are(const ClusterWeights& weights) {
    cluster_->weights_are(weights);
    const std::lock_guard lock(mutex_);
    const auto source = sources_.find(weights.what.folder);
    const bool is_here = source != sources_.end() && source->second == weights.what.source;
    forget(std::exchange(running_, is_here ? weights.what.folder : ""));
  }
  void forget(const std::string& name) {
    const auto source = sources_.find(name);
    if (source == sources_.end()) return;
    rt::stop(source->second);
    sources_.erase(source);
  }

  ChunkSchedulerConfig scheduler_;
  const std::unique_ptr<ClusterNet> net_;
  const std::unique_ptr<ClusterMachines> cluster_;
  std::mutex mutex_;  // guards the next two
  std::map<std::string, WeightSourceHandle> sources_;
  std::string running_;  // the name of those that machines run with, if they have a source here
};

Result<std::unique_ptr<ServedMachines>> join_cluster(const ServeOptions& options, const LoadedModel& loaded, const std::shared_ptr<GatewayDoor>& door,
                                                     const EventLog& log, const std::atomic<bool>& stop) {
  SEER_ASSIGN_OR_RETURN(const ModelConfig model, read_model_config(options.model));
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<ClusterNet> net, ClusterNet::create(options.cluster_access, log));
  const auto node_left = [door](NodeId node, bool in_order) { door->put([=](GatewayActor& gateway) { gateway.lose_node(node, in_order); }); };
  const auto weights_changed = [door](const ClusterWeights& weights) {
    door->put([weights](GatewayActor& gateway) { gateway.follow_weights(weights); });
  };
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<ClusterMachines> cluster,
                        ClusterMachines::enter(*net,
                                               {.address = options.cluster,
                                                .model = model_identity(options.model, model, loaded.tokenizer.get()),
                                                .wait_s = options.controller_wait_s,
                                                .spare_ids = JoinedMachines::kSpareIds,
                                                .node_left = node_left,
                                                .weights_changed = weights_changed},
                                               stop, log));
  auto machines = std::make_unique<JoinedMachines>(options, std::move(net), std::move(cluster));
  SEER_RETURN_IF_ERROR(machines->follow());  // it knows the machines that are there and answer before the first request comes
  return std::unique_ptr<ServedMachines>(std::move(machines));
}

}  // namespace

Result<std::unique_ptr<ServedMachines>> ServedMachines::open(const ServeOptions& options, const LoadedModel& loaded,
                                                             const std::shared_ptr<GatewayDoor>& door, const EventLog& log,
                                                             const std::atomic<bool>& stop) {
  if (!options.router.engines.empty()) return route_to_servers(options, loaded, door, log, stop);
  return options.cluster.empty() ? start_machines(options, loaded, door, log) : join_cluster(options, loaded, door, log, stop);
}

}  // namespace seer
