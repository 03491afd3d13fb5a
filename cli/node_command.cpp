#include "cli/node_command.h"

#include <chrono>
#include <iostream>
#include <map>
#include <utility>

#include "actors/cluster_actor.h"
#include "actors/fleet.h"
#include "cli/cluster_dial.h"
#include "cli/cluster_net.h"
#include "cli/machine_parts.h"

namespace seer {
namespace {

constexpr int64_t kReceiveUs = 100'000;  // between two checks of the stop flag

NodeConfig node_config(const NodeOptions& options) {
  const NodeId id{static_cast<uint32_t>(options.name)};
  NodeConfig config{.node = id, .kv_node = {.node = id}};
  if (options.drafting == DraftSource::kGrouped) config.draft_server = DraftServerConfig{.node = id};
  for (uint32_t i = 0; i < options.instances; ++i) {
    config.instances.push_back(instance_config(options));
    config.instances.back().id = node_instance(id, i);
  }
  return config;
}

uint64_t calendar_ms() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count());
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
  uint16_t port = 0;  // if it is in this process
};
Result<Controller> find_controller(ClusterNet& net, const NodeOptions& options, const HostPort& listen, const EventLog& log,
                                   const std::atomic<bool>& stop) {
  Controller found;
  if (options.join.empty()) {
    found.handle = rt::spawn<ClusterActor>(net.system(), calendar_ms(), log);
    found.own = Stopper(found.handle);
    SEER_ASSIGN_OR_RETURN(found.port, net.listen(found.handle, listen.host, listen.port));
  } else {
    SEER_ASSIGN_OR_RETURN(found.handle, dial_cluster(net, options.join, "--join", stop));
  }
  return found;
}

/// Errors: kInvalidArgument if the machine may not enter, kUnavailable if there is no answer.
Result<ClusterEntered> enter(rt::Inbox<>& inbox, const ClusterHandle& controller, const EnterCluster& ask, const std::string& address) {
  bool answered = false;
  ClusterEntered entered = inbox.ask<ClusterEntered>(controller, ask, {}, &answered);
  if (!answered) return fail(Code::kUnavailable, "the controller at ", address, " does not answer");
  if (!entered.error.empty()) return fail(Code::kInvalidArgument, entered.error);
  return entered;
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
  rt::Inbox<> inbox(system);
  SEER_ASSIGN_OR_RETURN(const ClusterTransport transport, make_cluster_transport(is_of_this_host(listen.host)));
  SEER_ASSIGN_OR_RETURN(NodeMakers made_makers, make_node_makers(options, loaded, aside, transport));
  const auto makers = std::make_shared<const NodeMakers>(std::move(made_makers));
  NodeConfig config = node_config(options);
  SEER_ASSIGN_OR_RETURN(NodeMachinery machinery, make_machinery(config, *makers));

  const ClusterIdentity identity = instance_identity(machinery.instances.begin()->second.engine->info());
  SEER_ASSIGN_OR_RETURN(const ClusterEntered entered, enter(inbox, controller.handle, {config.node, identity}, options.join));
  config.epoch = entered.epoch;
  const NodeHandle node = start_node(system, config, makers, std::move(machinery), entered.directory, log);
  const Stopper stopper(node);
  SEER_ASSIGN_OR_RETURN(const uint16_t port, net->listen(node, listen.host, is_controller ? uint16_t{0} : listen.port));
  inbox.monitor(node);
  const NodeReady ready{{config.node, listen.host, port}, node, static_cast<uint32_t>(options.instances)};
  rt::post(controller.handle, ready);
  const auto enter_again = [&](const ClusterHandle& returned) -> Status {
    rt::Inbox<> asking(system);
    bool answered = false;
    const NodeReport report = asking.ask<NodeReport>(node, GetReport{}, {}, &answered);  // its weights may be others by now
    const ClusterIdentity& now = answered && !report.identity.model.empty() ? report.identity : identity;
    SEER_ASSIGN_OR_RETURN(const ClusterEntered again, enter(asking, returned, {config.node, now, config.epoch}, options.join));
    rt::post(node, DirectoryUp{again.directory});
    rt::post(returned, ready);
    return {};
  };
  std::map<NodeId, NodeHandle> others;  // kept, so that the connections stay
  ClusterWatch watch(*net, controller.handle, {.address = options.join, .self = config.node, .wait_s = options.controller_wait_s},
                     {.joined = [&](const NodeAddress& at, NodeHandle handle, uint32_t) { return others[at.node] = std::move(handle), Status(); },
                      .left = [&](const PartLost& lost) { others.erase(lost.node); },
                      .enter_again = enter_again},
                     log);
  std::cout << "node " << options.name << (is_controller ? " is the controller" : " has joined") << ", with " << options.instances
            << " instances, at " << listen.host << ":" << (is_controller ? controller.port : port) << std::endl;

  bool over = false;
  Status ended;
  const auto on_down = [&](const rt::down& message) {
    over = !rt::ended_in_order(message) || !is_controller;
    if (!rt::ended_in_order(message))
      ended = fail(Code::kUnavailable, rt::reason_text(message, cat("node ", options.name, " is gone")));
    else
      std::cout << "node " << options.name << " was drained" << (is_controller ? ", and stays as the controller" : " and leaves") << std::endl;
  };
  while (!over && !stop.load()) {
    inbox.receive(kReceiveUs, on_down);
    if (over) break;
    watch.follow();
    if (!watch.status().ok()) return watch.status();
  }
  return ended;
}

}  // namespace seer
