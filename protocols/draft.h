// Draft messages: how the rollout, the instances and the draft servers share what the groups have written so far
// (distributed grouped draft server, paper 3.3; its update_cst, fetch_cst and register_group). Tokens travel, never tree
// nodes: 4 bytes a token, and each instance grows its own draft trees from them.
//
// A draft never changes a response, only how fast it is made. So these messages are not acknowledged, and any of them may
// be lost, late, duplicated or out of order. Tokens are named by request and position. A fetch says which tokens its sender
// knows; from that the server sees what either side lacks. So its clients refill a server that restarted empty.
//
// A group's id names its rollout, and a rollout has one weight version: tokens of two versions are never mixed.
// Cst in a name is the paper's compressed suffix tree of a group. Here it means the tokens that the trees grow from.
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

/// Tokens [0, end) of a request are known.
struct CstEnd {
  uint32_t sample = 0;
  int64_t end = 0;
  SEER_FIELDS(CstEnd, sample, end)
};
/// What the sender knows of a group. It knows nothing of samples that are not listed.
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

/// Starts these groups, empty. The server remembers them until ttl_us after they were last mentioned, and no others.
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
/// Gives a registered group the responses of earlier iterations to its prompt.
struct RegisterPast {
  CstPast past;
  SEER_FIELDS(RegisterPast, past)
};
struct UpdateCst {
  std::vector<CstTokens> parts;
  SEER_FIELDS(UpdateCst, parts)
};
/// Answer to FetchCst: what its sender lacks, and which requests it knows more about than the server.
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
  int64_t crowded_groups = 0;    // dropped to make room
  SEER_FIELDS(DraftServerReport, node, groups, tokens, bytes, appended_tokens, fetched_tokens, fetches, expired_groups,
              crowded_groups)
};

/// Index of the server that has the group. When a server joins or leaves, only its own groups move. REQUIRES: servers is not empty.
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
