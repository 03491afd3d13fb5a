// gateway_actor: the front end's side of rollouts. Requests of trainers come one by one and at any time; it makes groups of
// them, and keeps a rollout open at the weights that run, to which the groups are added. It knows nothing of HTTP: a front end
// gives it requests through a GatewayDoor, and gets responses through a GatewayClient.
//
// GROUPS    Requests that name the same group, or that name none and have equal prompts and sampling, become one group if they
//           come within gather_us of each other. If they say how large their group is, the rest of it is awaited for up to
//           group_wait_us. This changes how soon responses come, never what is in them.
// WEIGHTS   A rollout has one weight version. For new weights the open rollout is closed, and ends once its requests have
//           ended as InFlight says. Requests that come meanwhile wait for the next rollout.
// MEMORY    A rollout keeps figures of every response it ever had, so it is closed after rollout_responses, and another one is opened.
//
// Each response that a request asks for is given exactly once, unless the request was cancelled.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/log.h"
#include "actors/rollout_actor.h"
#include "protocols/actors.h"
#include "protocols/workers.h"

namespace seer {

using Ticket = Id<struct TicketTag>;  // of a request: the front end counts them up as requests come

/// A prompt, and how many responses a client wants for it.
struct GatewayRequest {
  Ticket ticket;
  std::string rid;                  // the client's name for it, for abort(); several requests may share one
  std::string group;                // the client's name for its group; empty: none
  uint32_t group_size = 0;          // responses of that group over all of its requests; 0: not known
  std::vector<int32_t> prompt_ids;  // not empty
  SamplingParams sampling;
  std::vector<uint64_t> seeds;      // one per response
  int32_t priority = 0;
  bool streams = false;             // its tokens are told as they come
};

/// Hears what becomes of requests, on the gateway's thread. Must not block. `sample` counts the responses of a request from 0.
struct GatewayClient {
  std::function<void(Ticket, uint32_t sample, Response)> response;
  std::function<void(Ticket, uint32_t sample, CommittedTokens)> tokens;  // of requests that stream
};

/// What the gateway needs of a Fleet. Called on the gateway's thread only.
struct GatewayFleet {
  std::function<RolloutHandle(const RolloutConfig&, const RolloutEvents&)> start_rollout;
  std::function<void(RolloutId)> end_rollout;
  std::function<size_t(const NewWeights&, const WeightsSink&)> update_weights;  // returns how many nodes will answer
  std::function<std::map<NodeId, NodeHandle>()> nodes = {};                     // whose reports are figures of the gateway
};

struct GatewayConfig {
  RolloutConfig rollout;             // of every rollout; id, version and `open` are filled in
  WeightVersion version{1};          // of the weights that run at the start
  int64_t gather_us = 2'000;
  int64_t group_wait_us = 100'000;
  size_t rollout_responses = 32'768; // of one rollout, about; each takes 1 KiB until the rollout is over
  int64_t responses_max = 1'000'000; // asked for and not given yet; a request for more is answered with an error
};

/// What becomes of requests that are not over when generation pauses or weights change.
enum class InFlight : uint8_t {
  kAbort,   // they are answered with the tokens that they have
  kRedo,    // they start anew when generation goes on, which their clients do not notice; those that stream are aborted
  kFinish,  // they run to their ends
};

struct WeightsOrder {
  NewWeights what;
  InFlight in_flight = InFlight::kAbort;
  std::function<void(Status, WeightVersion runs)> done;  // called once, on the gateway's thread
};

/// Figures for load balancers, status pages and metrics.
struct GatewayLoads {
  WeightVersion version;
  bool is_paused = false, is_updating = false;
  int64_t waiting = 0, running = 0;               // responses asked for: not in a rollout yet, and in one
  int64_t on_instances = 0;                       // those of `running` that have an instance, as rollouts reported last
  int64_t oldest_us = 0;                          // the age of the oldest request that is not over
  int64_t finished = 0, aborted = 0, failed = 0;  // since the start, like all fields down to updates_failed
  int64_t at_length = 0;                          // those of `finished` that ended at their max_tokens
  int64_t prompt_tokens = 0;                      // of requests, once each
  int64_t output_tokens = 0;                      // of responses that were given
  int64_t preemptions = 0, migrations = 0;        // of these
  int64_t groups = 0;
  int64_t requests = 0;
  int64_t updates = 0, updates_failed = 0;        // of weights
  int64_t rollouts = 0;                           // that are open, or closed and not over
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
/// What any thread asks of the gateway, in order.
using GatewayDoor = Outbox<std::function<void(GatewayActor&)>>;

struct GatewayActor {
  using handle = rt::iface<rt::oneway<WorkReady>, rt::oneway<Tick>, rt::oneway<Response>, rt::oneway<RolloutProgress>,
                           rt::oneway<RolloutCommits>, rt::oneway<RolloutSummary>, rt::oneway<WeightsUpdated>>;
  static constexpr const char* kActorName = "gateway";

