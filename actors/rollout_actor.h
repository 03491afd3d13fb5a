// rollout_actor: owns one rollout at one weight version: the token log of every request, the scheduler that
// decides what runs where, the table of open chunks, and the figures of the report. One per rollout.
//
// A chunk goes out as a one-way RunChunk and comes back as one ChunkDone. If an instance dies, is silent for too long, or a
// report of it is missing, its chunks are placed again from the token log; answers of chunks no longer open are ignored. So
// every request is answered exactly once, even if a RunChunk, ChunkProgress or ChunkDone is lost, late or duplicated.
//
// The rollout goes on without an instance that is lost for good (PartLost). When none is left and none can come back, it ends
// with the last reason that a node gave.
//
// It tells instances which draft servers there are, and these of its groups (RolloutDrafts).
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/log.h"
#include "actors/policy/schedule/policies.h"
#include "actors/policy/schedule/rollout_stats.h"
#include "actors/rollout_drafts.h"
#include "actors/rollout_instances.h"
#include "protocols/actors.h"
#include "protocols/token_log.h"

namespace seer {

struct RolloutConfig {
  RolloutId id;                             // also names its groups, chunks and KV
  ChunkSchedulerConfig scheduler;
  WeightVersion version{1};
  uint64_t weights = 0;                     // their checksum: instances with another one do not join. 0: the first instance sets it
  size_t instances_expected = 1;            // starts once this many are up; later, with those that are: after no_instance_us, an open one after 3 s
  int64_t progress_us = 200'000;            // between two progress events
  int64_t chunk_silence_us = 600'000'000;   // a chunk without a report for this long is placed again
  int64_t no_instance_us = 30'000'000;      // with no instance for this long, the rollout fails
  bool machines_may_join = false;           // false: with no instance left, and none that is restarted, it fails at once
  int64_t draft_ttl_us = 600'000'000;       // a draft server forgets a group that it hears nothing about for this long
  int32_t fruitless_max = 0;                // a request fails after this many chunks in a row that ended early without a token; 0: never
  bool cuts_lengths = false;                // max_tokens that no instance has KV for are cut to what one has; false: the group fails
  std::map<InstanceId, int64_t> kv_tokens = {};  // for that: what instances hold that may come back, as RolloutProgress says
  bool open = false;                        // groups may be added, until CloseRollout
  bool tells_commits = false;               // sends the tokens added to every token log (RolloutCommits), not only of streams
  size_t responses_kept_max = 0;            // unacknowledged responses; at this many no chunk starts. 0: none is kept
};

/// What a rollout works on, and whom it talks to. Without a KV pool, `directory` is null.
struct RolloutParts {
  std::vector<GroupSpec> groups;  // of this rollout, by index; the rollout takes them
  ContextHandle context;
  KvDirectoryHandle directory;
  RolloutEvents events;
  std::vector<CstPast> pasts = {};  // past responses of some groups, for drafts
  EventLog log = {};
  std::vector<ResumedRequest> resumed = {};  // requests of `groups`, each once
};

struct RolloutActor {
  using handle = RolloutHandle;
  static constexpr const char* kActorName = "rollout";

  RolloutActor(rt::self_ptr<RolloutActor> self_in, RolloutConfig config_in, RolloutParts parts_in);
  handle::behavior_type make_behavior();

  /// Token log and history of one request.
  struct Request {
    TokenLog tokens;               // empty until it runs
    std::vector<float> logprobs;
    KeptIds kept_ids;
    int64_t computed_tokens = 0;   // tokens whose KV was computed at least once
    int64_t reprefill_tokens = 0;  // tokens whose KV was computed again
    int64_t queue_us = 0, run_us = 0, start_us = -1;  // as in Response; -1: not started
    int64_t first_token_us = 0, cached_tokens = 0;    // as in Response
    int32_t fruitless = 0;                            // its last chunks that ended early without a token
    ChunkId chunk = {};                               // its last one
    bool was_answered = false;                        // by an earlier process
    bool is_cancelled = false;
  };
  struct Group {
    GroupSpec spec = {};                    // without prompt_ids once it is scheduled
    TokenLog prompt;                        // until it is over
    std::vector<Request> requests;          // by sample
    uint32_t open_requests = 0;             // that are not over
    std::vector<InstanceId> ran_on = {};    // where its chunks ran, until it is over
  };
  struct OpenChunk {
    RequestId request;
    InstanceId instance;
    int64_t started_us = 0;
    int64_t heard_us = 0;
    int64_t first_tokens = 0;  // of the output when it started
  };

