#include "actors/instance/draft_sync.h"

#include <utility>

namespace seer {

void DraftSync::set_servers(const DraftServers& servers) {
  servers_.clear();
  nodes_.clear();
  shards_.clear();
  for (const DraftServerUp& up : servers.servers) {
    servers_.push_back({up});
    nodes_.push_back(up.node);
  }
  due_us_ = 0;
}

void DraftSync::sync(const std::vector<GroupId>& groups, const DraftClient& me, int64_t now_us) {
  due_us_ = now_us + config_.sync_us;
  groups_ = groups;
  shards_.clear();
  for (size_t i = 0; i < servers_.size(); ++i) {
    send_updates(i);
    const bool is_open = servers_[i].asked_us != kNever && now_us - servers_[i].asked_us < config_.silence_us;
    if (!is_open) fetch(i, me, now_us);
  }
}

/// Every group is asked for once per server, so it is computed only once.
size_t DraftSync::shard(GroupId group) {
  const auto [known, is_new] = shards_.try_emplace(group);
  if (is_new) known->second = draft_shard(group, nodes_);
  return known->second;
}

void DraftSync::send_updates(size_t server) {
  do {
    UpdateCst update;
    drafter_->take_updates([&](GroupId group) { return shard(group) == server; }, config_.message_tokens_max, update.parts);
    if (update.parts.empty()) return;
    rt::post(servers_[server].up.handle, std::move(update));
  } while (groups_.empty());
}

void DraftSync::fetch(size_t server, const DraftClient& me, int64_t now_us) {
  FetchCst ask{{}, me};
  for (GroupId group : groups_)
    if (shard(group) == server)
      if (std::optional<CstCursor> cursor = drafter_->cursor(group)) ask.groups.push_back(*std::move(cursor));
  if (ask.groups.empty()) return;
  rt::post(servers_[server].up.handle, std::move(ask));
  servers_[server].asked_us = now_us;
}

void DraftSync::fetched(const CstFetched& answer, const DraftClient& me, int64_t now_us) {
  for (size_t i = 0; i < servers_.size(); ++i) {
    if (nodes_[i] != answer.server) continue;
    servers_[i].asked_us = kNever;
    drafter_->fetched(answer);
    if (groups_.empty()) send_updates(i);
    if (answer.has_more) fetch(i, me, now_us);
  }
}

void DraftSync::forget(RolloutId rollout) {
  std::erase_if(groups_, [&](GroupId group) { return group.rollout == rollout; });
  if (!groups_.empty()) return;  // an open fetch may be for one of these
  for (Server& server : servers_) server.asked_us = kNever;
}

}  // namespace seer