  /// REQUIRES: the door has no wake yet.
  GatewayActor(rt::self_ptr<GatewayActor> self_in, GatewayConfig config_in, GatewayFleet fleet_in, GatewayClient client_in,
               std::shared_ptr<GatewayDoor> door_in, EventLog log_in);
  handle::behavior_type make_behavior();

  // ---- what a front end asks, through the door ----------------------------------------------------------------------------
  void submit(GatewayRequest request);
  /// Nobody waits for it any more: it ends, and is not answered.
  void cancel(Ticket ticket);
  /// Answers the requests whose rid begins with `rid` with the tokens that they have. Returns how many there were.
  int64_t abort(const std::string& rid);
  int64_t abort_all() { return abort(""); }
  /// Requests wait from now on, until go_on().
  void pause(InFlight in_flight);
  void go_on();
  void update_weights(WeightsOrder order);
  /// Forgets the KV and the drafts of what has run. kUnavailable: some requests are not over.
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
  /// Pieces that will be a group.
  struct Gathered {
    std::vector<Piece> pieces;
    uint64_t content = 0;   // hash of what they have in common
    int64_t since_us = 0;
  };
  struct Running {
    Piece piece;
    bool is_redone = false;  // it is being ended, to start anew
  };
  /// A request that is not over.
  struct Open {
    SharedRequest request;
    std::vector<RequestId> runs;  // by sample; kNotRunning: it waits, or is over
    uint32_t left = 0;            // responses that were not given
    int64_t came_us = 0;
    uint32_t aborted = 0;         // responses
    std::string error = {};       // of one that failed
  };
  struct Rollout {
    RolloutHandle handle;
    WeightVersion version;
    int64_t began_us = 0;
    uint32_t groups = 0;
    size_t responses = 0;      // asked for
    size_t ended = 0;          // of these
    int64_t output_tokens = 0;
    int64_t ended_us = 0;      // the last one
    int64_t tail_began_us = 0;
    int64_t on_instances = 0;
    double kv_use_share = 0;
  };
  struct Update {
    WeightsOrder order;
    size_t nodes_left = 0;
    bool has_succeeded = false;  // on some node
    std::string error;           // of some node
  };

  using Waiting = std::map<uint64_t, Gathered>;
  void gather(const Piece& piece);
  Waiting::iterator forget(Waiting::iterator group);
  void sweep();
  bool may_join(const Gathered& group, const GatewayRequest& request) const;
  bool is_due(const Gathered& group) const;
  void place();
  bool is_held() const { return is_paused || update.has_value(); }
  void tick_in(int64_t us);
  Rollout& open_rollout();
  void close_rollout();
  int64_t end_requests(const std::string& rid, InFlight how);
  void end_run(RequestId run);
  void end_in_rollout(RequestId run, int64_t tokens);
  GatewayRollout figures_of(RolloutId id, const Rollout& rollout) const;
  void on_response(Response& response);
  void on_commits(RolloutCommits& commits);
  void on_summary(const RolloutSummary& summary);
  void on_weights(const WeightsUpdated& answer);
  void finish_update(Status status);
  void give(const Piece& piece, Response response);
  void give_unstarted(const Piece& piece, FinishReason finish, std::string error);
  void log_end(const Open& request) const;

  rt::self_ptr<GatewayActor> self;
  const GatewayConfig config;
  const GatewayFleet fleet;
  const GatewayClient client;
  const std::shared_ptr<GatewayDoor> door;
  const EventLog log;
  std::map<Ticket, Open> open;
  Waiting waiting;                                  // in the order in which they came
  std::unordered_map<uint64_t, uint64_t> joinable;  // by content: the last of `waiting` that has it
  std::map<RequestId, Running> running;
  std::map<RolloutId, Rollout> rollouts;
  std::deque<GatewayRollout> rollouts_over;         // the last ones
  RolloutId current;                                // takes groups; 0: none does
  RolloutId last_rollout;
  uint64_t last_gathered = 0;
  size_t cancelled = 0;                             // requests since the last sweep(), whose pieces may be in `waiting`
  WeightVersion version;
  std::optional<Update> update;
  bool is_paused = false;
  bool is_ticking = false;
  int64_t pieces_open = 0;
  GatewayLoads totals;                              // figures that only grow
};

}  // namespace seer