  void on_instance_up(const InstanceUp& up);
  void on_part_lost(const PartLost& lost);
  void on_draining(const InstancesDraining& leaving);
  void start_when_all_are_up();
  void end_when_none_is_left();
  void start();
  GroupsAdded on_add_groups(AddGroups& add);
  std::string why_refused(const AddGroups& add) const;
  void take_group(GroupSpec spec);
  void schedule_group(Group& group);
  void schedule_postponed();
  bool is_scheduled(GroupId group) const;
  void resume(ResumedRequest& request);
  void leave_out(RequestId request);
  Cancelled on_cancel(GroupId group, std::optional<uint32_t> sample);
  std::string why_not_cancelled(GroupId group, std::optional<uint32_t> sample) const;
  RequestPhase phase_of(RequestId request) const;
  void cancel_waiting(RequestId id);
  void on_progress(const ChunkProgress& progress);
  bool append(const OpenChunk& chunk, const ChunkTokens& part);
  void on_chunk_done(const ChunkDone& done);
  void on_draft_server_up(const DraftServerUp& up);
  void on_draft_server_lost(NodeId node);
  void tell_draft_servers();
  void draft_for(size_t first);
  std::vector<const TokenLog*> token_logs(GroupId group) const;
  void release_kv(KvOwner owner);
  void on_directory_up(const DirectoryUp& up);
  void forget_group(GroupId id);
  void on_instance_lost(InstanceId lost);
  void place_chunks_again(InstanceId lost);
  void refuse_tokens(InstanceId id, WeightVersion version);
  void give_up_instance(InstanceId id);
  void on_tick();
  void place();
  void fail_stuck();
  void place_or_end();
  void run(const Placement& placement);
  void close_chunk(const OpenChunk& chunk, const ChunkDone& done);
  void tell_commits();
  void finish_request(RequestId request, Ending ending);
  void report_progress();
  RolloutSummary summary() const;
  template <class Name, class Handle, class Report>
  void note_report(Name name, const Handle& part, std::map<Name, Report>& before);
  template <class Then>
  void gather_summary(RolloutSummary so_far, Then then);
  rt::result<RolloutSummary> on_report();
  void end(std::string error);

  Group& group_of(GroupId id) { return groups[id.index]; }
  const Group& group_of(GroupId id) const { return groups[id.index]; }
  Request& request_of(RequestId id) { return group_of(id.group).requests[id.sample]; }
  const Request& request_of(RequestId id) const { return group_of(id.group).requests[id.sample]; }
  bool over() const { return ended || (!config.open && open_requests == 0); }

  rt::self_ptr<RolloutActor> self;
  RolloutConfig config;
  RolloutParts parts;
  RolloutDrafts drafts;
  std::unique_ptr<ChunkScheduler> scheduler;
  RolloutInstances instances;
  std::map<InstanceId, InstanceReport> instances_before;  // in a cluster: what they had done when they came up
  std::map<NodeId, DraftServerReport> servers_before;
  std::vector<Group> groups;                        // by index
  std::vector<uint32_t> postponed;                  // groups too large for all instances, while a larger one may come
  std::unordered_map<ChunkId, OpenChunk> open_chunks;  // walked only through sorted copies
  std::vector<FinishRecord> finishes;
  std::map<RequestId, Response> kept;               // not acknowledged
  RolloutCommits commits;                           // not sent yet
  uint64_t next_chunk = 1;
  int64_t open_requests = 0;
  int64_t prompt_tokens = 0;                        // of each group once
  int64_t prefill_tokens = 0;
  int64_t reprefilled_chunks = 0;
  int64_t instances_lost = 0;
  int64_t started_us = 0;
  bool started = false;
  bool ended = false;
};

}  // namespace seer
