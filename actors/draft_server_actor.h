// draft_server_actor: one shard of the distributed grouped draft server: keeps what the groups given to it have written so
// far, gathers it from the instances, and tells each what it lacks. Draft trees are grown by the instances. One per
// machine; protocols/draft.h says which groups are whose.
//
// It owes nobody anything: whoever does not hear from it drafts from what it has. When it dies its node starts it again,
// empty, and the instances' fetches and the rollout's logs fill it.
#pragma once
#include "actors/policy/draft/group_logs.h"
#include "protocols/actors.h"

namespace seer {

struct DraftServerConfig {
  NodeId node;
  GroupLogsConfig logs;
  int64_t answer_tokens_max = 65536;    // of one CstFetched: 256 KiB
  int64_t expire_us = 10'000'000;       // between two looks for groups whose TTL is over
};

struct DraftServerActor {
  using handle = DraftServerHandle;
  static constexpr const char* kActorName = "draft_server";

  DraftServerActor(rt::self_ptr<DraftServerActor> self_in, DraftServerConfig config_in);
  handle::behavior_type make_behavior();

  void on_update(const UpdateCst& update);
  void on_fetch(const FetchCst& fetch);
  void on_tick();
  DraftServerReport make_report() const;

  rt::self_ptr<DraftServerActor> self;
  DraftServerConfig config;
  GroupLogs logs;
  DraftServerReport report;  // what has to be counted here
};

}  // namespace seer
