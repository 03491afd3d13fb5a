// RequestBuffer: every request of a rollout and its state. Pure data: it knows what happened to a request, not what should
// happen next. Written by the chunk schedulers (through ChunkLedger); rollout_actor reads it for progress and statistics.
// Single owner, not thread-safe.
//
// Invariants:
//  (1) waiting + running + finished == all requests added;
//  (2) a request only goes waiting -> running -> waiting or finished, or waiting -> finished when cancelled, and finishes
//      once;
//  (3) generated_tokens never falls below what it was when the current chunk started.
#pragma once
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "protocols/rollout.h"

namespace seer {

enum class RequestPhase : uint8_t { kWaiting, kRunning, kFinished };

struct RequestState {
  RequestId id;
  RequestPhase phase = RequestPhase::kWaiting;
  bool probe = false;                 // sample 0 of its group
  bool failed = false;                // ended with an error or cancelled, so its full length is not known
  int64_t generated_tokens = 0;       // as far as reported
  int64_t known_tokens = 0;           // response length known beforehand (oracle only); 0: not known
  int64_t submitted = 0;              // index among all requests, in the order they were added
  int64_t waiting_since_us = 0;       // when it was added, or its last chunk ended
  int64_t finished_us = 0;            // set when finished
  InstanceId instance = kNoInstance;  // runs there now, or ran its last chunk there
  NodeId node = kNoNode;              // the machine of `instance`: the nearest copy of its KV
  int64_t chunk_start_tokens = 0;     // generated_tokens when the current chunk started
  int64_t turn_tokens = 0;            // generated in the full chunks of its turn so far; while it waits, above 0: it goes on
  int64_t credit_blocks = 0;          // while running: own KV blocks promised at the start (see ChunkLedger)
  int64_t charged_blocks = 0;         // while running: own KV blocks counted on the instance now
  int32_t chunks = 0;                 // started
  int32_t migrations = 0;             // chunks started on another instance than the one before
  int32_t yields = 0;                 // gave way, KV kept in the pool
  int32_t preemptions = 0;            // gave way, KV dropped

  /// The response is complete, so its length is known.
  bool has_length() const { return phase == RequestPhase::kFinished && !failed; }
};

struct GroupState {
  GroupId id;
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;             // of each response
  int32_t priority = 0;               // as in GroupSpec
  int64_t estimated_tokens = 0;       // length estimate of an unfinished member: max_tokens until a member has finished
  std::vector<RequestState> members;  // by sample
};

struct RequestTotals {
  int64_t waiting = 0, running = 0, finished = 0;
  int64_t generated_tokens = 0;
  int64_t chunks = 0, migrations = 0, yields = 0, preemptions = 0;
};

class RequestBuffer {
 public:
  /// All samples wait from now_us on. REQUIRES: the group is new and has samples.
  void add_group(const GroupSpec& spec, int64_t now_us);
  /// REQUIRES: the request waits.
  void start(RequestId request, InstanceId instance, NodeId node);
  /// REQUIRES: the request runs.
  void progress(RequestId request, int64_t generated_tokens);
  /// REQUIRES: the request runs.
  void end(RequestId request, int64_t generated_tokens, ChunkEnd end, int64_t now_us);
  /// The request's next chunk is the first of a new turn.
  void end_turn(RequestId request) { state(request).turn_tokens = 0; }
  /// The request will not run (again). REQUIRES: it waits.
  void cancel(RequestId request, int64_t now_us);
  /// REQUIRES: the request runs.
  void charge(RequestId request, int64_t credit_blocks, int64_t charged_blocks);
  void set_estimate(GroupId group, int64_t estimated_tokens);

  bool has_group(GroupId group) const { return slots_.contains(group); }
  const GroupState& group(GroupId group) const;
  const RequestState& at(RequestId request) const;
  const std::deque<GroupState>& groups() const { return groups_; }  // in the order they were added
  const RequestTotals& totals() const { return totals_; }

 private:
  RequestState& state(RequestId request);

  std::deque<GroupState> groups_;  // a deque, so that references to requests stay valid while groups are added
  std::unordered_map<GroupId, size_t> slots_;  // index into groups_; only looked up
  RequestTotals totals_;
  int64_t submitted_ = 0;
};

}  // namespace seer
