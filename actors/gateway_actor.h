// gateway_actor: connects a front end to rollouts. Trainers send requests one by one and at any time; the gateway gathers them
// into groups and adds these to an open rollout at the current weights. It does not know HTTP: a front end submits requests
// through a GatewayDoor and gets responses through a GatewayClient.
//
// GROUPS    Requests that name the same group, or name none and have equal prompts and sampling, become one group if they come
//           within gather_us of the first. If they give the size of their group, the gateway waits up to group_wait_us for the
//           rest. This changes how soon responses come, never what is in them.
// WEIGHTS   A rollout has one weight version. For new weights the open rollout is closed; it ends when its requests have ended
//           as InFlight says. Requests that come meanwhile wait for the next rollout; those that are for one version alone fail once
//           another runs. Machines may change after their update was given up, and do not go back: once all that were asked have,
//           their weights are used.
// SCHEDULE  When enough responses are open to show what the work is like, the fleet may choose a schedule for it. Those that are in
//           no rollout yet wait for the choice, and all later rollouts follow it.
// MEMORY    A rollout keeps figures of each of its responses. So it is closed after rollout_responses, and a new one is opened.
//
// Each response that a request asks for is given exactly once, unless the request was cancelled.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/log.h"
#include "actors/rollout_actor.h"
#include "actors/weight_updates.h"
#include "protocols/actors.h"
#include "protocols/workers.h"

namespace seer {

using Ticket = Id<struct TicketTag>;  // names a request; the front end counts them up as requests come

/// Who is told of a request's tokens as they come.
enum class TokensTo : uint8_t {
  kNobody,
  kClient,   // each once: it is aborted rather than started anew
  kJournal,  // from the first one again where it starts anew
};

/// What another process had of a response when it died.
struct BegunResponse {
  OutputTokens output;
  WeightVersion version;  // of the weights that made them; with others it starts anew
};

/// A prompt, and how many responses a client wants for it.
struct GatewayRequest {
  Ticket ticket;
  std::string rid;                  // the client's name for it, for abort(); several requests may share it
  std::string group;                // the client's name for its group; empty: none
  uint32_t group_size = 0;          // responses of the whole group, over all of its requests; 0: not known
  std::vector<int32_t> prompt_ids;  // not empty
  SamplingParams sampling;
  std::vector<uint64_t> seeds;      // one per response
  int32_t priority = 0;
  std::optional<WeightVersion> version = {};  // it may run with these weights alone; none: with any
  TokensTo tokens_to = TokensTo::kNobody;
  std::vector<BegunResponse> begun = {};  // by response, or empty
  int64_t length_hint = 0;                // as in GroupSpec
};

/// Callbacks on the gateway's thread. Must not block. `sample`: index of the response in its request.
struct GatewayClient {
  std::function<void(Ticket, uint32_t sample, Response)> response;
  std::function<void(Ticket, uint32_t sample, CommittedTokens, WeightVersion)> tokens;  // as the request's tokens_to says
  /// All rollouts from now on have this version; `name` is that of its order. May be empty.
  std::function<void(WeightVersion, const std::string& name)> runs = {};
};

/// How rollouts are scheduled, and the reason, for the log.
struct GatewaySchedule {
  ChunkSchedulerConfig scheduler;
  std::string why;
};

/// The parts of a Fleet that the gateway uses. Called on the gateway's thread only.
struct GatewayFleet {
  std::function<RolloutHandle(const RolloutConfig&, const RolloutEvents&)> start_rollout;
  std::function<void(RolloutId)> end_rollout;
  std::function<std::vector<NodeId>(const NewWeights&, const WeightsSink&)> update_weights;  // returns the nodes that will answer
  std::function<void(const ClusterWeights&)> weights_are = {};  // all rollouts from now on have these; may be empty
  std::function<void(const WeightsUpdated&)> changed_late = {};  // a machine answered an update after its end; may be empty
  std::function<RolloutId()> next_rollout = {};                 // an id for one; 0: there is none now. Empty: 1, 2, ...
  /// Finds out how work like these groups is best scheduled, which may take seconds, and calls `then` once, on any thread.
  /// Empty: all rollouts are scheduled as GatewayConfig says.
  std::function<void(std::vector<GroupSpec> like, std::function<void(GatewaySchedule)> then)> choose_schedule = {};
  std::function<std::map<NodeId, NodeHandle>()> nodes = {};  // their reports are figures of the gateway
};

struct GatewayConfig {
  RolloutConfig rollout;             // of every rollout; scheduler, id, version, weights, `open` and what lengths are cut to are filled in
  WeightVersion version{1};          // of the weights at the start
  uint64_t weights = 0;              // checksum of these (ClusterIdentity); 0: any
  int64_t gather_us = 2'000;
  int64_t group_wait_us = 100'000;
  size_t rollout_responses = 32'768; // of one rollout, about; each takes 1 KiB until the rollout is over
  int64_t choose_responses = 16;     // a schedule is chosen when this many responses are open
  int64_t update_us_max = 600'000'000; // for an update, after requests that may finish; it fails for machines that have not answered by then
  int64_t idle_us = 0;               // a rollout without requests ends after this long: until then its machines keep their weights. 0: never
  int64_t responses_max = 1'000'000; // requested and not given yet; a request for more is answered with an error
};

/// What happens to requests that are not over when generation pauses or weights change.
enum class InFlight : uint8_t {
  kAbort,   // answered with the tokens that they have
  kRedo,    // started again when generation goes on, unseen by their clients; requests with TokensTo::kClient are aborted
  kFinish,  // run to their ends
};

struct WeightsOrder {
  NewWeights what;
  std::string name = {};  // that the client gave to them; empty: none
  InFlight in_flight = InFlight::kAbort;
  std::function<void(Status)> done;  // called once, on the gateway's thread
};

/// Figures for load balancers, status pages and metrics.
struct GatewayLoads {
  WeightVersion version;
  bool is_paused = false, is_updating = false;
  int64_t waiting = 0, running = 0;               // responses not yet given: outside of a rollout, and in one
  int64_t on_instances = 0;                       // those of `running` that have an instance, as rollouts reported last
  int64_t oldest_us = 0;                          // age of the oldest request that is not over
  int64_t finished = 0, aborted = 0, failed = 0;  // since the start, like all fields down to updates_failed
  int64_t at_length = 0;                          // those of `finished` that ended at their max_tokens
  int64_t prompt_tokens = 0;                      // of requests, once each
  int64_t output_tokens = 0;                      // of responses that were given
  int64_t preemptions = 0, migrations = 0;        // of these
  int64_t groups = 0;
  int64_t requests = 0;
  int64_t updates = 0, updates_failed = 0;        // of weights
  int64_t rollouts = 0;                           // not over now
  double kv_use_share = 0;                        // of all instances' KV
};

/// A rollout that runs, or one of the last that are over.
struct GatewayRollout {
  RolloutId id;
  WeightVersion version;
  bool is_over = false;
  int64_t responses = 0, ended = 0;  // asked for, and those of them that have ended
  int64_t output_tokens = 0;         // of those
  int64_t busy_us = 0;               // from its first request until its last response, or until now while something runs
  int64_t tail_us = 0;               // the last part of it, in which no more were asked for and 90 % had ended
  std::string error;                 // why it ended early; empty: it did not
};
struct GatewayReport {
  GatewayLoads loads;
  std::vector<GatewayRollout> rollouts;  // the last ones, by id
  std::vector<NodeReport> nodes;         // those that answered, by name
};

struct GatewayActor;
/// Calls from any thread to the gateway, in order.
using GatewayDoor = Outbox<std::function<void(GatewayActor&)>>;

struct GatewayActor {
  using handle = rt::iface<rt::oneway<WorkReady>, rt::oneway<Tick>, rt::oneway<Response>, rt::oneway<RolloutProgress>,
                           rt::oneway<RolloutCommits>, rt::oneway<RolloutSummary>, rt::oneway<WeightsUpdated>>;
  static constexpr const char* kActorName = "gateway";

