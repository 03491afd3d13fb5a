// node_actor: one machine: spawns its KV node, its draft server and its instances, watches them, and starts again what
// died. One per machine.
//
// An instance that dies comes back empty. When the KV node dies its instances are started again too: their grants and
// leases died with it. Each starts only once the one before it has ended, so that there is never memory for two. What was running is placed again by the rollout, from its token logs. After restarts_max restarts
// the machine gives up and ends, so that a fault that repeats is seen rather than hidden.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "actors/draft_server_actor.h"
#include "actors/instance/instance_actor.h"
#include "actors/kv_node_actor.h"
#include "actors/log.h"
#include "protocols/actors.h"

namespace seer {

struct NodeConfig {
  NodeId node;
  uint64_t epoch = 0;       // of its arenas: above all that the machine had before
  std::vector<InstanceConfig> instances;
  KvNodeConfig kv_node;
  std::optional<DraftServerConfig> draft_server;  // none: no server here
  int32_t restarts_max = 8;
};

/// How the machine's parts are made; called again for a restart.
struct NodeParts {
  std::function<std::shared_ptr<Engine>(InstanceId)> make_engine;
  std::function<std::shared_ptr<HostArena>()> make_arena;         // empty: no KV pool on this machine
  std::function<std::unique_ptr<ColdStore>()> open_cold;          // empty: no cold tier
  std::shared_ptr<const Tokenizer> tokenizer;                     // may be null
  std::function<Drafting()> make_drafting;                        // empty: none
  KvDirectoryHandle directory;                                    // may be null without a pool
  std::shared_ptr<KvTransport> transport;                         // null: nothing is fetched from other machines
  EventLog log = {};
};

struct NodeActor {
  using handle = NodeHandle;
  static constexpr const char* kActorName = "node";

  NodeActor(rt::self_ptr<NodeActor> self_in, NodeConfig config_in, NodeParts parts_in);
  ~NodeActor();
  handle::behavior_type make_behavior();

  void start_kv_node();
  void start_draft_server();
  void start_instance(const InstanceConfig& instance);
  void on_down(const rt::down& message);
  void give_up();
  bool may_restart() { return ++restarts <= config.restarts_max; }
  void attach(const InstanceSink& sink);
  InstanceUp instance_up(InstanceId id) const;

  struct Running {
    InstanceHandle handle;
    int64_t kv_blocks = 0;
    uint32_t block_tokens = 0;
    int32_t rows_max = 0;
    ClusterIdentity identity;
    bool stopped = false;  // by us, to be started again
  };

  rt::self_ptr<NodeActor> self;
  NodeConfig config;
  NodeParts parts;
  std::shared_ptr<HostArena> arena;
  KvNodeHandle kv_node;
  DraftServerHandle draft_server;
  std::map<InstanceId, Running> instances;
  std::vector<InstanceSink> sinks;  // who wants instances and draft server: the rollouts that are up
  uint64_t epoch = 0;  // of the arena
  int32_t restarts = 0;
};

}  // namespace seer
