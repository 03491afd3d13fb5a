#include "actors/gateway_actor.h"

#include <algorithm>
#include <utility>

#include "actors/node_actor.h"
#include "protocols/hash.h"

namespace seer {
namespace {

constexpr RequestId kNotRunning{};  // rollouts of a gateway have ids from 1
constexpr size_t kCancelledMax = 1024;
constexpr size_t kRolloutsKept = 16;
/// Kinds of a Tick.
enum TickKind : uint32_t { kPlace, kLookIfIdle, kEndUpdate };

/// A hash of what the requests of a group have in common.
uint64_t content_of(const GatewayRequest& request) {
  uint64_t hash = hash_text(request.group);
  for (const int32_t id : request.prompt_ids) hash = hash_pair(hash, static_cast<uint64_t>(id));
  hash = hash_pair(hash, static_cast<uint64_t>(request.priority));
  return hash_pair(hash, static_cast<uint64_t>(request.sampling.max_tokens));
}

/// Whether 90 % of the responses have ended.
bool is_tail(size_t ended, size_t responses) { return ended * 10 >= responses * 9; }

GroupSpec group_of(const std::vector<GatewayActor::Piece>& pieces) {
  const GatewayRequest& first = *pieces.front().request;
  GroupSpec group{.id = {},
                  .prompt_ids = first.prompt_ids,
                  .samples = static_cast<uint32_t>(pieces.size()),
                  .sampling = first.sampling,
                  .seeds = {},
                  .known_tokens = {},
                  .priority = first.priority,
                  .streams = first.tokens_to != TokensTo::kNobody,
                  .is_live = first.tokens_to == TokensTo::kClient,
                  .length_hint = first.length_hint};
  for (const auto& [request, sample] : pieces) group.seeds.push_back(request->seeds[sample]);
  return group;
}

/// What was begun of the pieces with these weights, for the group at this place of AddGroups.
void add_begun(const std::vector<GatewayActor::Piece>& pieces, WeightVersion version, AddGroups& add) {
  const GroupId group{static_cast<uint32_t>(add.groups.size())};
  for (uint32_t sample = 0; sample < pieces.size(); ++sample) {
    const auto& [request, piece] = pieces[sample];
    if (request->begun.empty()) continue;
    const BegunResponse& begun = request->begun[piece];
    if (begun.version == version && !begun.output.empty()) add.resumed.push_back({{group, sample}, begun.output});
  }
}

bool is_any(const GatewayRequest&) { return true; }

}  // namespace

GatewayActor::GatewayActor(rt::self_ptr<GatewayActor> self_in, GatewayConfig config_in, GatewayFleet fleet_in,
                           GatewayClient client_in, std::shared_ptr<GatewayDoor> door_in, EventLog log_in)
    : self(self_in),
      config(std::move(config_in)),
      fleet(std::move(fleet_in)),
      client(std::move(client_in)),
      door(std::move(door_in)),
      log(std::move(log_in)),
      weights(config.version, config.weights, config.update_us_max),
      scheduler(config.rollout.scheduler),
      choice(fleet.choose_schedule ? Choice::kOpen : Choice::kMade) {
  door->set_wake(rt::waker<GatewayActor>(self, [](const handle& me) { rt::post(me, WorkReady{}); }));
}

GatewayActor::handle::behavior_type GatewayActor::make_behavior() {
  rt::post(handle{self}, WorkReady{});  // handles calls that came before set_wake()
  return {
      [this](const WorkReady&) {
        for (auto& work : door->take()) work(*this);
        place();
      },
      [this](const Tick& tick) { on_tick(tick); },
      [this](Response& response) { on_response(response); },
      [this](const RolloutProgress& progress) {
        const auto at = rollouts.find(progress.rollout);
        if (at == rollouts.end()) return;
        at->second.on_instances = progress.running;
        at->second.kv_use_share = progress.kv_use_share;
        if (progress.rollout != last_rollout) return;
        note_kv(progress.kv);
      },
      [this](RolloutCommits& commits) { on_commits(commits); },
      [this](const RolloutSummary& summary) { on_summary(summary); },
      [this](const WeightsUpdated& answer) { on_weights(answer); },
  };
}

void GatewayActor::note_kv(const std::vector<InstanceKv>& all) {
  std::map<InstanceId, KnownKv> now;
  for (const InstanceKv& kv : all) {
    KnownKv& known = now[kv.instance] = {.tokens = kv.tokens};
    if (kv.is_up) continue;
    const auto before = kv_tokens.find(kv.instance);
    known.missing_us = before == kv_tokens.end() ? std::nullopt : before->second.missing_us;
    if (!known.missing_us) known.missing_us = rt::now_us(self);
  }
  kv_tokens = std::move(now);
}

/// Without instances that are not waited for any more.
std::map<InstanceId, int64_t> GatewayActor::kv_there() const {
  std::map<InstanceId, int64_t> there;
  for (const auto& [id, kv] : kv_tokens)
    if (!kv.missing_us || rt::now_us(self) - *kv.missing_us < kMissedUs) there[id] = kv.tokens;
  return there;
}

void GatewayActor::on_tick(const Tick& tick) {
  switch (tick.kind) {
    case kPlace: is_ticking = false; break;
    case kLookIfIdle: return close_idle_rollout();
    case kEndUpdate: weights.end_in_time(rt::now_us(self)); return apply_weights();
  }
  place();
}

// ---- requests come ---------------------------------------------------------------------------------------------------------

void GatewayActor::submit(GatewayRequest asked) {
  const auto request = std::make_shared<const GatewayRequest>(std::move(asked));
  const auto samples = static_cast<uint32_t>(request->seeds.size());
  ++totals.requests;
  totals.prompt_tokens += std::ssize(request->prompt_ids);
  const bool is_full = pieces_open + samples > config.responses_max;
  open.emplace(request->ticket, Open{request, std::vector<RequestId>(samples, kNotRunning), samples, rt::now_us(self)});
  by_rid.emplace(request->rid, request->ticket);
  pieces_open += samples;
  for (uint32_t sample = 0; sample < samples; ++sample) {
    if (is_full)
      give_unstarted({request, sample}, FinishReason::kError, cat("the server has ", config.responses_max, " responses open, which is its limit"));
    else
      gather({request, sample});
  }
}

void GatewayActor::gather(const Piece& piece) {
  const GatewayRequest& request = *piece.request;
  if (is_stale(request)) return give_stale(piece);
  const uint64_t content = content_of(request);
  const auto known = joinable.find(content);
  if (known != joinable.end() && may_join(waiting.at(known->second), request)) {
    waiting.at(known->second).pieces.push_back(piece);
    return;
  }
  waiting.emplace(++last_gathered, Gathered{{piece}, content, rt::now_us(self)});
  joinable[content] = last_gathered;
}

bool GatewayActor::may_join(const Gathered& group, const GatewayRequest& request) const {
  const GatewayRequest& first = *group.pieces.front().request;
  const bool has_room = first.group_size == 0 || group.pieces.size() < first.group_size;
  return has_room && first.group == request.group && first.group_size == request.group_size && first.priority == request.priority &&
         first.tokens_to == request.tokens_to && first.sampling == request.sampling && first.prompt_ids == request.prompt_ids;
}

bool GatewayActor::is_due(const Gathered& group) const {
  const uint32_t size = group.pieces.front().request->group_size;
  if (size > 0 && group.pieces.size() >= size) return true;
  return rt::now_us(self) - group.since_us >= (size > 0 ? config.group_wait_us : config.gather_us);
}

GatewayActor::Waiting::iterator GatewayActor::forget(Waiting::iterator group) {
  const auto last = joinable.find(group->second.content);
  if (last != joinable.end() && last->second == group->first) joinable.erase(last);
  return waiting.erase(group);
}

/// Removes waiting pieces of requests that are over.
void GatewayActor::sweep() {
  cancelled = 0;
  for (auto it = waiting.begin(); it != waiting.end();) {
    std::erase_if(it->second.pieces, [&](const Piece& piece) { return !open.contains(piece.request->ticket); });
    it = it->second.pieces.empty() ? forget(it) : std::next(it);
  }
}

/// Adds groups that are due to the rollout.
void GatewayActor::place() {
  if (is_held()) return;
  if (cancelled > 0) sweep();
  if (should_choose()) return choose_schedule();
  if (waiting.empty()) return;
  AddGroups add;
  RolloutHandle to;
  const auto send = [&] {
    if (!add.groups.empty()) rt::post(to, std::exchange(add, {}));
  };
  for (auto it = waiting.begin(); it != waiting.end();) {
    const Gathered& group = it->second;
    if (!is_due(group)) {
      ++it;
      continue;
    }
    if (current != RolloutId{} && rollouts.at(current).responses >= config.rollout_responses) {
      send();
      close_rollout();
    }
    if (!may_open_rollout()) break;
    Rollout& rollout = open_rollout();
    to = rollout.handle;
    const GroupId id{rollout.groups++, current};
    rollout.responses += group.pieces.size();
    rollout.tail_began_us = is_tail(rollout.ended, rollout.responses) ? rt::now_us(self) : 0;
    for (uint32_t sample = 0; sample < group.pieces.size(); ++sample) {
      const Piece& piece = group.pieces[sample];
      running.emplace(RequestId{id, sample}, Running{piece});
      open.at(piece.request->ticket).runs[piece.sample] = {id, sample};
    }
    add_begun(group.pieces, rollout.version, add);
    add.groups.push_back(group_of(group.pieces));
    ++totals.groups;
    it = forget(it);
  }
  send();
  if (!waiting.empty()) tick_in(config.gather_us);
}

bool GatewayActor::should_choose() const {
  return choice == Choice::kOpen && pieces_open >= config.choose_responses;
}

void GatewayActor::choose_schedule() {
  choice = Choice::kAsked;
  std::vector<GroupSpec> like;
  for (const auto& [ticket, asked] : open) {
    like.push_back(group_of({{asked.request, 0}}));
    like.back().samples = static_cast<uint32_t>(asked.runs.size());
  }
  fleet.choose_schedule(std::move(like), [door = door](GatewaySchedule schedule) {
    door->put([schedule = std::move(schedule)](GatewayActor& gateway) mutable { gateway.on_schedule(std::move(schedule)); });
  });
}

void GatewayActor::on_schedule(GatewaySchedule schedule) {
  choice = Choice::kMade;
  scheduler = std::move(schedule.scheduler);
  log.info(rt::now_us(self), "policy_chosen",
           {{"policy", scheduler.policy}, {"running_max", scheduler.running_max}, {"why", schedule.why}});
  close_rollout();
}

void GatewayActor::tick_in(int64_t us) {
  if (std::exchange(is_ticking, true)) return;
  rt::tell_after(self, us, handle{self}, Tick{kPlace});
}

bool GatewayActor::may_open_rollout() {
  if (current != RolloutId{} || next != RolloutId{}) return true;
  next = fleet.next_rollout ? fleet.next_rollout() : RolloutId{last_rollout.value + 1};
  return next != RolloutId{};
}

/// REQUIRES: it may.
GatewayActor::Rollout& GatewayActor::open_rollout() {
  if (current != RolloutId{}) return rollouts.at(current);
  current = last_rollout = std::exchange(next, {});
  RolloutConfig rollout = config.rollout;
  rollout.scheduler = scheduler;
  rollout.id = current;
  rollout.version = weights.version();
  rollout.weights = weights.weights();
  rollout.open = true;
  rollout.cuts_lengths = true;
  rollout.kv_tokens = kv_there();
  Rollout opened{.handle = fleet.start_rollout(rollout, handle{self}), .version = rollout.version, .began_us = rt::now_us(self)};
  return rollouts.emplace(current, std::move(opened)).first->second;
}

/// The rollout ends when its requests are over.
void GatewayActor::close_rollout() {
  if (current == RolloutId{}) return;
  rt::post(rollouts.at(current).handle, CloseRollout{});
  current = {};
}

void GatewayActor::watch_idle() {
  if (config.idle_us == 0 || current == RolloutId{} || !running.empty() || std::exchange(watches_idle, true)) return;
  rt::tell_after(self, config.idle_us, handle{self}, Tick{kLookIfIdle});
}

/// Machines change their weights only when no rollout uses them, and another process may wait for that.
void GatewayActor::close_idle_rollout() {
  watches_idle = false;
  if (current == RolloutId{} || !running.empty()) return;
  if (rt::now_us(self) - rollouts.at(current).ended_us < config.idle_us) return watch_idle();
  close_rollout();
}

// ---- responses ---------------------------------------------------------------------------------------------------------------

/// REQUIRES: it was one of `running`.
void GatewayActor::end_in_rollout(RequestId run, int64_t tokens) {
  const auto at = rollouts.find(run.group.rollout);
  if (at == rollouts.end()) return;
  Rollout& rollout = at->second;
  rollout.ended_us = rt::now_us(self);
  rollout.output_tokens += tokens;
  if (is_tail(++rollout.ended, rollout.responses) && rollout.tail_began_us == 0) rollout.tail_began_us = rollout.ended_us;
}

void GatewayActor::on_response(Response& response) {
  auto node = running.extract(response.request);
  if (node.empty()) return;  // it was cancelled
  const Running& run = node.mapped();
  end_in_rollout(response.request, std::ssize(response.output.ids));
  open.at(run.piece.request->ticket).runs[run.piece.sample] = kNotRunning;
  if (run.is_redone && response.finish == FinishReason::kAborted) {
    gather(run.piece);
    place();
  } else {
    give(run.piece, std::move(response));
  }
  see_if_idle();
}

void GatewayActor::give(const Piece& piece, Response response) {
  const auto at = open.find(piece.request->ticket);
  switch (response.finish) {
    case FinishReason::kAborted: ++totals.aborted, ++at->second.aborted; break;
    case FinishReason::kError: ++totals.failed, at->second.error = response.error; break;
    case FinishReason::kLength: ++totals.at_length; [[fallthrough]];
    default: ++totals.finished; break;
  }
  // Rollouts do not know how long it waited here before.
  const int64_t waited_us = rt::now_us(self) - at->second.came_us - response.queue_us - response.run_us;
  if (waited_us > 0) response.queue_us += waited_us;
  if (waited_us > 0 && response.first_token_us > 0) response.first_token_us += waited_us;
  totals.output_tokens += std::ssize(response.output.ids);
  totals.preemptions += response.preemptions;
  totals.migrations += response.migrations;
  --pieces_open;
  if (--at->second.left == 0) {
    log_end(at->second);
    by_rid.erase({at->second.request->rid, at->first});
    open.erase(at);
  }
  client.response(piece.request->ticket, piece.sample, std::move(response));
}

/// A line for a request that did not end as it was to.
void GatewayActor::log_end(const Open& request) const {
  const GatewayRequest& asked = *request.request;
  if (!request.error.empty())
    log.info(rt::now_us(self), "request_failed", {{"ticket", asked.ticket}, {"rid", asked.rid}, {"error", request.error}});
  else if (request.aborted > 0)
    log.info(rt::now_us(self), "request_aborted",
             {{"ticket", asked.ticket}, {"rid", asked.rid}, {"aborted", request.aborted}, {"responses", asked.seeds.size()}});
}

void GatewayActor::give_unstarted(const Piece& piece, FinishReason finish, std::string error) {
  Response response;
  response.seed = piece.request->seeds[piece.sample];
  response.finish = finish;
  response.error = std::move(error);
  response.version = weights.version();
  give(piece, std::move(response));
}

void GatewayActor::give_stale(const Piece& piece) {
  give_unstarted(piece, FinishReason::kError, cat("it is for weight version ", *piece.request->version, " alone, and version ", weights.version(), " runs"));
}

void GatewayActor::on_commits(RolloutCommits& commits) {
  for (CommittedTokens& part : commits.parts) {
    const auto run = running.find(part.request);
    if (run == running.end() || run->second.piece.request->tokens_to == TokensTo::kNobody) continue;
    const Piece& piece = run->second.piece;
    client.tokens(piece.request->ticket, piece.sample, std::move(part), rollouts.at(run->first.group.rollout).version);
  }
}

/// A rollout is over. If it ended early, its remaining requests are answered with its error; but where no machine has its weights any
/// more they start again with those of now.
void GatewayActor::on_summary(const RolloutSummary& summary) {
  const auto over = rollouts.find(summary.rollout);
  if (over == rollouts.end()) return;
  rollouts_over.push_back(figures_of(over->first, over->second));
  rollouts_over.back().is_over = true;
  rollouts_over.back().error = summary.error;
  if (rollouts_over.size() > kRolloutsKept) rollouts_over.pop_front();
  const bool is_outdated = over->second.version < weights.version();
  rollouts.erase(over);
  fleet.end_rollout(summary.rollout);
  if (current == summary.rollout) current = {};
  std::vector<Running> lost;
  const auto first = running.lower_bound(RequestId{{0, summary.rollout}, 0});
  auto end = first;
  for (; end != running.end() && end->first.group.rollout == summary.rollout; ++end) lost.push_back(end->second);
  running.erase(first, end);
  for (const Running& run : lost) {
    const Piece& piece = run.piece;
    open.at(piece.request->ticket).runs[piece.sample] = kNotRunning;
    const bool may_start_again = is_outdated && !run.is_ending && piece.request->tokens_to != TokensTo::kClient;
    if (run.is_redone || may_start_again)
      gather(piece);
    else
      give_unstarted(piece, FinishReason::kError, summary.error.empty() ? "the rollout has ended" : summary.error);
  }
  place();
  see_if_idle();
}

// ---- requests end early --------------------------------------------------------------------------------------------------------

void GatewayActor::end_run(RequestId run) {
  const auto rollout = rollouts.find(run.group.rollout);
  if (rollout != rollouts.end()) rt::post(rollout->second.handle, CancelRequest{run});
}

void GatewayActor::cancel(Ticket ticket) {
  const auto node = open.extract(ticket);
  if (node.empty()) return;
  by_rid.erase({node.mapped().request->rid, ticket});
  for (const RequestId run : node.mapped().runs) {
    if (run == kNotRunning) continue;
    end_run(run);
    running.erase(run);
    end_in_rollout(run, 0);
  }
  log.info(rt::now_us(self), "request_cancelled",
           {{"ticket", ticket}, {"rid", node.mapped().request->rid}, {"responses_left", node.mapped().left}});
  pieces_open -= node.mapped().left;
  totals.aborted += node.mapped().left;
  if (++cancelled >= kCancelledMax) sweep();
  see_if_idle();
}

int64_t GatewayActor::abort(const std::string& rid) {
  std::set<Ticket> tickets;
  for (auto at = by_rid.lower_bound({rid, Ticket{}}); at != by_rid.end() && at->first.starts_with(rid); ++at) tickets.insert(at->second);
  return abort(tickets);
}

int64_t GatewayActor::abort(const std::set<Ticket>& tickets) {
  int64_t ending = 0, left = 0;
  for (const Ticket ticket : tickets) {
    const auto at = open.find(ticket);
    if (at == open.end()) continue;
    left += at->second.left;
    for (const RequestId run : at->second.runs) {
      if (run == kNotRunning) continue;
      end_early(run, running.at(run), InFlight::kAbort);
      ++ending;
    }
  }
  if (left == ending) return ending;  // none waits
  return ending + end_waiting([&](const GatewayRequest& request) { return tickets.contains(request.ticket); });
}

/// It is answered when its rollout answers.
void GatewayActor::end_early(RequestId id, Running& run, InFlight how) {
  const bool is_aborted = run.is_ending && !run.is_redone;
  run.is_redone = how == InFlight::kRedo && run.piece.request->tokens_to != TokensTo::kClient && !is_aborted;
  run.is_ending = true;
  end_run(id);
}

/// Ends these requests: waiting ones are answered at once, running ones when their rollout answers.
int64_t GatewayActor::end_requests(const RequestTest& is_meant, InFlight how) {
  int64_t count = 0;
  for (auto& [id, run] : running) {
    if (!is_meant(*run.piece.request)) continue;
    end_early(id, run, how);
    ++count;
  }
  return how == InFlight::kAbort ? count + end_waiting(is_meant) : count;
}

std::vector<GatewayActor::Piece> GatewayActor::take_waiting(const RequestTest& is_meant) {
  sweep();
  std::vector<Piece> taken;
  for (auto& [id, group] : waiting) {
    const auto stays = [&](const Piece& piece) { return !is_meant(*piece.request); };
    const auto kept = std::stable_partition(group.pieces.begin(), group.pieces.end(), stays);
    taken.insert(taken.end(), kept, group.pieces.end());
    group.pieces.erase(kept, group.pieces.end());
  }
  for (auto it = waiting.begin(); it != waiting.end();) it = it->second.pieces.empty() ? forget(it) : std::next(it);
  return taken;
}

int64_t GatewayActor::end_waiting(const RequestTest& is_meant) {
  const std::vector<Piece> aborted = take_waiting(is_meant);
  for (const Piece& piece : aborted) give_unstarted(piece, FinishReason::kAborted, {});
  return std::ssize(aborted);
}

void GatewayActor::pause(InFlight in_flight, std::function<void()> idle) {
  is_paused = true;
  when_idle.push_back(std::move(idle));
  if (in_flight != InFlight::kFinish) end_requests(is_any, in_flight);
  log.info(rt::now_us(self), "generation_paused", {{"running", running.size()}});
  see_if_idle();
}

void GatewayActor::drain() {
  if (!is_paused) return;
  const auto is_not_kept = [](const GatewayRequest& request) { return request.tokens_to != TokensTo::kJournal; };
  for (auto& [id, run] : running)
    if (is_not_kept(*run.piece.request)) run.is_redone = false;  // it is answered as it ends
  end_waiting(is_not_kept);
}

void GatewayActor::see_if_idle() {
  watch_idle();
  if (running.empty()) start_update_time();
  if (!running.empty() && is_paused) return;
  for (const auto& idle : std::exchange(when_idle, {})) idle();
}

void GatewayActor::go_on() {
  is_paused = false;
  see_if_idle();
  log.info(rt::now_us(self), "generation_continued");
}

Status GatewayActor::flush() {
  if (!running.empty()) return fail(Code::kUnavailable, running.size(), " responses are not over");
  close_rollout();
  return {};
}

// ---- weights -------------------------------------------------------------------------------------------------------------------

void GatewayActor::update_weights(WeightsOrder order) {
  if (Status may = weights.may_begin(order.what); !may.ok()) return order.done(std::move(may));
  log.info(rt::now_us(self), "weights_update", {{"weight_version", order.what.version}, {"folder", order.what.folder}});
  // Requests that wait, also those that will start again, get the new weights.
  if (order.in_flight != InFlight::kFinish)
    for (auto& [id, run] : running)
      if (!run.is_redone) end_early(id, run, order.in_flight);
  close_rollout();
  SEER_CHECK(!update_done);
  update_done = std::move(order.done);
  const std::vector<NodeId> asked = fleet.update_weights(order.what, handle{self});
  weights.begin(std::move(order.what), std::move(order.name), asked);
  if (order.in_flight != InFlight::kFinish || running.empty()) start_update_time();  // else once these are over
  apply_weights();
}

void GatewayActor::start_update_time() {
  if (weights.start_time(rt::now_us(self))) rt::tell_after(self, config.update_us_max, handle{self}, Tick{kEndUpdate});
}

void GatewayActor::on_weights(const WeightsUpdated& answer) {
  if (weights.is_late(answer)) {
    log.info(rt::now_us(self), "weights_late", {{"node", answer.node}, {"weight_version", answer.version}, {"error", answer.error}});
    if (fleet.changed_late) fleet.changed_late(answer);
  }
  weights.note(answer);
  apply_weights();
}

void GatewayActor::lose_node(NodeId node, bool in_order) {
  if (in_order) std::erase_if(kv_tokens, [node](const auto& known) { return known.first.value / kNodeInstancesMax == node.value; });
  weights.lose(node);
  apply_weights();
}

void GatewayActor::follow_weights(const ClusterWeights& now) {
  weights.follow(now);
  apply_weights();
}

/// Does what follows from what was told to `weights`.
void GatewayActor::apply_weights() {
  while (std::optional<WeightUpdates::Step> step = weights.take()) {
    if (const auto* run = std::get_if<WeightUpdates::Run>(&*step))
      run_with(*run);
    else
      finish_update(std::get<WeightUpdates::Ended>(*step));
  }
  place();
}

void GatewayActor::run_with(const WeightUpdates::Run& run) {
  const WeightVersion version = run.now.what.version;
  if (run.cause == WeightUpdates::Cause::kElsewhere) log.info(rt::now_us(self), "weights_elsewhere", {{"weight_version", version}});
  if (run.cause != WeightUpdates::Cause::kUpdate) {  // nothing goes on with the weights before
    end_requests(is_any, InFlight::kRedo);
    close_rollout();
  }
  ++totals.updates;
  if (client.runs) client.runs(version, run.name);
  for (const Piece& piece : take_waiting([this](const GatewayRequest& request) { return is_stale(request); })) give_stale(piece);
  if (fleet.weights_are) fleet.weights_are(run.now);
}

void GatewayActor::finish_update(const WeightUpdates::Ended& ended) {
  const Status& status = ended.status;
  totals.updates_failed += status.ok() ? 0 : 1;
  log.info(rt::now_us(self), "weights_updated", {{"weight_version", ended.runs}, {"error", status.ok() ? "" : status.error().detail}});
  std::exchange(update_done, {})(status);
}

GatewayLoads GatewayActor::loads() const {
  GatewayLoads now = totals;
  now.version = weights.version();
  now.is_paused = is_paused;
  now.is_updating = weights.is_under_way();
  now.running = std::ssize(running);
  now.waiting = pieces_open - now.running;
  now.rollouts = std::ssize(rollouts);
  if (!open.empty()) now.oldest_us = rt::now_us(self) - open.begin()->second.came_us;
  for (const auto& [id, rollout] : rollouts) {
    now.kv_use_share = std::max(now.kv_use_share, rollout.kv_use_share);
    now.on_instances += rollout.on_instances;
  }
  now.on_instances = std::min(now.on_instances, now.running);
  return now;
}

GatewayRollout GatewayActor::figures_of(RolloutId id, const Rollout& rollout) const {
  const int64_t until_us = rollout.ended < rollout.responses ? rt::now_us(self) : rollout.ended_us;
  return {.id = id,
          .version = rollout.version,
          .responses = static_cast<int64_t>(rollout.responses),
          .ended = static_cast<int64_t>(rollout.ended),
          .output_tokens = rollout.output_tokens,
          .busy_us = until_us - rollout.began_us,
          .tail_us = rollout.tail_began_us == 0 ? 0 : until_us - rollout.tail_began_us,
          .error = {}};
}

void GatewayActor::report(std::function<void(GatewayReport)> then) const {
  GatewayReport now{.loads = loads(), .rollouts = {rollouts_over.begin(), rollouts_over.end()}, .nodes = {}};
  for (const auto& [id, rollout] : rollouts) now.rollouts.push_back(figures_of(id, rollout));
  std::ranges::sort(now.rollouts, {}, &GatewayRollout::id);
  const auto nodes = fleet.nodes ? fleet.nodes() : std::map<NodeId, NodeHandle>();
  rt::gather_then<std::vector<NodeReport>>(self, nodes, GetReport{}, [now, then = std::move(then)](std::vector<NodeReport> reports) mutable {
    now.nodes = std::move(reports);
    then(std::move(now));
  }, rt::kControlTimeoutUs);
}

}  // namespace seer