  /// REQUIRES: the door has no wake yet.
  GatewayActor(rt::self_ptr<GatewayActor> self_in, GatewayConfig config_in, GatewayFleet fleet_in, GatewayClient client_in,
               std::shared_ptr<GatewayDoor> door_in, EventLog log_in);
  handle::behavior_type make_behavior();

  // ---- calls of a front end, through the door -----------------------------------------------------------------------------
  void submit(GatewayRequest request);
  /// Ends a request that nobody waits for any more. It is not answered.
  void cancel(Ticket ticket);
  /// Answers the requests whose rid begins with `rid` with the tokens that they have. Returns how many there were.
  int64_t abort(const std::string& rid);
  /// The same for these requests.
  int64_t abort(const std::set<Ticket>& tickets);
  int64_t abort_all() { return abort(""); }
  /// Makes new requests wait until go_on(). `idle` is called once nothing runs, or by go_on() if that comes before.
  void pause(InFlight in_flight, std::function<void()> idle = [] {});
  void go_on();
  /// Nobody will call go_on() any more: if it is paused, requests that wait for it end, but those that a journal keeps.
  void drain();
  void update_weights(WeightsOrder order);
  /// The node will not answer any more. `in_order`: it left as it should, and is not waited for.
  void lose_node(NodeId node, bool in_order = false);
  /// The machines have these weights, whoever changed them.
  void follow_weights(const ClusterWeights& now);
  /// Forgets the KV and the drafts of all past requests; those that wait have none. Errors: kUnavailable if some request runs.
  Status flush();
  GatewayLoads loads() const;
  /// Asks the machines too, so `then` is called later, on the gateway's thread.
  void report(std::function<void(GatewayReport)> then) const;

