#include "cli/cluster_dial.h"

#include <chrono>
#include <thread>
#include <utility>

namespace seer {
namespace {

constexpr int kTriesMax = 20;
constexpr std::chrono::milliseconds kPause(250);

}  // namespace

Result<ClusterHandle> dial_cluster(ClusterNet& net, const std::string& address, const char* flag, const std::atomic<bool>& stop) {
  SEER_ASSIGN_OR_RETURN(const HostPort at, parse_host_port(flag, address, false));
  for (int left = kTriesMax; left > 0 && !stop.load(); --left) {
    auto cluster = net.dial<ClusterHandle>(at.host, at.port);
    if (cluster.ok()) return cluster;
    if (cluster.error().code == Code::kInvalidArgument) return fail(Code::kInvalidArgument, flag, " ", address, ": ", cluster.error().detail);
    if (left > 1) std::this_thread::sleep_for(kPause);
  }
  if (stop.load()) return fail(Code::kCancelled, "stopped on request");
  return fail(Code::kUnavailable, flag, " ", address, ": no controller answers there, in ", kTriesMax, " tries over ",
              (kTriesMax * kPause).count() / 1000, " s", net.uses_tls() ? ", or its certificate is of another CA" : "");
}

Result<RolloutEntered> enter_rollout(ClusterNet& net, const std::string& address, const ClusterHandle& controller) {
  rt::Inbox<> inbox(net.system());
  RolloutEntered entered = inbox.ask<RolloutEntered>(controller, EnterRollout{}, {.error = "it does not answer"});
  if (!entered.error.empty()) return fail(Code::kUnavailable, "--cluster ", address, ": ", entered.error);
  return entered;
}

ClusterWatch::ClusterWatch(ClusterNet& net, const ClusterHandle& controller, NodeId self, Hooks hooks, EventLog log)
    : net_(net), controller_(controller), self_(self), hooks_(std::move(hooks)), log_(std::move(log)), news_(net.system()) {
  news_.monitor(controller);
  rt::post(controller, WatchCluster{news_.handle()});
}

Result<NodeHandle> ClusterWatch::reach(const NodeJoined& node) {
  const bool is_dialed_here = self_ == kNoNode || node.at.node < self_;
  if (!is_dialed_here || rt::same_process(node.handle, controller_)) return node.handle;
  return net_.dial<NodeHandle>(node.at.host, node.at.port);
}

void ClusterWatch::follow() {
  const auto joined = [&](const NodeJoined& node) {
    if (node.at.node == self_) return;
    Result<NodeHandle> handle = reach(node);
    const Status taken = handle.ok() ? hooks_.joined(node.at, *std::move(handle)) : Status(handle.error());
    if (!taken.ok()) log_.warn(rt::now_us(&net_.system()), "node_unreachable", {{"node", node.at.node}, {"error", taken.error()}});
  };
  const auto left = [&](const PartLost& lost) { hooks_.left(lost); };
  const auto down = [&](const rt::down&) { controller_is_gone_ = true; };
  while (news_.receive(0, joined, left, down)) {
  }
}

}  // namespace seer
