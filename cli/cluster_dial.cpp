#include "cli/cluster_dial.h"

#include <chrono>
#include <thread>

#include "cli/host_port.h"

namespace seer {
namespace {

constexpr int kTriesMax = 20;
constexpr std::chrono::milliseconds kPause(250);

}  // namespace

Result<ClusterHandle> dial_cluster(rt::system& system, const std::string& address, const char* flag, const std::atomic<bool>& stop) {
  SEER_ASSIGN_OR_RETURN(const HostPort at, parse_host_port(flag, address, false));
  for (int left = kTriesMax; left > 0 && !stop.load(); --left) {
    auto cluster = rt::dial<ClusterHandle>(system, at.host, at.port);
    if (cluster.ok()) return cluster;
    if (left > 1) std::this_thread::sleep_for(kPause);
  }
  if (stop.load()) return fail(Code::kCancelled, "stopped on request");
  return fail(Code::kUnavailable, flag, " ", address, ": no controller answers there, in ", kTriesMax, " tries over ",
              (kTriesMax * kPause).count() / 1000, " s");
}

Result<RolloutEntered> enter_rollout(rt::system& system, const std::string& address, const ClusterHandle& controller) {
  rt::Inbox<> inbox(system);
  RolloutEntered entered = inbox.ask<RolloutEntered>(controller, EnterRollout{}, {.error = "it does not answer"});
  if (!entered.error.empty()) return fail(Code::kUnavailable, "--cluster ", address, ": ", entered.error);
  return entered;
}

ClusterFleet::ClusterFleet(rt::system& system, Fleet& fleet, const ClusterHandle& controller, EventLog log)
    : system_(system), fleet_(fleet), log_(std::move(log)), news_(system) {
  rt::post(controller, WatchCluster{news_.handle()});
}

void ClusterFleet::follow() {
  const auto joined = [&](const NodeJoined& node) {
    Status added;
    if (auto handle = rt::dial<NodeHandle>(system_, node.at.host, node.at.port); handle.ok())
      added = fleet_.add_node(node.at.node, *handle);
    else
      added = handle.error();
    if (!added.ok()) log_.warn(rt::now_us(&system_), "node_unreachable", {{"node", node.at.node}, {"error", added.error()}});
  };
  const auto left = [&](const PartLost& lost) {
    if (fleet_.node(lost.node)) fleet_.lose_node(lost);
  };
  while (news_.receive(0, joined, left)) {
  }
}

}  // namespace seer
