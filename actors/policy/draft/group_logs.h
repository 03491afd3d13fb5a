// GroupLogs: the token logs of the groups of one draft server. It gathers what instances append, and gives each what it lacks.
// Pure data. Used by draft_server_actor. Single owner, not thread-safe.
//
// Only registered groups are kept, each until its TTL has passed since its last use. When the logs together pass bytes_max,
// whole groups are dropped, the one used longest ago first, down to three quarters of bytes_max. Later messages about a dropped
// group are ignored, and its instances draft from what they have.
//
// Always true: fetch() gives the tokens that were first appended at those positions; nothing depends on the order of appends
// (StreamLog).
#pragma once
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "actors/policy/draft/stream_log.h"
#include "protocols/draft.h"

namespace seer {

struct GroupLogsConfig {
  int64_t bytes_max = int64_t{4} << 30;  // of all groups
  uint32_t samples_max = 4096;           // of a group; tokens of further samples are ignored
  int64_t past_tokens_max = 32768;       // of a group; older responses of earlier iterations are left out
};

class GroupLogs {
 public:
  explicit GroupLogs(GroupLogsConfig config) : config_(config) {}

  /// Starts the groups, with empty logs.
  void register_groups(std::span<const GroupId> groups, int64_t ttl_us, int64_t now_us);
  /// Sets the responses of earlier iterations to the group's prompt. No effect if the group is not registered.
  void set_past(CstPast past);
  void drop(GroupId group);

  /// Returns how many tokens became known. 0 for groups that are not registered. Tokens after a negative one are ignored.
  int64_t append(const CstTokens& part, int64_t now_us);
  /// Adds to `answer` the tokens that the sender of the cursor lacks, at most tokens_max, and the requests of which the sender
  /// has more than is known here. Returns how many tokens it added.
  int64_t fetch(const CstCursor& cursor, int64_t tokens_max, int64_t now_us, CstFetched& answer);
  /// Drops groups whose TTL is over. Returns how many.
  int64_t expire(int64_t now_us);

  size_t group_count() const { return groups_.size(); }
  int64_t token_count() const { return token_count_; }
  int64_t bytes() const { return bytes_; }
  int64_t crowded_groups() const { return crowded_groups_; }

 private:
  struct Group {
    StreamLog log;  // stream i is sample i
    int64_t ttl_us = 0;
    int64_t spoken_us = 0;  // time of the last use
    int64_t bytes = 0;
    CstPast past;  // may be empty
    int64_t past_tokens = 0;
    std::list<GroupId>::iterator order;
  };
  Group* find(GroupId id, int64_t now_us);
  void weigh(Group& group);
  void make_room();

  GroupLogsConfig config_;
  std::unordered_map<GroupId, Group> groups_;  // only looked up
  std::list<GroupId> spoken_;                  // the group used last comes first
  int64_t token_count_ = 0;
  int64_t bytes_ = 0;
  int64_t crowded_groups_ = 0;
};

}  // namespace seer
