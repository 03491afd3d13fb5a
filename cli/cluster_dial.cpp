#include "cli/cluster_dial.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "actors/cluster_actor.h"
#include "actors/node_actor.h"

namespace seer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kDialMax(5000);  // all tries of dial_cluster() together, and the pauses between them
constexpr std::chrono::milliseconds kPause(250);
// One try. Whoever follows the cluster waits for its answer, and a process that hangs gives none.
constexpr std::chrono::milliseconds kTryMax(2000);
constexpr int64_t kReachPauseUs = 1'000'000, kReachPauseMaxUs = 32'000'000;  // from the end of one to the next; doubles each time
constexpr int64_t kQuickUs = 100'000;        // a machine that answers takes less
constexpr int64_t kRest = 4;                 // after a try, no machine is dialed for this many times its duration
constexpr int64_t kListedUs = 90'000'000;    // for a controller that came back to list its machines
// Meanwhile it is asked for them so often: it may hear of the end of the connection before only after the new one has begun, and then
// forgets who watches.
constexpr int64_t kWatchAgainUs = 1'000'000;

}  // namespace

Result<ClusterHandle> dial_cluster(ClusterNet& net, const std::string& address, const char* flag, const std::atomic<bool>& stop) {
  SEER_ASSIGN_OR_RETURN(const HostPort at, parse_host_port(flag, address, false));
  const Clock::time_point begin = Clock::now();
  const auto left = [&] { return kDialMax - std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin); };
  while (left().count() > 0 && !stop.load()) {
    auto cluster = net.dial<ClusterHandle>(at.host, at.port, std::min(left(), kTryMax));
    if (cluster.ok()) return cluster;
    if (cluster.error().code == Code::kInvalidArgument) return fail(Code::kInvalidArgument, flag, " ", address, ": ", cluster.error().detail);
    std::this_thread::sleep_for(std::min(left(), kPause));
  }
  if (stop.load()) return fail(Code::kCancelled, "stopped on request");
  return fail(Code::kUnavailable, flag, " ", address, ": no controller answers there, in ",
              std::chrono::round<std::chrono::seconds>(Clock::now() - begin).count(), " s", net.uses_tls() ? ", or its certificate is of another CA" : ", or it wants --tls-cert, --tls-key and --tls-ca");
}

Result<RolloutEntered> ask_to_roll_out(ClusterNet& net, const std::string& address, const ClusterHandle& controller, const EnterRollout& ask) {
  rt::Inbox<> inbox(net.system());
  bool answered = false;
  RolloutEntered entered = inbox.ask<RolloutEntered>(controller, ask, {}, &answered);
  if (!answered) return fail(Code::kUnavailable, "--cluster ", address, ": it does not answer");
  return entered;
}

Result<RolloutEntered> enter_rollout(ClusterNet& net, const std::string& address, const ClusterHandle& controller, const EnterRollout& ask) {
  SEER_ASSIGN_OR_RETURN(RolloutEntered entered, ask_to_roll_out(net, address, controller, ask));
  if (!entered.error.empty())
    return fail(entered.may_enter_later ? Code::kUnavailable : Code::kInvalidArgument, "--cluster ", address, ": ", entered.error);
  return entered;
}

ClusterWatch::ClusterWatch(ClusterNet& net, ClusterHandle controller, Config config, Hooks hooks, EventLog log)
    : net_(net),
      controller_(std::move(controller)),
      config_(std::move(config)),
      hooks_(std::move(hooks)),
      log_(std::move(log)),
      news_(net.system()) {
  subscribe();
}

void ClusterWatch::subscribe() {
  news_.monitor(controller_);
  watch();
}

void ClusterWatch::watch() {
  watch_us_ = now_us();
  rt::post(controller_, WatchCluster{news_.handle()});
}

void ClusterWatch::follow() {
  while (news_.receive(
      0, [&](const NodeJoined& node) { on_joined(node); }, [&](const PartLost& lost) { on_unlisted(lost); },
      [&](const ClusterWeights& weights) {
        if (hooks_.weights) hooks_.weights(weights);
      },
      [&](const rt::down& message) { on_down(message); })) {
  }
  forget_unlisted();
  if (returned_us_ != 0 && has_controller() && now_us() - watch_us_ >= kWatchAgainUs) watch();
  reach_new();
  if (now_us() >= reach_us_) reach_again();
  if (gone_us_ >= 0 && status_.ok() && now_us() >= ask_us_) look_for_controller();
}

void ClusterWatch::on_joined(const NodeJoined& node) {
  if (node.at.node == config_.self) return;
  const auto known = members_.find(node.at.node);
  if (known != members_.end() && known->second.announced == node.handle) {  // the controller repeats it
    known->second.announced = node.handle;  // over the connection of now
    known->second.listed = true;
    return;
  }
  if (known != members_.end()) drop({.node = node.at.node, .instances = {}, .reason = cat("node ", node.at.node, " is gone")});
  members_[node.at.node] = {.at = node.at, .handle = {}, .announced = node.handle, .instances = node.instances};
}

