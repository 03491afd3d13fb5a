#include "cli/node_command.h"

#include <chrono>
#include <iostream>
#include <map>
#include <utility>

#include "actors/cluster_actor.h"
#include "actors/fleet.h"
#include "cli/cluster_access.h"
#include "cli/cluster_dial.h"
#include "cli/cluster_net.h"
#include "cli/engine_source.h"
#include "cli/figure_text.h"
#include "cli/file_limit.h"
#include "cli/machine_parts.h"

namespace seer {
namespace {

constexpr int64_t kReceiveUs = 100'000;  // between two checks of the stop flag

constexpr int64_t kLayoutPauseUs = 500'000;  // between two looks for a machine that has loaded the model

/// The options without those of roles that this machine does not have.
NodeOptions options_of(NodeOptions options, NodeRoles roles) {
  if (!roles.has(NodeRole::kInstances)) options.instances = 0;
  if (!roles.has(NodeRole::kKv)) {
    options.dram_bytes = 0;
    options.cold_dir.clear();
  }
  return options;
}

NodeConfig node_config(const NodeOptions& options, NodeRoles roles) {
  const NodeId id{static_cast<uint32_t>(options.name)};
  NodeConfig config{.node = id, .kv_node = {.node = id}};
  if (roles.has(NodeRole::kDraft)) config.draft_server = DraftServerConfig{.node = id};
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

Error stopped() { return fail(Code::kCancelled, "stopped on request"); }
/// A request to stop goes before: the controller may have got one too.
Error silent_controller(const std::string& address, const std::atomic<bool>& stop) {
  return stop.load() ? stopped() : fail(Code::kUnavailable, "the controller at ", address, " does not answer");
}

/// Errors: kInvalidArgument if the machine may not enter; kUnavailable if there is no answer; kCancelled.
Result<ClusterEntered> enter(rt::Inbox<>& inbox, const ClusterHandle& controller, const EnterCluster& ask, const std::string& address,
                             const std::atomic<bool>& stop) {
  bool answered = false;
  ClusterEntered entered = inbox.ask<ClusterEntered>(controller, ask, {}, &answered);
  if (!answered) return silent_controller(address, stop);
  if (!entered.error.empty()) return fail(Code::kInvalidArgument, entered.error);
  return entered;
}

/// What a machine without instances knows of the model.
struct Layout {
  ClusterIdentity identity;  // without weights
  int64_t kv_block_bytes = 0;
};
/// Asks the controller until a machine of the cluster has loaded the model. Errors: kUnavailable, kCancelled.
Result<Layout> learn_layout(rt::system& system, const ClusterHandle& controller, const NodeOptions& options, const std::atomic<bool>& stop) {
  rt::Inbox<> inbox(system);
  for (bool was_told = false; !stop.load(); inbox.receive(kLayoutPauseUs, [](const rt::down&) {})) {
    bool answered = false;
    const ClusterReport report = inbox.ask<ClusterReport>(controller, GetReport{}, {}, &answered);
    if (!answered) return silent_controller(options.join, stop);
    for (const ClusterNodeReport& node : report.nodes) {
      if (node.kv_block_bytes == 0) continue;
      Layout layout{node.identity, node.kv_block_bytes};
      layout.identity.weights = 0;
      layout.identity.version = {};
      return layout;
    }
    if (!std::exchange(was_told, true))
      std::cout << "node " << options.name << " waits for a machine with instances, which knows how large KV is" << std::endl;
  }
  return stopped();
}

/// Everything of a machine but its actors.
struct Machine {
  std::shared_ptr<const NodeMakers> makers;
  NodeMachinery made;
  Layout layout;
};
/// Options and `net` outlive what the makers make.
std::shared_ptr<const NodeMakers> in_cluster(NodeMakers makers, ClusterNet& net) {
  makers.is_connected = [&net](const rt::process& peer) { return rt::is_connected(net.system(), peer); };
  return std::make_shared<const NodeMakers>(std::move(makers));
}
Result<Machine> make_machine(NodeOptions& options, const NodeConfig& config, SlowWork& aside, const ClusterTransport& transport,
                             ClusterNet& net) {
  SEER_ASSIGN_OR_RETURN(const LoadedModel loaded, load_model_of(options));
  SEER_RETURN_IF_ERROR(choose_kv_bytes(options, *loaded.model(), true));
  SEER_RETURN_IF_ERROR(check_sizes(options, loaded.model()->config));
  SEER_ASSIGN_OR_RETURN(NodeMakers makers, make_node_makers(options, loaded, aside, transport));
  Machine machine;
  machine.makers = in_cluster(std::move(makers), net);
  SEER_ASSIGN_OR_RETURN(machine.made, make_machinery(config, *machine.makers));
  machine.layout = {instance_identity(machine.made.instances.begin()->second.engine->info(), pieces_hash(loaded.tokenizer.get())), kv_block_bytes_of(options, loaded.model()->config)};
  return machine;
}
Result<Machine> make_helper(const NodeOptions& options, const NodeConfig& config, const Layout& layout, SlowWork& aside,
                            const ClusterTransport& transport, ClusterNet& net) {
  SEER_ASSIGN_OR_RETURN(NodeMakers makers, make_pool_makers(options, layout.kv_block_bytes, aside, transport));
  Machine machine;
  machine.makers = in_cluster(std::move(makers), net);
  machine.layout = layout;
  SEER_ASSIGN_OR_RETURN(machine.made, make_machinery(config, *machine.makers));
  return machine;
}

/// "2 instances"; without instances "1.0 GiB for KV and a draft server".
std::string parts_text(const NodeOptions& options, NodeRoles roles) {
  if (roles.has(NodeRole::kInstances)) return cat(options.instances, " instances");
  const bool has_kv = roles.has(NodeRole::kKv), has_draft = roles.has(NodeRole::kDraft);
  return cat(has_kv ? bytes_text(options.dram_bytes) + " for KV" : "", has_kv && has_draft ? " and " : "", has_draft ? "a draft server" : "");
}

Status wait_alone(const std::atomic<bool>& stop, rt::system& system) {
  rt::Inbox<> inbox(system);
  while (!stop.load()) inbox.receive(kReceiveUs, [](const rt::down&) {});
  return {};
}

/// Errors: kCancelled if it was stopped before it was in the cluster.
Status run_node(const NodeOptions& given, const std::atomic<bool>& stop) {
  const NodeRoles roles = roles_of(given);
  NodeOptions options = options_of(given, roles);
  SEER_ASSIGN_OR_RETURN(const EventLog log, EventLog::open(options.log));
  SEER_ASSIGN_OR_RETURN(const HostPort listen, parse_host_port("--listen", options.listen, true));
  const bool is_alone = roles == NodeRoles{NodeRole::kController};
  if (!is_alone && (listen.host == "0.0.0.0" || listen.host == "::"))
    return fail(Code::kInvalidArgument, "--listen ", options.listen, ": expected an address of this machine, at which the others reach it");
  raise_file_limit();
  if (roles.has(NodeRole::kInstances)) SEER_RETURN_IF_ERROR(choose_instances(options));
  SEER_RETURN_IF_ERROR(check_memory_to_stay(options, {}, find_memory()));
  SEER_ASSIGN_OR_RETURN(const std::unique_ptr<ClusterNet> net, ClusterNet::create(options.access, log));
  rt::system& system = net->system();
  SEER_ASSIGN_OR_RETURN(const Controller controller, find_controller(*net, options, listen, log, stop));
  const bool is_controller = roles.has(NodeRole::kController), has_instances = roles.has(NodeRole::kInstances);
  if (is_alone) {
    std::cout << "the controller is alone, at " << address_text(listen.host, controller.port) << std::endl;
    return wait_alone(stop, system);
  }
  // Printed once it is in the cluster; but a controller without instances cannot be before other machines are.
  const auto print_joined = [&](uint16_t port) {
    std::cout << "node " << options.name << (is_controller ? " is the controller" : " has joined") << ", with " << parts_text(options, roles)
              << ", at " << address_text(listen.host, port) << std::endl;
  };
  const bool waits_for_others = is_controller && !has_instances;
  if (waits_for_others) print_joined(controller.port);

  SlowWork aside({}, [](std::function<void()>& f) { f(); });
  rt::Inbox<> inbox(system);
  SEER_ASSIGN_OR_RETURN(const ClusterTransport transport, make_cluster_transport(is_of_this_host(listen.host)));
  NodeConfig config = node_config(options, roles);
  Machine machine;
  if (has_instances) {
    SEER_ASSIGN_OR_RETURN(machine, make_machine(options, config, aside, transport, *net));
  } else {
    Layout layout;
    if (roles.has(NodeRole::kKv)) {
      SEER_ASSIGN_OR_RETURN(layout, learn_layout(system, controller.handle, options, stop));
    }
    SEER_ASSIGN_OR_RETURN(machine, make_helper(options, config, layout, aside, transport, *net));
    config.kv_node.identity = layout.identity;
  }
  if (stop.load()) return stopped();  // models take their time to load
  const auto question = [&](const ClusterIdentity& identity) {
    return EnterCluster{config.node, identity, config.epoch, roles, machine.layout.kv_block_bytes};
  };
  SEER_ASSIGN_OR_RETURN(const ClusterEntered entered, enter(inbox, controller.handle, question(machine.layout.identity), options.join, stop));
  config.epoch = entered.epoch;
  const NodeHandle node = start_node(system, config, machine.makers, std::move(machine.made), entered.directory, log);
  const Stopper stopper(node);
  SEER_ASSIGN_OR_RETURN(const uint16_t port, net->listen(node, listen.host, is_controller ? uint16_t{0} : listen.port));
  inbox.monitor(node);
  const NodeReady ready{{config.node, listen.host, port}, node, static_cast<uint32_t>(options.instances)};
  rt::post(controller.handle, ready);
  const auto enter_again = [&](const ClusterHandle& returned) -> Status {
    rt::Inbox<> asking(system);
    bool answered = false;
    const NodeReport report = asking.ask<NodeReport>(node, GetReport{}, {}, &answered);  // its weights may be others by now
    const ClusterIdentity& now = answered && !report.identity.model.empty() ? report.identity : machine.layout.identity;
    SEER_ASSIGN_OR_RETURN(const ClusterEntered again, enter(asking, returned, question(now), options.join, stop));
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
  if (!waits_for_others) print_joined(is_controller ? controller.port : port);

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
    if (!watch.status().ok()) return stop.load() ? Status() : watch.status();
  }
  return ended;
}

}  // namespace

Status node_command(const NodeOptions& given, const std::atomic<bool>& stop) {
  const Status ended = run_node(given, stop);
  const bool was_stopped = !ended.ok() && ended.error().code == Code::kCancelled;
  return was_stopped ? Status() : ended;  // it did what it was asked to
}

}  // namespace seer
