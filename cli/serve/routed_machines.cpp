#include "cli/serve/routed_machines.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <utility>

#include "actors/fleet.h"
#include "actors/server_node_actor.h"
#include "cli/policy_auto.h"
#include "cli/serve/routed_servers.h"
#include "gpu/model/model_config.h"
#include "served/http_server_link.h"

namespace seer {
namespace {

constexpr size_t kActorThreads = 2;
constexpr uint32_t kServersMax = 1024;
constexpr int64_t kAnswerUs = 5'000'000;        // to wait at the start for the servers
constexpr int64_t kNoServerUs = 600'000'000;    // requests wait this long for a server to come back
constexpr int64_t kTurnTokens = 512;            // where a chunk goes on with the stream of the one before it
constexpr int64_t kDrainUs = 60'000'000;
constexpr int32_t kFruitlessMax = 16;           // a request that has failed so often without a token is answered with the error
const WeightVersion kNoVersion{};

Result<std::string> first_line(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return fail(Code::kNotFound, "--engine-token-file ", path, ": cannot be read");
  while (line.ends_with('\r') || line.ends_with(' ')) line.pop_back();
  return line;
}

class RoutedMachines final : public ServedMachines, public RoutedServers {
 public:
  RoutedMachines(const ServeOptions& options, const LoadedModel& loaded, ModelConfig model, std::string token,
                 std::shared_ptr<GatewayDoor> door, const EventLog& log)
      : options_(options), loaded_(loaded), model_(std::move(model)), token_(std::move(token)), door_(std::move(door)), log_(log), fleet_(system_, FleetLinks{}, log) {
    if (scheduler_.policy == kAutoPolicy) scheduler_.policy = kSeerPlusPolicy;  // the servers are not measured
    scheduler_.learns_speeds = true;
    if (options_.engine_stream_tokens > 0) scheduler_.turn_tokens = kTurnTokens;
  }

  /// Before the gateway starts.
  Status start(const std::atomic<bool>& stop) {
    for (const std::string& engine : options_.engines) {
      SEER_ASSIGN_OR_RETURN(const ServerLinkConfig link, parse_engine(engine));
      const std::lock_guard lock(mutex_);
      if (find(link)) return fail(Code::kInvalidArgument, "--engines names ", url_of(link), " twice");
      const NodeId id = *note(link);
      SEER_RETURN_IF_ERROR(fleet_.add_node(id, spawn(link, id)));
    }
    const auto all_known = [&] { return stop.load() || std::ranges::all_of(known_, [](const auto& server) { return server.second.has_answered; }); };
    std::unique_lock lock(mutex_);
    answered_.wait_for(lock, std::chrono::microseconds(kAnswerUs), all_known);
    return {};
  }

