// RolloutDrafts: spreads the groups of a rollout over the draft servers there are. A server that comes, or comes back empty, gets the
// groups that are its own now, with what is known of them. Until a lost one returns, the others have its groups. Part of rollout_actor,
// which tells instances of the servers. Single owner, not thread-safe.
#pragma once
#include <functional>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "protocols/actors.h"
#include "protocols/token_log.h"

namespace seer {

struct RolloutDraftsConfig {
  int64_t ttl_us = 600'000'000;            // a server forgets a group that it hears nothing about for this long
  int64_t message_tokens_max = 65536;      // 256 KiB
  size_t message_groups_max = 4096;        // in one that renews them
};

class RolloutDrafts {
 public:
  using TokenLogs = std::function<std::vector<const TokenLog*>(GroupId)>;  // of a group that was added, by sample

  /// `pasts`: past responses of some groups.
  RolloutDrafts(RolloutDraftsConfig config, std::vector<CstPast> pasts, TokenLogs logs)
      : config_(config), pasts_(std::move(pasts)), logs_(std::move(logs)) {}

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
  /// Says that the groups go on, when it is time to: no instance speaks of a group whose requests all wait. Called every now and then.
  void renew(int64_t now_us);

 private:
  std::vector<NodeId> nodes() const;
  void move_groups(const std::vector<NodeId>& before, NodeId came);
  void give(NodeId node, std::vector<GroupId> groups);
  void send_tokens(GroupId group, const DraftServerHandle& to);

  RolloutDraftsConfig config_;
  std::vector<CstPast> pasts_;
  TokenLogs logs_;
  std::map<NodeId, DraftServerHandle> servers_;
  std::set<GroupId> groups_;
  int64_t renewed_us_ = 0;
};

}  // namespace seer
