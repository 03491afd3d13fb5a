#include "cli/server_fleet.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "actors/policy/schedule/policy_choice.h"
#include "cli/json_lines.h"
#include "served/server_dialect.h"

namespace seer {
namespace {

constexpr uint32_t kServersMax = 1024;
constexpr int64_t kAnswerUs = 5'000'000;      // to wait at the start for the servers
constexpr int64_t kNoServerUs = 600'000'000;  // requests wait this long for a server to come back
constexpr int64_t kTurnTokens = 512;          // where a chunk goes on with the stream of the one before it
constexpr int32_t kFruitlessMax = 16;         // a request that has failed so often without a token is answered with the error

}  // namespace

ServerFleetConfig server_fleet_config(const MachineOptions& options, const RouterOptions& router, const ModelConfig& model) {
  return {.router = router,
          .model = model_name(options.model),
          .stop = {model.eos_ids, model.context_tokens_max},
          .version = WeightVersion{static_cast<uint64_t>(options.weight_version)}};
}

std::string worker_name(NodeId id) { return cat("worker-", id); }

ChunkSchedulerConfig routed_scheduler(ChunkSchedulerConfig scheduler, const RouterOptions& router) {
  if (scheduler.policy == kAutoPolicy) scheduler.policy = kSeerPlusPolicy;  // the servers are not measured
  scheduler.learns_speeds = true;
  if (router.stream_tokens > 0) scheduler.turn_tokens = kTurnTokens;
  return scheduler;
}

RolloutConfig routed_rollout(RolloutConfig config, size_t servers) {
  config.instances_expected = servers;
  config.no_instance_us = kNoServerUs;
  config.fruitless_max = kFruitlessMax;
  return config;
}

ServerFleet::ServerFleet(ServerFleetConfig config, std::shared_ptr<const Tokenizer> tokenizer, EventLog log)
    : config_(std::move(config)), tokenizer_(std::move(tokenizer)), log_(std::move(log)), nonce_(std::random_device{}()) {}

Status ServerFleet::open() {
  SEER_ASSIGN_OR_RETURN(token_, read_engine_token(config_.router));
  if (config_.router.ca.empty()) return {};
  const Status trusted = http_.trust_only(config_.router.ca);
  return trusted.ok() ? Status{} : Status{fail(Code::kInvalidArgument, "--engine-ca ", trusted.error().detail)};
}

Status ServerFleet::start(Fleet& fleet, rt::system& system, const std::atomic<bool>& stop) {
  for (const std::string& engine : config_.router.engines) {
    SEER_ASSIGN_OR_RETURN(const Noted noted, note(engine));
    if (!noted.is_new) return fail(Code::kInvalidArgument, "--engines names ", engine, " twice");
    SEER_RETURN_IF_ERROR(fleet.add_node(noted.id, spawn(system, noted.id, {})));
  }
  const auto all_known = [&] { return stop.load() || std::ranges::all_of(known_, [](const auto& server) { return server.second.has_answered; }); };
  std::unique_lock lock(mutex_);
  answered_.wait_for(lock, std::chrono::microseconds(kAnswerUs), all_known);
  return {};
}

Result<ServerFleet::Noted> ServerFleet::note(const std::string& engine) {
  SEER_ASSIGN_OR_RETURN(const ServerLinkConfig link, server_of(engine, config_.router));
  const std::lock_guard lock(mutex_);
  for (const auto& [id, server] : known_)
    if (url_of(server.link.address) == url_of(link.address) && !server.is_draining) return Noted{id, false};
  if (known_.size() >= kServersMax) return fail(Code::kFull, "there are ", kServersMax, " servers, which is the limit");
  const NodeId id{next_id_++};
  known_[id] = {.link = link};
  return Noted{id, true};
}

NodeHandle ServerFleet::spawn(rt::system& system, NodeId id, const NewWeights& target) {
  ServerLinkConfig link;
  std::shared_ptr<StepLog> steps;
  {
    const std::lock_guard lock(mutex_);
    link = known_.at(id).link;
    steps = known_.at(id).steps;
  }
  link.address.token = token_;
  const std::shared_ptr<EngineServer> server = watch_server(connect_server(std::move(link), http_), std::move(steps));
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = known_.find(id); known != known_.end()) known->second.server = server;
  }
  ServerNodeConfig node;
  node.node = id;
  node.instance.stop = config_.stop;
  node.instance.rid_prefix = cat("seer.", nonce_, ".");
  node.instance.label_suffix = label_suffix();
  node.instance.stream_tokens = config_.router.stream_tokens;
  node.model = config_.model;
  node.kv_node = config_.router.shared_kv ? NodeId{0} : id;
  node.rows_max = config_.router.rows;
  node.version = config_.version;
  node.target = target;
  node.first_weights = first_weights_;
  node.moving = moving_;
  ServerNodeEvents events{.changed = [this](NodeId of, bool is_up, const std::string& why) { changed(of, is_up, why); },
                          .left = [this](NodeId of) { left_(of); },
                          .seen = [this](NodeId of, const ServerState& state) { seen(of, state); }};
  return rt::spawn<ServerNodeActor>(system, std::move(node), ServerNodeParts{server, tokenizer_, std::move(events), log_});
}

