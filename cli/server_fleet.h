// ServerFleet: the servers of others that requests run on: which there are, what each said last, and the actors that make nodes of a
// fleet of them. Used by `seer serve --engines` and `seer rollout --engines`. Thread-safe, but for what says otherwise.
//
// It outlives the actor system: its HttpClient serves the actors.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/fleet.h"
#include "actors/log.h"
#include "actors/server_node_actor.h"
#include "cli/config.h"
#include "cli/router_options.h"
#include "cli/watched_server.h"
#include "gpu/model/model_config.h"
#include "gpu/stop_rule.h"
#include "gpu/text/tokenizer.h"
#include "protocols/result.h"

namespace seer {

struct ServerFleetConfig {
  RouterOptions router;
  std::string model;         // its name
  StopLimits stop;           // of the model
  WeightVersion version{1};  // of the servers' first weights
};

/// A server and what is known of it.
struct KnownServer {
  ServerLinkConfig link;
  ServerState state = {};
  bool is_up = false, is_draining = false;
  bool has_answered = false;  // or has failed to
  std::string why_out = {};   // what its last failure was, if it is out
  std::shared_ptr<StepLog> steps = std::make_shared<StepLog>();
  std::shared_ptr<EngineServer> server = {};  // null before spawn()
};

class ServerFleet {
 public:
  ServerFleet(ServerFleetConfig config, std::shared_ptr<const Tokenizer> tokenizer, EventLog log);
  /// Reads the token and the CA's certificates. Errors: one sentence. REQUIRES: called before the next ones.
  Status open();
  /// Makes nodes of the servers of --engines, and waits a few seconds for them to answer; those that do not take part when they do.
  Status start(Fleet& fleet, rt::system& system, const std::atomic<bool>& stop);
  /// Called when a drained server has no request any more. REQUIRES: called before start().
  void on_left(std::function<void(NodeId)> left) { left_ = std::move(left); }

  struct Noted {
    NodeId id;
    bool is_new = false;  // spawn() has to make its node
  };
  /// Errors: kInvalidArgument; kFull.
  Result<Noted> note(const std::string& engine);
  /// `target`: weights of all servers now; version 0: the first ones. REQUIRES: it was noted.
  NodeHandle spawn(rt::system& system, NodeId id, const NewWeights& target);
  /// By id or by address; none: it is not known.
  std::optional<NodeId> find(const std::string& name_or_url) const;
  void drain(NodeId id);
  void forget(NodeId id);

  std::map<NodeId, KnownServer> all() const;
  /// Null: it has left.
  std::shared_ptr<EngineServer> server(NodeId id) const;
  /// A trainer replaces the weights of servers with this version, part by part, until another one runs.
  void weights_move(WeightVersion from) { *moving_ = from.value; }
  bool takes_part(NodeId id) const;  // it is up, and not draining
  size_t up_count() const;
  /// What servers call weights that they got as this version.
  std::string label_of(WeightVersion version) const { return cat(version, label_suffix()); }
  /// This process's id, then those that the servers which are up name; at most kServerIdsMax.
  std::vector<std::string> server_ids() const;
  /// Checksum of the weights that the servers have, as one of them says; 0: none is up, or none says.
  uint64_t weights() const;
  /// What the servers that have answered call their weights; empty: none says. Errors: two call them differently.
  Result<std::string> weights_label() const;
  /// What its steps cost, as learned so far; none: those of all servers together, as if they were alike. Errors: kUnavailable: too few
  /// tokens came yet.
  Result<StepProfile> profile(std::optional<NodeId> id) const;
  const RouterOptions& options() const { return config_.router; }

 private:
  void changed(NodeId id, bool is_up, const std::string& why);
  void seen(NodeId id, const ServerState& state);

  const ServerFleetConfig config_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const EventLog log_;
  const std::shared_ptr<FirstWeights> first_weights_ = std::make_shared<FirstWeights>();
  const std::shared_ptr<std::atomic<uint64_t>> moving_ = std::make_shared<std::atomic<uint64_t>>(0);
  std::string label_suffix() const { return cat("-", nonce_); }
  const uint64_t nonce_;  // so that no other process's requests and weights have the same names
  std::string token_;
  std::function<void(NodeId)> left_ = [](NodeId) {};
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable answered_;
  std::map<NodeId, KnownServer> known_;
  uint32_t next_id_ = 0;
  HttpClient http_;  // thread-safe itself
};

ServerFleetConfig server_fleet_config(const MachineOptions& options, const RouterOptions& router, const ModelConfig& model);

/// What /workers calls it.
std::string worker_name(NodeId id);

/// The scheduling of rollouts on servers.
ChunkSchedulerConfig routed_scheduler(ChunkSchedulerConfig scheduler, const RouterOptions& router);
/// Fills in what rollouts on servers have in common.
RolloutConfig routed_rollout(RolloutConfig config, size_t servers);

}  // namespace seer
