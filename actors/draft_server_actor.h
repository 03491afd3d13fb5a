// draft_server_actor: one shard of the distributed grouped draft server. It gathers from the instances what its groups have
// written so far, and sends each instance what that one lacks. The instances build the draft trees. One per machine;
// protocols/draft.h says which server has which group.
//
// Nothing waits for it: an instance that gets no answer drafts from what it has. When it dies, its node starts it again empty,
// and the instances' updates and the rollout's token logs fill it.
#pragma once
#include "actors/policy/draft/group_logs.h"
#include "protocols/actors.h"

namespace seer {

struct DraftServerConfig {
  NodeId node;
  GroupLogsConfig logs;
  int64_t answer_tokens_max = 65536;    // in one CstFetched: 256 KiB
  int64_t expire_us = 10'000'000;       // between two checks for groups past their TTL
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
  DraftServerReport report;  // the figures counted here; make_report() adds the others
};

}  // namespace seer