std::optional<NodeId> ServerFleet::find(const std::string& name_or_url) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, server] : known_)
    if (worker_name(id) == name_or_url || (!server.is_draining && url_of(server.link.address) == name_or_url)) return id;
  return std::nullopt;
}

void ServerFleet::drain(NodeId id) {
  const std::lock_guard lock(mutex_);
  if (const auto server = known_.find(id); server != known_.end()) server->second.is_draining = true;
}

void ServerFleet::forget(NodeId id) {
  const std::lock_guard lock(mutex_);
  if (const auto known = known_.extract(id)) http_.forget(known.mapped().link.address);
}

std::map<NodeId, KnownServer> ServerFleet::all() const {
  const std::lock_guard lock(mutex_);
  return known_;
}

std::shared_ptr<EngineServer> ServerFleet::server(NodeId id) const {
  const std::lock_guard lock(mutex_);
  const auto known = known_.find(id);
  return known == known_.end() ? nullptr : known->second.server;
}

bool ServerFleet::takes_part(NodeId id) const {
  const std::lock_guard lock(mutex_);
  const auto server = known_.find(id);
  return server != known_.end() && server->second.is_up && !server->second.is_draining;
}

size_t ServerFleet::up_count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::ranges::count_if(known_, [](const auto& server) { return server.second.is_up && !server.second.is_draining; }));
}

std::vector<std::string> ServerFleet::server_ids() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> ids{own_server_id()};
  for (const auto& [id, server] : known_)
    if (server.is_up) ids.insert(ids.end(), server.state.server_ids.begin(), server.state.server_ids.end());
  ids.resize(std::min(ids.size(), kServerIdsMax));
  return ids;
}

uint64_t ServerFleet::weights() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, server] : known_)
    if (server.is_up) return label_hash(server.state.weights);
  return 0;
}

Result<std::string> ServerFleet::weights_label() const {
  const std::lock_guard lock(mutex_);
  const KnownServer* first = nullptr;
  for (const auto& [id, server] : known_) {
    if (server.state.weights.empty()) continue;
    if (first == nullptr) first = &server;
    if (server.state.weights != first->state.weights)
      return fail(Code::kInvalidArgument, "--engines: ", url_of(first->link.address), " has weights ", json_string(first->state.weights), ", and ",
                  url_of(server.link.address), " has ", json_string(server.state.weights), ": expected the same on all servers");
  }
  return first == nullptr ? std::string() : first->state.weights;
}

Result<StepProfile> ServerFleet::profile(std::optional<NodeId> id) const {
  LearnedSteps learned;
  std::string sources;
  for (const auto& [of, server] : all()) {
    if (id && of != *id) continue;
    learned.add(server.steps->learned());
    sources += cat(sources.empty() ? "" : ", ", to_string(server.link.kind), "=", url_of(server.link.address));
  }
  return learned_profile(learned.points(), config_.model, cat("learned from ", sources));
}

// ---- events of the servers' actors, on their threads -------------------------------------------------------------------------------

void ServerFleet::changed(NodeId id, bool is_up, const std::string& why) {
  const std::lock_guard lock(mutex_);
  const auto server = known_.find(id);
  if (server == known_.end()) return;
  server->second.is_up = is_up;
  server->second.why_out = why;
  server->second.has_answered = true;
  answered_.notify_all();
}

void ServerFleet::seen(NodeId id, const ServerState& state) {
  const std::lock_guard lock(mutex_);
  if (const auto server = known_.find(id); server != known_.end()) server->second.state = state;
}

}  // namespace seer
