// DraftSync: keeps an instance's drafter in step with the draft servers. Every sync_us it sends each server the tokens that the
// server lacks, and fetches what others wrote in the groups that run here. Part of instance_actor. Single owner, not thread-safe.
//
// Bounded: at most one fetch per server is open; after silence_us it counts as lost. An update or an answer has at most
// message_tokens_max tokens; the rest follows with the next sync. When nothing runs here any more there is no next sync: the
// rest is then sent at once, in as many updates as it takes, and nothing is fetched.
#pragma once
#include <memory>
#include <unordered_map>
#include <vector>

#include "actors/policy/draft/drafter.h"
#include "protocols/actors.h"

namespace seer {

struct DraftSyncConfig {
  int64_t sync_us = 50'000;
  int64_t silence_us = 1'000'000;      // a fetch unanswered for so long is lost
  int64_t message_tokens_max = 65536;  // 256 KiB
};

class DraftSync {
 public:
  DraftSync(DraftSyncConfig config, std::shared_ptr<Drafter> drafter) : config_(config), drafter_(std::move(drafter)) {}

  void set_servers(const DraftServers& servers);
  bool is_due(int64_t now_us) const { return !servers_.empty() && now_us >= due_us_; }
  /// Makes the next sync due at once: other instances may know more of the new chunk's request.
  void chunk_came() { due_us_ = 0; }

  /// `groups`: those that run here, all of which the drafter has learned; none if nothing runs any more. Answers go to `me`.
  void sync(const std::vector<GroupId>& groups, const DraftClient& me, int64_t now_us);
  void fetched(const CstFetched& answer, const DraftClient& me, int64_t now_us);
  /// The rollout is over. REQUIRES: the drafter has forgotten it.
  void forget(RolloutId rollout);

 private:
  struct Server {
    DraftServerUp up;
    int64_t asked_us = kNever;  // kNever: no fetch is open
  };
  static constexpr int64_t kNever = -1;
  size_t shard(GroupId group);
  void send_updates(size_t server);
  void fetch(size_t server, const DraftClient& me, int64_t now_us);

  DraftSyncConfig config_;
  std::shared_ptr<Drafter> drafter_;
  std::vector<Server> servers_;
  std::vector<NodeId> nodes_;    // of servers_
  std::unordered_map<GroupId, size_t> shards_;  // those found since the last sync began
  std::vector<GroupId> groups_;  // of the last sync; empty: nothing runs here
  int64_t due_us_ = 0;
};

}  // namespace seer
