#include "cli/cluster_commands.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/cluster_dial.h"
#include "cli/cluster_net.h"
#include "cli/cluster_status.h"
#include "cli/terminal.h"

namespace seer {
namespace {

constexpr int64_t kWatchUs = 1'000'000;    // between two reports of --watch
constexpr int64_t kReceiveUs = 100'000;    // between two checks of the stop flag

/// A cluster that this process does not belong to.
struct Visit {
  std::unique_ptr<ClusterNet> net;
  rt::Inbox<> inbox{net->system()};
  ClusterHandle controller;

  static Result<std::unique_ptr<Visit>> pay(const std::string& address, const ClusterAccess& access, const std::atomic<bool>& stop) {
    SEER_ASSIGN_OR_RETURN(std::unique_ptr<ClusterNet> net, ClusterNet::create(access));
    auto visit = std::unique_ptr<Visit>(new Visit{.net = std::move(net), .controller = {}});
    SEER_ASSIGN_OR_RETURN(visit->controller, dial_cluster(*visit->net, address, "--cluster", stop));
    return visit;
  }
  /// None: the controller does not answer.
  std::optional<ClusterReport> look() {
    bool answered = false;
    auto report = inbox.ask<ClusterReport>(controller, GetReport{}, {}, &answered);
    return answered ? std::optional(std::move(report)) : std::nullopt;
  }
};

Error silent_controller(const std::string& address) { return fail(Code::kUnavailable, "--cluster ", address, ": the controller does not answer"); }

Result<ClusterStatus> status_of(Visit& visit, const std::string& address) {
  std::optional<ClusterReport> report = visit.look();
  if (!report) return silent_controller(address);
  ClusterStatus status{.address = address, .nodes = {}, .rollouts = {}};
  for (const ClusterNodeReport& member : report->nodes) {
    bool answered = false;
    auto node = visit.inbox.ask<NodeReport>(member.handle, GetReport{}, {}, &answered);
    status.nodes.push_back({member, answered ? std::optional(std::move(node)) : std::nullopt});
  }
  for (const RolloutStarted& rollout : report->rollouts) {
    bool answered = false;
    auto summary = visit.inbox.ask<RolloutSummary>(rollout.handle, GetReport{}, {}, &answered);
    status.rollouts.push_back({rollout.id, answered ? std::optional(std::move(summary)) : std::nullopt});
  }
  return status;
}

/// False: the stop flag was set meanwhile.
bool pause(Visit& visit, int64_t us, const std::atomic<bool>& stop) {
  for (int64_t left_us = us; left_us > 0 && !stop.load(); left_us -= kReceiveUs)
    visit.inbox.receive(std::min(left_us, kReceiveUs), [](const rt::down&) {});
  return !stop.load();
}

}  // namespace

Status status_command(const StatusOptions& options, const std::atomic<bool>& stop) {
  SEER_ASSIGN_OR_RETURN(const std::unique_ptr<Visit> visit, Visit::pay(options.cluster, options.access, stop));
  const Terminal terminal = terminal_of(STDOUT_FILENO);
  do {
    SEER_ASSIGN_OR_RETURN(const ClusterStatus status, status_of(*visit, options.cluster));
    if (options.watch && terminal.is_live && !options.json) std::cout << "\x1b[H\x1b[2J";  // to the top of an empty screen
    std::cout << (options.json ? status_json(status) : status_text(status, terminal.is_coloured)) << std::flush;
  } while (options.watch && pause(*visit, kWatchUs, stop));
  return {};
}

Status drain_command(const DrainOptions& options, const std::atomic<bool>& stop) {
  SEER_ASSIGN_OR_RETURN(const std::unique_ptr<Visit> visit, Visit::pay(options.cluster, options.access, stop));
  const NodeId node{static_cast<uint32_t>(options.name)};
  const auto drained = visit->inbox.ask<Drained>(visit->controller, DrainMachine{node, options.timeout_s * 1'000'000},
                                                {.error = silent_controller(options.cluster).detail});
  if (!drained.error.empty()) return fail(Code::kInvalidArgument, drained.error);
  const auto is_there = [&](const ClusterReport& report) {
    return std::ranges::any_of(report.nodes, [&](const ClusterNodeReport& n) { return n.at.node == node; });
  };
  for (std::optional<ClusterReport> report = visit->look();; report = visit->look()) {
    if (!report) return silent_controller(options.cluster);
    if (!is_there(*report)) break;
    if (!pause(*visit, kReceiveUs, stop)) return fail(Code::kCancelled, "stopped on request; node ", options.name, " goes on to leave");
  }
  std::cout << "node " << options.name << " has left" << std::endl;
  return {};
}

}  // namespace seer