  // ---- state --------------------------------------------------------------------------------------------------------------
  using SharedRequest = std::shared_ptr<const GatewayRequest>;
  /// One response of a request.
  struct Piece {
    SharedRequest request;
    uint32_t sample = 0;
  };
  /// Pieces that will become a group.
  struct Gathered {
    std::vector<Piece> pieces;
    uint64_t content = 0;   // hash of what they have in common
    int64_t since_us = 0;
  };
  struct Running {
    Piece piece;
    bool is_ending = false;  // cancelled in its rollout
    bool is_redone = false;  // then it starts again
  };
  /// A request that is not over.
  struct Open {
    SharedRequest request;
    std::vector<RequestId> runs;  // by sample; kNotRunning: waits or is over
    uint32_t left = 0;            // responses not given yet
    int64_t came_us = 0;
    uint32_t aborted = 0;         // responses
    std::string error = {};       // of one that failed
  };
  struct Rollout {
    RolloutHandle handle;
    WeightVersion version;
    int64_t began_us = 0;
    uint32_t groups = 0;
    size_t responses = 0;      // requested
    size_t ended = 0;          // of these
    int64_t output_tokens = 0;
    int64_t ended_us = 0;      // the last one
    int64_t tail_began_us = 0;
    int64_t on_instances = 0;
    double kv_use_share = 0;
  };

  enum class Choice : uint8_t { kOpen, kAsked, kMade };

  using Waiting = std::map<uint64_t, Gathered>;
  void gather(const Piece& piece);
  Waiting::iterator forget(Waiting::iterator group);
  void sweep();
  bool may_join(const Gathered& group, const GatewayRequest& request) const;
  bool is_due(const Gathered& group) const;
  void place();
  bool is_held() const { return is_paused || weights.is_under_way() || choice == Choice::kAsked; }
  bool should_choose() const;
  void choose_schedule();
  void on_schedule(GatewaySchedule schedule);
  void tick_in(int64_t us);
  void on_tick(const Tick& tick);
  void note_kv(const std::vector<InstanceKv>& all);
  std::map<InstanceId, int64_t> kv_there() const;
  bool may_open_rollout();
  Rollout& open_rollout();
  void close_rollout();
  void watch_idle();
  void close_idle_rollout();
  using RequestTest = std::function<bool(const GatewayRequest&)>;
  int64_t end_requests(const RequestTest& is_meant, InFlight how);
  std::vector<Piece> take_waiting(const RequestTest& is_meant);
  int64_t end_waiting(const RequestTest& is_meant);
  void end_early(RequestId id, Running& run, InFlight how);
  void end_run(RequestId run);
  void end_in_rollout(RequestId run, int64_t tokens);
  GatewayRollout figures_of(RolloutId id, const Rollout& rollout) const;
  void on_response(Response& response);
  void on_commits(RolloutCommits& commits);
  void on_summary(const RolloutSummary& summary);
  void on_weights(const WeightsUpdated& answer);
  void apply_weights();
  void run_with(const WeightUpdates::Run& run);
  void finish_update(const WeightUpdates::Ended& ended);
  void start_update_time();
  void see_if_idle();
  void give(const Piece& piece, Response response);
  void give_unstarted(const Piece& piece, FinishReason finish, std::string error);
  bool is_stale(const GatewayRequest& request) const { return request.version.value_or(weights.version()) != weights.version(); }
  void give_stale(const Piece& piece);
  void log_end(const Open& request) const;

  rt::self_ptr<GatewayActor> self;
  const GatewayConfig config;
  const GatewayFleet fleet;
  const GatewayClient client;
  const std::shared_ptr<GatewayDoor> door;
  const EventLog log;
  std::map<Ticket, Open> open;
  std::set<std::pair<std::string, Ticket>> by_rid;  // of `open`
  Waiting waiting;                                  // in the order in which they came
  std::unordered_map<uint64_t, uint64_t> joinable;  // content -> key of the last group in `waiting` with it
  std::map<RequestId, Running> running;
  std::map<RolloutId, Rollout> rollouts;
  std::deque<GatewayRollout> rollouts_over;         // the last ones
  RolloutId current;                                // the rollout that takes groups; 0: none
  RolloutId next;                                   // id of the next rollout; 0: not known
  RolloutId last_rollout;
  struct KnownKv {
    int64_t tokens = 0;
    std::optional<int64_t> missing_us = {};  // since when the instance is not up
  };
  std::map<InstanceId, KnownKv> kv_tokens;          // that instances hold, as the last rollout said
  uint64_t last_gathered = 0;
  size_t cancelled = 0;                             // requests cancelled since the last sweep()
  WeightUpdates weights;
  std::function<void(Status)> update_done;          // of the update that is under way
  ChunkSchedulerConfig scheduler;                   // of rollouts that open
  Choice choice;                                    // of that
  bool is_paused = false;
  std::vector<std::function<void()>> when_idle;     // of those that paused
  bool is_ticking = false, watches_idle = false;
  int64_t pieces_open = 0;
  GatewayLoads totals;                              // figures that only grow
};

}  // namespace seer
