#include "actors/rollout_drafts.h"

#include <algorithm>
#include <utility>

namespace seer {
namespace {

/// The one of these nodes that has the group.
NodeId home_of(GroupId group, const std::vector<NodeId>& nodes) { return nodes.empty() ? kNoNode : nodes[draft_shard(group, nodes)]; }

}  // namespace

RolloutDrafts::RolloutDrafts(RolloutDraftsConfig config, std::vector<CstPast> pasts, TokenLogs logs) : config_(config), logs_(std::move(logs)) {
  for (CstPast& past : pasts) pasts_.emplace(past.group, std::move(past));
}

DraftServers RolloutDrafts::all() const {
  DraftServers all;
  for (const auto& [node, server] : servers_) all.servers.push_back({node, server});
  return all;
}

std::vector<NodeId> RolloutDrafts::nodes() const {
  std::vector<NodeId> nodes;
  for (const auto& [node, server] : servers_) nodes.push_back(node);
  return nodes;
}

bool RolloutDrafts::server_up(const DraftServerUp& up) {
  const auto known = servers_.find(up.node);
  if (known != servers_.end() && known->second == up.handle) return false;
  const std::vector<NodeId> before = nodes();
  servers_[up.node] = up.handle;
  move_groups(before, up.node);
  return true;
}

void RolloutDrafts::server_lost(NodeId node) {
  const std::vector<NodeId> before = nodes();
  servers_.erase(node);
  move_groups(before, kNoNode);
}

/// Moves groups whose server is another one than among `before`, and gives the server `came` all of its own.
void RolloutDrafts::move_groups(const std::vector<NodeId>& before, NodeId came) {
  const std::vector<NodeId> now = nodes();
  if (now.empty()) return;
  std::map<NodeId, std::vector<GroupId>> moved;
  for (const GroupId group : groups_) {
    const NodeId node = home_of(group, now), had = home_of(group, before);
    if (node == had && node != came) continue;
    moved[node].push_back(group);
    if (const auto old = servers_.find(had); node != had && old != servers_.end()) rt::post(old->second, DropGroup{group});
  }
  for (auto& [node, groups] : moved) give(node, std::move(groups));
}

void RolloutDrafts::add(const std::vector<GroupId>& groups) {
  groups_.insert(groups.begin(), groups.end());
  const std::vector<NodeId> now = nodes();
  if (now.empty()) return;
  std::map<NodeId, std::vector<GroupId>> added;
  for (const GroupId group : groups) added[home_of(group, now)].push_back(group);
  for (auto& [node, own] : added) give(node, std::move(own));
}

void RolloutDrafts::give(NodeId node, std::vector<GroupId> groups) {
  for (const GroupId group : groups) owed_.emplace_back(node, group);
  rt::post(servers_.at(node), RegisterGroups{std::move(groups), config_.ttl_us});
  send_owed();
}

void RolloutDrafts::send_owed() {
  const std::vector<NodeId> now = nodes();
  while (!owed_.empty() && sent_tokens_ < config_.tick_tokens_max) {
    const auto [node, group] = owed_.front();
    owed_.pop_front();
    const auto server = servers_.find(node);
    if (server == servers_.end() || !groups_.contains(group) || home_of(group, now) != node) continue;  // it was lost, dropped or moved meanwhile
    send_past(group, server->second);
    send_tokens(group, server->second);
  }
}

void RolloutDrafts::send_past(GroupId group, const DraftServerHandle& to) {
  const auto [first, last] = pasts_.equal_range(group);
  for (auto past = first; past != last; ++past) {
    for (const auto& response : past->second.responses) sent_tokens_ += std::ssize(response);
    rt::post(to, RegisterPast{past->second});
  }
}

/// No instance could send those of a request that waits.
void RolloutDrafts::send_tokens(GroupId group, const DraftServerHandle& to) {
  const std::vector<const TokenLog*> logs = logs_(group);
  for (uint32_t sample = 0; sample < logs.size(); ++sample) {
    const TokenLog& tokens = *logs[sample];
    for (int64_t at = tokens.prompt_tokens(); at < tokens.size();) {
      const int64_t end = std::min(at + config_.message_tokens_max, tokens.size());
      rt::post(to, UpdateCst{{{group, sample, at - tokens.prompt_tokens(), tokens.tokens(at, end)}}});
      sent_tokens_ += end - at;
      at = end;
    }
  }
}

void RolloutDrafts::drop(GroupId group) {
  pasts_.erase(group);
  if (groups_.erase(group) == 0 || servers_.empty()) return;
  rt::post(servers_.at(home_of(group, nodes())), DropGroup{group});
}

void RolloutDrafts::drop_all() {
  while (!groups_.empty()) drop(*groups_.begin());
}

void RolloutDrafts::tick(int64_t now_us) {
  sent_tokens_ = 0;
  send_owed();
  renew(now_us);
}

void RolloutDrafts::renew(int64_t now_us) {
  const std::vector<NodeId> now = nodes();
  if (now.empty() || now_us - renewed_us_ < config_.ttl_us / 4) return;
  renewed_us_ = now_us;
  std::map<NodeId, UpdateCst> said;  // parts without tokens
  const auto tell = [&](NodeId node) { rt::post(servers_.at(node), std::exchange(said[node], {})); };
  for (const GroupId group : groups_) {
    const NodeId node = home_of(group, now);
    said[node].parts.push_back({group, 0, 0, {}});
    if (said[node].parts.size() >= config_.message_groups_max) tell(node);
  }
  for (const auto& [node, update] : said)
    if (!update.parts.empty()) tell(node);
}

}  // namespace seer
