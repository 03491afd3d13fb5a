#include "cli/serve/routed_machines.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "actors/fleet.h"
#include "cli/serve/routed_servers.h"
#include "cli/server_fleet.h"
#include "gpu/model/model_config.h"

namespace seer {
namespace {

constexpr size_t kRouterThreads = 2;  // each server has an instance actor, which gets its tokens one by one

class RoutedMachines final : public ServedMachines, public RoutedServers {
 public:
  RoutedMachines(const ServeOptions& options, ServerFleetConfig config, const LoadedModel& loaded, std::shared_ptr<GatewayDoor> door, const EventLog& log)
      : version_(config.version),
        scheduler_(routed_scheduler(options.scheduler, options.router)),
        door_(std::move(door)),
        servers_(std::move(config), loaded.tokenizer, log),
        fleet_(system_, FleetLinks{}, log) {
    servers_.on_left([this](NodeId of) { left(of); });
  }
  ~RoutedMachines() override {
    for (const auto& [id, node] : fleet_.nodes()) rt::stop(node);
  }

  /// Before the gateway starts.
  Status start(const std::atomic<bool>& stop) {
    SEER_RETURN_IF_ERROR(servers_.open());
    return servers_.start(fleet_, system_, stop);
  }

  rt::system& system() override { return system_; }
  GatewayConfig gateway_config() const override { return {.rollout = routed_rollout({.scheduler = scheduler_}, servers_.options().engines.size()), .version = version_}; }
  int64_t instances_up() const override { return static_cast<int64_t>(servers_.up_count()); }
  int64_t instances_expected() const override {
    return std::ranges::count_if(servers_.all(), [](const auto& server) { return !server.second.is_draining; });
  }
  std::vector<std::string> server_ids() const override { return servers_.server_ids(); }
  uint64_t weights() const override { return servers_.weights(); }
  Result<NewWeights> offer_weights(const std::string& name, std::shared_ptr<const WeightMemory>) override {
    SEER_CHECK(false, name);
    return NewWeights{};
  }
  void withdraw_weights(const std::string& name) override { SEER_CHECK(false, name); }
  GatewayFleet gateway_fleet() override {
    return {.start_rollout =
                [this](RolloutConfig config, const RolloutEvents& events) {
                  config.instances_expected = std::max<size_t>(1, fleet_.nodes().size());  // those that are out say so
                  config.machines_may_join = true;
                  return fleet_.start_rollout(std::move(config), {}, events);
                },
            .end_rollout = [this](RolloutId id) { fleet_.end_rollout(id); },
            .update_weights = [this](const NewWeights& weights, const WeightsSink& reply_to) { return update_weights(weights, reply_to); },
            .weights_are = [this](const ClusterWeights& weights) { weights_are(weights); },
            .nodes = [this] { return fleet_.nodes(); }};
  }

  RoutedServers* servers() override { return this; }

  // ---- RoutedServers ---------------------------------------------------------------------------------------------------------------
  std::vector<RoutedServer> list() const override {
    std::vector<RoutedServer> all;
    for (const auto& [id, server] : servers_.all())
      all.push_back({worker_name(id), to_string(server.link.kind), url_of(server.link.address), server.state.engine, server.state.weights, server.is_up,
                     server.is_draining, server.state.is_deterministic, server.state.running, server.state.waiting, server.is_up ? "" : server.why_out, server.state.ranks});
    return all;
  }
  Result<std::string> add(const std::string& engine) override {
    SEER_ASSIGN_OR_RETURN(const ServerFleet::Noted noted, servers_.note(engine));
    if (noted.is_new)
      door_->put([this, id = noted.id](GatewayActor&) {
        const Status added = fleet_.add_node(id, servers_.spawn(system_, id, latest_));
        SEER_CHECK(added.ok(), id);  // ids are counted up
      });
    return worker_name(noted.id);
  }
  Status remove(const std::string& name) override {
    const std::optional<NodeId> id = servers_.find(name);
    if (!id) return fail(Code::kNotFound, "no worker ", name);
    servers_.drain(*id);
    door_->put([this, id = *id](GatewayActor&) {
      if (const NodeHandle node = fleet_.node(id)) rt::post(node, DrainNode{kDrainUs});
    });
    return {};
  }
  Result<StepProfile> profile(const std::string& name) const override {
    if (name.empty()) return servers_.profile({});
    const std::optional<NodeId> id = servers_.find(name);
    if (!id) return fail(Code::kNotFound, "no worker ", name);
    return servers_.profile(id);
  }
  std::string label_of(WeightVersion version) const override { return servers_.label_of(version); }
  void weights_move(WeightVersion from) override { servers_.weights_move(from); }
  void pass(const std::string& name, std::vector<HttpAsk> asks, std::function<void(Status)> then) override {
    const std::optional<NodeId> id = servers_.find(name);
    const std::shared_ptr<EngineServer> server = id ? servers_.server(*id) : nullptr;
    if (server == nullptr) return then(fail(Code::kNotFound, "no worker ", name));
    server->pass(std::move(asks), std::move(then));
  }

 private:
  /// On the thread of the server's actor.
  void left(NodeId id) {
    servers_.forget(id);
    door_->put([this, id](GatewayActor& gateway) {
      if (const NodeHandle node = fleet_.node(id)) {
        fleet_.lose_node({.node = id, .instances = {node_instance(id, 0)}, .reason = {}});
        rt::stop(node);
      }
      gateway.lose_node(id, true);
    });
  }

  // ---- on the gateway's thread -------------------------------------------------------------------------------------------------------
  /// Servers that are out get the weights when they are back.
  std::vector<NodeId> update_weights(const NewWeights& weights, const WeightsSink& reply_to) {
    std::vector<NodeId> asked;
    for (const auto& [id, node] : fleet_.nodes()) {
      if (!servers_.takes_part(id)) continue;
      rt::post(node, UpdateWeights{weights, reply_to});
      asked.push_back(id);
    }
    return asked;
  }
  void weights_are(const ClusterWeights& weights) {
    latest_ = weights.what;
    for (const auto& [id, node] : fleet_.nodes())
      if (std::ranges::find(weights.nodes, id) == weights.nodes.end()) rt::post(node, UpdateWeights{weights.what, WeightsSink{}});
  }

  const WeightVersion version_;
  const ChunkSchedulerConfig scheduler_;
  const std::shared_ptr<GatewayDoor> door_;
  NewWeights latest_;    // on the gateway's thread; version 0: the first ones
  ServerFleet servers_;  // outlives the actors
  SeerConfig config_{kRouterThreads};
  rt::system system_{config_};
  Fleet fleet_;
};

}  // namespace

Result<std::unique_ptr<ServedMachines>> route_to_servers(const ServeOptions& options, const LoadedModel& loaded,
                                                         const std::shared_ptr<GatewayDoor>& door, const EventLog& log,
                                                         const std::atomic<bool>& stop) {
  SEER_ASSIGN_OR_RETURN(const ModelConfig model, read_model_config(options.model));
  auto machines = std::make_unique<RoutedMachines>(options, server_fleet_config(options, options.router, model), loaded, door, log);
  SEER_RETURN_IF_ERROR(machines->start(stop));
  return std::unique_ptr<ServedMachines>(std::move(machines));
}

}  // namespace seer
