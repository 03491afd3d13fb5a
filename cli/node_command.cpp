#include "cli/node_command.h"

#include <iostream>
#include <utility>

#include "actors/cluster_actor.h"
#include "actors/fleet.h"
#include "cli/cluster_dial.h"
#include "cli/host_port.h"
#include "cli/machine_parts.h"

namespace seer {
namespace {

constexpr int64_t kReceiveUs = 100'000;  // between two looks at the stop flag

NodeConfig node_config(const NodeOptions& options) {
  const NodeId id{static_cast<uint32_t>(options.name)};
  NodeConfig config{.node = id, .kv_node = {.node = id}};
  if (options.drafting == DraftSource::kGrouped) config.draft_server = DraftServerConfig{.node = id};
  for (uint32_t i = 0; i < options.instances; ++i) {
    config.instances.push_back(instance_config(options, options.max_batch));
    config.instances.back().id = node_instance(id, i);
  }
  return config;
}

/// Ends an actor of this process when the command does.
template <class Handle>
struct Stopper {
  Handle handle;
  ~Stopper() {
    if (handle) rt::stop(handle);
  }
};

}  // namespace

Status node_command(const NodeOptions& options, const std::atomic<bool>& stop) {
  SEER_ASSIGN_OR_RETURN(const EventLog log, EventLog::open(options.log));
  SEER_ASSIGN_OR_RETURN(const HostPort listen, parse_host_port("--listen", options.listen, true));
  rt::NetConfig net(kActorThreads);
  rt::system system{net};

  Stopper<ClusterHandle> own_cluster;
  Stopper<NodeHandle> node;
  ClusterHandle cluster;
  uint16_t port = listen.port;
  if (options.join.empty()) {
    cluster = own_cluster.handle = rt::spawn<ClusterActor>(system, log);
    SEER_ASSIGN_OR_RETURN(port, rt::listen_on_loopback(system, cluster, listen.port));
  } else {
    SEER_ASSIGN_OR_RETURN(cluster, dial_cluster(system, options.join, "--join", stop));
  }

  SEER_ASSIGN_OR_RETURN(const LoadedModel loaded, load_model_of(options));
  SEER_RETURN_IF_ERROR(check_sizes(options, loaded.model->config));
  SlowWork aside({}, [](std::function<void()>& f) { f(); });
  SEER_ASSIGN_OR_RETURN(const ClusterTransport transport, make_cluster_transport());
  SEER_ASSIGN_OR_RETURN(NodeMakers made_makers, make_node_makers(options, loaded, aside, transport));
  const auto makers = std::make_shared<const NodeMakers>(std::move(made_makers));
  NodeConfig config = node_config(options);
  SEER_ASSIGN_OR_RETURN(NodeMachinery machinery, make_machinery(config, *makers));

  rt::Inbox<> inbox(system);
  const auto entered = inbox.ask<ClusterEntered>(
      cluster, EnterCluster{config.node, instance_identity(machinery.instances.begin()->second.engine->info())},
      {.error = cat("the controller at ", options.join, " does not answer")});
  if (!entered.error.empty()) return fail(Code::kInvalidArgument, entered.error);
  config.epoch = entered.epoch;
  node.handle = start_node(system, config, makers, std::move(machinery), entered.directory, log);
  const uint16_t wanted = options.join.empty() ? 0 : listen.port;
  SEER_ASSIGN_OR_RETURN(const uint16_t node_port, rt::listen_on_loopback(system, node.handle, wanted));
  if (!options.join.empty()) port = node_port;
  inbox.monitor(node.handle);
  inbox.monitor(cluster);
  rt::post(cluster, NodeReady{{config.node, listen.host, node_port}, node.handle, static_cast<uint32_t>(options.instances)});
  std::cout << "node " << options.name << (options.join.empty() ? " is the controller" : " has joined") << ", with "
            << options.instances << " instances, at " << listen.host << ":" << port << std::endl;

  Status ended;
  while (ended.ok() && !stop.load())
    inbox.receive(kReceiveUs, [&](const rt::down& message) {
      const std::string lost = rt::is_source(message, cluster) ? cat("the controller at ", options.join) : cat("node ", options.name);
      ended = fail(Code::kUnavailable, rt::reason_text(message, lost + " is gone"));
    });
  return ended;
}

}  // namespace seer
