#include "cli/node_command.h"

#include <iostream>
#include <map>
#include <random>
#include <utility>

#include "actors/cluster_actor.h"
#include "actors/fleet.h"
#include "cli/cluster_dial.h"
#include "cli/cluster_net.h"
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

/// That nobody can guess.
std::string new_secret() {
  std::random_device random;
  std::string secret;
  for (int i = 0; i < 4; ++i) secret += cat(random(), "-");
  return secret;
}

/// Ends an actor of this process when the command does.
template <class Handle>
class Stopper {
 public:
  Stopper() = default;
  explicit Stopper(Handle handle) : handle_(std::move(handle)) {}
  Stopper(Stopper&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Stopper& operator=(Stopper&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Stopper() {
    if (handle_) rt::stop(handle_);
  }

 private:
  Handle handle_;
};

/// The controller: in this process, or elsewhere.
struct Controller {
  Stopper<ClusterHandle> own;
  ClusterHandle handle;
  uint16_t port = 0;  // of our own
};
Result<Controller> find_controller(ClusterNet& net, const NodeOptions& options, const HostPort& listen, const EventLog& log,
                                   const std::atomic<bool>& stop) {
  Controller found;
  if (options.join.empty()) {
    found.handle = rt::spawn<ClusterActor>(net.system(), new_secret(), log);
    found.own = Stopper(found.handle);
    SEER_ASSIGN_OR_RETURN(found.port, net.listen(found.handle, listen.host, listen.port));
  } else {
    SEER_ASSIGN_OR_RETURN(found.handle, dial_cluster(net, options.join, "--join", stop));
  }
  return found;
}

Status wait_alone(const std::atomic<bool>& stop, rt::system& system) {
  rt::Inbox<> inbox(system);
  while (!stop.load()) inbox.receive(kReceiveUs, [](const rt::down&) {});
  return {};
}

}  // namespace

Status node_command(const NodeOptions& options, const std::atomic<bool>& stop) {
  SEER_ASSIGN_OR_RETURN(const EventLog log, EventLog::open(options.log));
  SEER_ASSIGN_OR_RETURN(const HostPort listen, parse_host_port("--listen", options.listen, true));
  SEER_ASSIGN_OR_RETURN(const std::unique_ptr<ClusterNet> net, ClusterNet::create(options.access));
  rt::system& system = net->system();
  SEER_ASSIGN_OR_RETURN(const Controller controller, find_controller(*net, options, listen, log, stop));
  const bool is_controller = options.join.empty();
  if (options.instances == 0) {
    std::cout << "the controller is alone, at " << listen.host << ":" << controller.port << std::endl;
    return wait_alone(stop, system);
  }

  SEER_ASSIGN_OR_RETURN(const LoadedModel loaded, load_model_of(options));
  SEER_RETURN_IF_ERROR(check_sizes(options, loaded.model->config));
  SlowWork aside({}, [](std::function<void()>& f) { f(); });
  const Error silent = fail(Code::kUnavailable, "the controller at ", options.join, " does not answer");
  rt::Inbox<> inbox(system);
  const auto secret = inbox.ask<ClusterSecret>(controller.handle, GetSecret{});
  if (secret.text.empty()) return silent;
  SEER_ASSIGN_OR_RETURN(const ClusterTransport transport, make_cluster_transport(secret.text, is_of_this_host(listen.host)));
  SEER_ASSIGN_OR_RETURN(NodeMakers made_makers, make_node_makers(options, loaded, aside, transport));
  const auto makers = std::make_shared<const NodeMakers>(std::move(made_makers));
  NodeConfig config = node_config(options);
  SEER_ASSIGN_OR_RETURN(NodeMachinery machinery, make_machinery(config, *makers));

  const auto entered = inbox.ask<ClusterEntered>(
      controller.handle, EnterCluster{config.node, instance_identity(machinery.instances.begin()->second.engine->info())},
      {.error = silent.detail});
  if (!entered.error.empty()) return fail(Code::kInvalidArgument, entered.error);
  config.epoch = entered.epoch;
  const NodeHandle node = start_node(system, config, makers, std::move(machinery), entered.directory, log);
  const Stopper stopper(node);
  SEER_ASSIGN_OR_RETURN(const uint16_t port, net->listen(node, listen.host, is_controller ? uint16_t{0} : listen.port));
  inbox.monitor(node);
  inbox.monitor(controller.handle);
  rt::post(controller.handle, NodeReady{{config.node, listen.host, port}, node, static_cast<uint32_t>(options.instances)});
  std::map<NodeId, NodeHandle> others;  // kept, so that the connections stay
  ClusterWatch watch(*net, controller.handle, config.node,
                     {.joined = [&](const NodeAddress& at, NodeHandle handle) { return others[at.node] = std::move(handle), Status(); },
                      .left = [&](const PartLost& lost) { others.erase(lost.node); }},
                     log);
  std::cout << "node " << options.name << (is_controller ? " is the controller" : " has joined") << ", with " << options.instances
            << " instances, at " << listen.host << ":" << (is_controller ? controller.port : port) << std::endl;

  bool over = false;
  Status ended;
  const auto on_down = [&](const rt::down& message) {
    if (rt::is_source(message, node) && rt::ended_in_order(message)) {
      std::cout << "node " << options.name << " was drained" << (is_controller ? ", and stays as the controller" : " and leaves") << std::endl;
      over = !is_controller;
      return;
    }
    const std::string lost = rt::is_source(message, node) ? cat("node ", options.name) : cat("the controller at ", options.join);
    ended = fail(Code::kUnavailable, rt::reason_text(message, lost + " is gone"));
    over = true;
  };
  while (!over && !stop.load()) {
    inbox.receive(kReceiveUs, on_down);
    if (!over) watch.follow();
  }
  return ended;
}

}  // namespace seer