/// The controller has lost the machine. One that is reached from here is kept until that fails too.
void ClusterWatch::on_unlisted(const PartLost& lost) {
  const auto member = members_.find(lost.node);
  if (member == members_.end()) return;
  member->second.listed = false;
  if (!member->second.handle) members_.erase(member);
}

void ClusterWatch::drop(const PartLost& lost) {
  const auto member = members_.extract(lost.node);
  if (!member.empty() && member.mapped().handle) hooks_.left(lost);
}

void ClusterWatch::on_down(const rt::down& message) {
  if (rt::is_source(message, controller_)) {
    gone_us_ = now_us();
    return log_.warn(gone_us_, "controller_lost", {{"address", config_.address}, {"wait_s", config_.wait_s}});
  }
  const auto gone = std::ranges::find_if(members_, [&](const auto& m) { return rt::is_source(message, m.second.handle); });
  if (gone == members_.end()) return;
  const PartLost lost = lost_machine(gone->first, gone->second.instances, message);
  if (!gone->second.listed) return drop(lost);
  gone->second.handle = nullptr;
  try_later(gone->second);
  hooks_.left(lost);
}

void ClusterWatch::reach(Member& member) {
  const bool is_of_controller = rt::process_of(member.announced) == rt::process_of(controller_);
  if (is_of_controller && !has_controller()) return try_later(member);
  const bool is_dialed_here = config_.self == kNoNode || member.at.node < config_.self;
  Result<NodeHandle> handle = member.announced;
  if (is_dialed_here && !is_of_controller) handle = net_.dial<NodeHandle>(member.at.host, member.at.port, kTryMax);
  Status taken = handle.ok() ? hooks_.joined(member.at, *handle, member.instances) : Status(handle.error());
  if (!taken.ok()) {
    try_later(member);
    return log_.warn(now_us(), "node_unreachable", {{"node", member.at.node}, {"error", taken.error()}});
  }
  member.handle = *handle;
  member.pause_us = 0;
  news_.monitor(member.handle);
}

void ClusterWatch::reach_new() {
  for (auto& [id, member] : members_) {
    if (!member.is_new()) continue;
    const int64_t begin_us = now_us();
    reach(member);
    if (now_us() - begin_us > kQuickUs) return;
  }
}

void ClusterWatch::reach_again() {
  Member* next = nullptr;
  for (auto& [id, member] : members_)
    if (!member.handle && !member.is_new() && (next == nullptr || member.try_us < next->try_us)) next = &member;
  const int64_t begin_us = now_us();
  if (next == nullptr || begin_us < next->try_us) return;
  reach(*next);
  const int64_t end_us = now_us();
  reach_us_ = end_us + kRest * (end_us - begin_us);  // a silent host takes its time, in which nobody here gets any news
}

/// A controller that came back does not know of machines that died meanwhile.
void ClusterWatch::forget_unlisted() {
  if (returned_us_ == 0 || now_us() - returned_us_ < kListedUs) return;
  returned_us_ = 0;
  std::erase_if(members_, [](const auto& member) { return !member.second.listed && !member.second.handle; });
}

void ClusterWatch::try_later(Member& member) {
  member.pause_us = std::clamp(2 * member.pause_us, kReachPauseUs, kReachPauseMaxUs);
  member.try_us = now_us() + member.pause_us;
}

void ClusterWatch::look_for_controller() {
  const auto give_up = [this] { status_ = fail(Code::kUnavailable, "the controller at ", config_.address, " is gone"); };
  if (config_.wait_s == 0) return give_up();
  const int64_t begin_us = now_us();
  const HostPort at = *parse_host_port("", config_.address, false);
  auto found = net_.dial<ClusterHandle>(at.host, at.port, kTryMax);
  const Status entered = found.ok() ? hooks_.enter_again(*found) : Status(fail(Code::kUnavailable, "no answer"));
  const int64_t now = now_us();
  ask_us_ = now + std::max(now - begin_us, kPause.count() * 1000);
  if (!entered.ok() && entered.error().code != Code::kUnavailable) {
    status_ = entered;
  } else if (!entered.ok()) {
    if (now - gone_us_ >= config_.wait_s * 1'000'000) give_up();
  } else {
    log_.info(now, "controller_returned", {{"address", config_.address}, {"after_s", (now - gone_us_) / 1'000'000}});
    controller_ = *std::move(found);
    gone_us_ = -1;
    returned_us_ = now;
    for (auto& [id, member] : members_) member.listed = false;
    subscribe();
  }
}

}  // namespace seer