  rt::system& system() override { return system_; }
  GatewayConfig gateway_config() const override {
    return {.rollout = {.scheduler = scheduler_, .instances_expected = options_.engines.size(), .no_instance_us = kNoServerUs, .fruitless_max = kFruitlessMax},
            .version = first_version()};
  }
  uint64_t weights() const override {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, server] : known_)
      if (server.is_up) return weights_hash(server.state.weights);
    return 0;
  }
  NewWeights offer_weights(const std::string& name, std::shared_ptr<const WeightMemory>, uint32_t) override {
    SEER_CHECK(false, name);
    return {};
  }
  void withdraw_weights(const std::string& name) override { SEER_CHECK(false, name); }
  GatewayFleet gateway_fleet() override {
    return {.start_rollout =
                [this](RolloutConfig config, const RolloutEvents& events) {
                  config.instances_expected = std::max<size_t>(1, up_count());
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
    const std::lock_guard lock(mutex_);
    std::vector<RoutedServer> all;
    for (const auto& [id, server] : known_)
      all.push_back({cat("worker-", id), to_string(server.link.kind), url_of(server.link), server.state.engine, server.state.weights, server.is_up,
                     server.is_draining, server.state.is_deterministic, server.state.running, server.state.waiting});
    return all;
  }
  Result<std::string> add(const std::string& engine) override {
    SEER_ASSIGN_OR_RETURN(const ServerLinkConfig link, parse_engine(engine));
    const std::lock_guard lock(mutex_);
    if (const auto there = find(link)) return cat("worker-", *there);
    const std::optional<NodeId> id = note(link);
    if (!id) return fail(Code::kFull, "there were ", kServersMax, " servers, which is the limit");
    door_->put([this, id = *id, link](GatewayActor&) {
      const Status added = fleet_.add_node(id, spawn(link, id));
      SEER_CHECK(added.ok(), id);  // ids are counted up
    });
    return cat("worker-", *id);
  }
  Status remove(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    const auto server = std::ranges::find_if(known_, [&](const auto& known) { return cat("worker-", known.first) == name || url_of(known.second.link) == name; });
    if (server == known_.end()) return fail(Code::kNotFound, "no worker ", name);
    server->second.is_draining = true;
    door_->put([this, id = server->first](GatewayActor&) {
      if (const NodeHandle node = fleet_.node(id)) rt::post(node, DrainNode{kDrainUs});
    });
    return {};
  }

 private:
  struct Known {
    ServerLinkConfig link;
    ServerState state = {};
    bool is_up = false, is_draining = false;
    bool has_answered = false;  // or has failed to
  };

  static std::string url_of(const ServerLinkConfig& link) { return cat("http://", link.address.host, ":", link.address.port); }
  WeightVersion first_version() const { return WeightVersion{static_cast<uint64_t>(options_.weight_version)}; }
  size_t up_count() const {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::ranges::count_if(known_, [](const auto& server) { return server.second.is_up && !server.second.is_draining; }));
  }
  /// REQUIRES: the mutex is held.
  std::optional<NodeId> find(const ServerLinkConfig& link) const {
    for (const auto& [id, server] : known_)
      if (url_of(server.link) == url_of(link) && !server.is_draining) return id;
    return std::nullopt;
  }
  /// REQUIRES: the mutex is held.
  std::optional<NodeId> note(const ServerLinkConfig& link) {
    if (next_id_ >= kServersMax) return std::nullopt;
    const NodeId id{next_id_++};
    known_[id] = {.link = link};
    return id;
  }

  NodeHandle spawn(ServerLinkConfig link, NodeId id) {
    link.address.token = token_;
    link.silence_us = options_.engine_silence_s * 1'000'000;
    ServerNodeConfig config;
    config.node = id;
    config.instance.stop = {model_.eos_ids, model_.context_tokens_max};
    config.instance.rid_prefix = cat("seer.", nonce_, ".");
    config.instance.stream_tokens = options_.engine_stream_tokens;
    config.model = model_name(options_.model);
    config.kv_node = options_.shared_kv ? NodeId{0} : id;
    config.rows_max = options_.engine_rows;
    config.version = first_version();
    config.target = latest_;
    ServerNodeEvents events{.changed = [this](NodeId of, bool is_up) { changed(of, is_up); },
                            .left = [this](NodeId of) { left(of); },
                            .seen = [this](NodeId of, const ServerState& state) { seen(of, state); }};
    return rt::spawn<ServerNodeActor>(system_, std::move(config),
                                      ServerNodeParts{connect_server(std::move(link), http_), loaded_.tokenizer, std::move(events), log_});
  }

  // ---- events of the servers' actors, on their threads -------------------------------------------------------------------------------
  void changed(NodeId id, bool is_up) {
    const std::lock_guard lock(mutex_);
    const auto server = known_.find(id);
    if (server == known_.end()) return;
    server->second.is_up = is_up;
    server->second.has_answered = true;
    answered_.notify_all();
  }
  void seen(NodeId id, const ServerState& state) {
    const std::lock_guard lock(mutex_);
    if (const auto server = known_.find(id); server != known_.end()) server->second.state = state;
  }
  void left(NodeId id) {
    {
      const std::lock_guard lock(mutex_);
      known_.erase(id);
    }
    door_->put([this, id](GatewayActor& gateway) {
      if (const NodeHandle node = fleet_.node(id)) {
        fleet_.lose_node({.node = id, .instances = {node_instance(id, 0)}, .reason = {}});
        rt::stop(node);
      }
      gateway.lose_node(id);
    });
  }

  // ---- on the gateway's thread -------------------------------------------------------------------------------------------------------
  /// Servers that are out get the weights when they are back.
  std::vector<NodeId> update_weights(const NewWeights& weights, const WeightsSink& reply_to) {
    std::vector<NodeId> asked;
    const std::lock_guard lock(mutex_);
    for (const auto& [id, node] : fleet_.nodes()) {
      const auto server = known_.find(id);
      if (server == known_.end() || !server->second.is_up || server->second.is_draining) continue;
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

  const ServeOptions& options_;
  const LoadedModel& loaded_;
  const ModelConfig model_;
  const std::string token_;
  const std::shared_ptr<GatewayDoor> door_;
  const EventLog log_;
  const uint64_t nonce_ = std::random_device{}();  // so that no other router's requests have the same names
  ChunkSchedulerConfig scheduler_ = options_.scheduler;
  mutable std::mutex mutex_;  // guards known_ and next_id_
  std::condition_variable answered_;
  std::map<NodeId, Known> known_;
  uint32_t next_id_ = 0;
  NewWeights latest_;  // on the gateway's thread; version 0: the first ones
  HttpClient http_;    // outlives the actors
  SeerConfig config_{kActorThreads};
  rt::system system_{config_};
  Fleet fleet_;
};

}  // namespace

Result<std::unique_ptr<ServedMachines>> route_to_servers(const ServeOptions& options, const LoadedModel& loaded,
                                                         const std::shared_ptr<GatewayDoor>& door, const EventLog& log,
                                                         const std::atomic<bool>& stop) {
  SEER_ASSIGN_OR_RETURN(ModelConfig model, read_model_config(options.model));
  SEER_ASSIGN_OR_RETURN(std::string token, first_line(options.engine_token_file));
  auto machines = std::make_unique<RoutedMachines>(options, loaded, std::move(model), std::move(token), door, log);
  SEER_RETURN_IF_ERROR(machines->start(stop));
  return std::unique_ptr<ServedMachines>(std::move(machines));
}

}  // namespace seer
