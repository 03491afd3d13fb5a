// Draft messages: how the rollout, the instances and the draft servers share what the groups have written so far
// (distributed grouped draft server, paper 3.3; its update_cst, fetch_cst and register_group). What travels is tokens, never
// tree nodes: 4 bytes a token, and each instance grows its own draft trees from them.
//
// A draft never changes a response, only how fast it is made. So nothing here is answered for, and all of it may be lost,
// late, doubled or out of order: tokens are named by request and position, and a fetch says which ones its sender knows,
// from which the server tells what either of the two lacks. So a server that was restarted, empty, is filled again by
// those who fetch from it.
//
// A group's id names its rollout, and a rollout has one weight version: tokens of two versions are never taken together.
// Cst in a name: the compressed suffix tree that the paper builds of a group. Here it is the text that the trees grow from.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "protocols/hash.h"
#include "protocols/ids.h"

namespace seer {

/// tokens[i] is the token at `position` + i of the response of request `sample` of the group.
struct CstTokens {
  GroupId group;
  uint32_t sample = 0;
  int64_t position = 0;
  std::vector<int32_t> tokens;
  SEER_FIELDS(CstTokens, group, sample, position, tokens)
};

/// Tokens of a request at [0, end) are known.
struct CstEnd {
  uint32_t sample = 0;
  int64_t end = 0;
  SEER_FIELDS(CstEnd, sample, end)
};
/// What the sender knows of a group; nothing of samples that are not named.
struct CstCursor {
  GroupId group;
  std::vector<CstEnd> ends;
  bool lacks_past = false;
  SEER_FIELDS(CstCursor, group, ends, lacks_past)
};

/// Responses of earlier iterations to the group's prompt, newest first.
struct CstPast {
  GroupId group;
  std::vector<std::vector<int32_t>> responses;
  SEER_FIELDS(CstPast, group, responses)
};

/// These groups are worth remembering, from nothing on, for ttl_us after they were last spoken of. Other groups are not.
struct RegisterGroups {
  std::vector<GroupId> groups;
  int64_t ttl_us = 0;
  SEER_FIELDS(RegisterGroups, groups, ttl_us)
};
/// All requests of the group are answered.
struct DropGroup {
  GroupId group;
  SEER_FIELDS(DropGroup, group)
};
/// What earlier iterations answered to the prompt of a registered group.
struct RegisterPast {
  CstPast past;
  SEER_FIELDS(RegisterPast, past)
};
struct UpdateCst {
  std::vector<CstTokens> parts;
  SEER_FIELDS(UpdateCst, parts)
};
/// Answer to FetchCst: what its sender lacks, and of which requests it knows more than the server.
struct CstFetched {
  NodeId server;
  std::vector<CstTokens> parts;
  std::vector<CstPast> pasts;
  std::vector<CstCursor> wanted;  // send what comes after these ends
  bool has_more = false;          // the answer is full; fetch again
  SEER_FIELDS(CstFetched, server, parts, pasts, wanted, has_more)
};

/// What a draft server did since it started.
struct DraftServerReport {
  NodeId node;
  int64_t groups = 0;            // remembered now
  int64_t tokens = 0;            // remembered now
  int64_t bytes = 0;
  int64_t appended_tokens = 0;   // that were new
  int64_t fetched_tokens = 0;    // sent to instances
  int64_t fetches = 0;
  int64_t expired_groups = 0;    // not mentioned for their TTL
  int64_t crowded_groups = 0;    // dropped for room
  SEER_FIELDS(DraftServerReport, node, groups, tokens, bytes, appended_tokens, fetched_tokens, fetches, expired_groups,
              crowded_groups)
};

/// Which of the servers has the group: where one comes or goes, only its own groups move. REQUIRES: servers is not empty.
inline size_t draft_shard(GroupId group, std::span<const NodeId> servers) {
  size_t best = 0;
  uint64_t best_weight = 0;
  for (size_t i = 0; i < servers.size(); ++i) {
    const uint64_t weight = hash_pair(servers[i].value, group.index);
    if (i == 0 || weight > best_weight) best = i, best_weight = weight;
  }
  return best;
}

}  // namespace seer
