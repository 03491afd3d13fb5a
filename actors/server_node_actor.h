// server_node_actor: makes a node of a server that others run (EngineServer), with one instance. Rollouts and the fleet treat it as
// any node. It looks at the server, starts its instance when the server answers with the right weights, watches it, and looks again
// when it ended: a circuit breaker, open while there is no instance. The time between two looks doubles from look_us to look_us_max,
// until an instance lived for that long. It also looks while the instance runs, for figures and for weights that changed.
//
// WEIGHTS  The label that the server has when it first answers is the first version's. After an update it must have the label that this
//          process gives that version (label_of), which no other router gives, nor an earlier life of this one. A server that comes back
//          with another label gets the weights again before its instance starts.
//          While a trainer replaces them part by part, labels say nothing, and a server that comes back must wait.
// LEAVING  A drained server gets nothing more; its chunks come back with their tokens. When the last has, or after the timeout,
//          `left` is called, and the actor waits to be stopped.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/handover.h"
#include "actors/instance/served_instance_actor.h"
#include "actors/log.h"
#include "protocols/actors.h"
#include "served/engine_server.h"

namespace seer {

/// What the first server that answered calls its weights: all servers need those until an update comes. Thread-safe.
class FirstWeights {
 public:
  /// Returns them, where a server has these. Without a name they cannot be compared.
  std::string note(const std::string& found) {
    const std::lock_guard lock(mutex_);
    if (name_.empty()) name_ = found;
    return found.empty() ? found : name_;
  }

 private:
  std::mutex mutex_;
  std::string name_;
};

struct ServerNodeConfig {
  NodeId node;
  ServedInstanceConfig instance;     // of every instance; id, weights, version and limits are filled in
  std::string model;                 // name of the model that is served (ClusterIdentity)
  NodeId kv_node;                    // where rollouts take its KV to be: servers that share a KV store have the same
  int64_t rows_max = 256;            // chunks at a time, of a server that does not say
  int64_t kv_tokens = int64_t{1} << 40;  // likewise: as good as no limit
  WeightVersion version{1};          // of the servers' first weights
  NewWeights target;                 // weights of all servers now; version 0: the first ones
  int64_t look_us = 200'000;
  int64_t look_us_max = 30'000'000;
  int64_t relook_us = 5'000'000;     // between two looks while the instance runs
  std::shared_ptr<FirstWeights> first_weights = std::make_shared<FirstWeights>();  // of all servers
  std::shared_ptr<const std::atomic<uint64_t>> moving = {};  // the version of weights that a trainer replaces part by part; may be null
};

/// Callbacks; they may only hand over.
struct ServerNodeEvents {
  std::function<void(NodeId, bool is_up, const std::string& why)> changed = {};  // `why`: it is out
  std::function<void(NodeId)> left = {};
  std::function<void(NodeId, const ServerState&)> seen = {};  // each answer to a look
};

struct ServerNodeParts {
  std::shared_ptr<EngineServer> server;
  std::shared_ptr<const Tokenizer> tokenizer;  // may be null
  ServerNodeEvents events = {};
  EventLog log = {};
};

struct ServerNodeActor {
  using handle = NodeHandle;
  static constexpr const char* kActorName = "server_node";

  ServerNodeActor(rt::self_ptr<ServerNodeActor> self_in, ServerNodeConfig config_in, ServerNodeParts parts_in);
  ~ServerNodeActor();
  handle::behavior_type make_behavior();

  void on_attach(const AttachRollout& attach);
  void on_update(const UpdateWeights& asked);
  void on_weights(const InstanceWeights& answer);
  void on_drain(const DrainNode& drain);
  void on_tick(uint64_t what);
  void tick_in(int64_t us);
  std::string right_label() const;
  void look_again(const ServerState& now);
  void stop_if_unused(const Error& error);
  void adopt_late();
  void on_down(const rt::down& message);
  rt::result<NodeReport> on_report();

  void look();
  void on_look(const Result<ServerState>& state);
  void give_weights(const ServerState& state);
  void look_later(const std::string& why);
  bool weights_move() const;
  void start_instance();
  void leave_when_drained();
  InstanceUp instance_up() const;
  ClusterIdentity identity() const;
  template <class Message>
  void tell_all(const Message& message);

  rt::self_ptr<ServerNodeActor> self;
  ServerNodeConfig config;
  ServerNodeParts parts;
  std::shared_ptr<Handover> handover;
  InstanceHandle instance;              // null: the breaker is open
  int64_t started_us = 0;               // that instance
  std::string stopped_why = "its instance was stopped";
  std::vector<InstanceSink> sinks;      // of the attached rollouts
  ServerState state;                    // as of the last look
  std::optional<std::string> first_weights;  // that all servers need, known once this one has answered
  WeightVersion version;                // of the instance
  NewWeights target;                    // version 0: the first weights
  std::optional<UpdateWeights> update;  // the instance was asked, and has not answered
  std::optional<UpdateWeights> unanswered;  // the last one that failed: the server may have the weights nevertheless
  int64_t look_delay_us;
  uint64_t last_tick = 0;               // only the last timer that was set counts
  int32_t restarts = 0;
  bool looking = false;
  bool draining = false, has_left = false;
  int64_t drain_until_us = 0;
};

}  // namespace seer
