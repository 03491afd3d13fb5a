// RolloutDrafts: spreads the groups of a rollout over the draft servers there are. A server that comes, or comes back empty, gets the
// groups that are its own now, with what is known of them. Until a lost one returns, the others have its groups. Part of rollout_actor,
// which tells instances of the servers. Single owner, not thread-safe.
//
// Bounded: between two calls of tick() about tick_tokens_max tokens are sent. The rest is owed: it follows with the next ones.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "protocols/actors.h"
#include "protocols/token_log.h"

namespace seer {

struct RolloutDraftsConfig {
  int64_t ttl_us = 600'000'000;            // a server forgets a group that it hears nothing about for this long
  int64_t message_tokens_max = 65536;      // 256 KiB
  size_t message_groups_max = 4096;        // in one that renews them
  int64_t tick_tokens_max = 4 << 20;       // 16 MiB
};

class RolloutDrafts {
 public:
  using TokenLogs = std::function<std::vector<const TokenLog*>(GroupId)>;  // of a group that was added, by sample

  /// `pasts`: past responses of some groups.
  RolloutDrafts(RolloutDraftsConfig config, std::vector<CstPast> pasts, TokenLogs logs);

  const std::map<NodeId, DraftServerHandle>& servers() const { return servers_; }
  /// As a message for instances.
  DraftServers all() const;

  /// False: it was here already.
  bool server_up(const DraftServerUp& up);
  void server_lost(NodeId node);
  void add(const std::vector<GroupId>& groups);
  /// All its requests are over. Does nothing for a group that was not added.
  void drop(GroupId group);
  void drop_all();
  /// Called every now and then. Says that the groups go on, when it is time to: no instance speaks of a group whose requests all wait.
  void tick(int64_t now_us);

 private:
  std::vector<NodeId> nodes() const;
  void move_groups(const std::vector<NodeId>& before, NodeId came);
  void give(NodeId node, std::vector<GroupId> groups);
  void send_owed();
  void send_past(GroupId group, const DraftServerHandle& to);
  void send_tokens(GroupId group, const DraftServerHandle& to);
  void renew(int64_t now_us);

  RolloutDraftsConfig config_;
  std::multimap<GroupId, CstPast> pasts_;
  TokenLogs logs_;
  std::map<NodeId, DraftServerHandle> servers_;
  std::set<GroupId> groups_;
  std::deque<std::pair<NodeId, GroupId>> owed_;  // the server has the group, and lacks what is known of it
  int64_t sent_tokens_ = 0;                      // since the last tick
  int64_t renewed_us_ = 0;
};

}  // namespace seer
