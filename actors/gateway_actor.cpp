#include "actors/gateway_actor.h"

#include <algorithm>
#include <utility>

#include "protocols/hash.h"

namespace seer {
namespace {

constexpr RequestId kNotRunning{};  // rollouts of a gateway have ids from 1
constexpr size_t kCancelledMax = 1024;

/// Of what the requests of a group have in common.
uint64_t content_of(const GatewayRequest& request) {
  uint64_t hash = hash_text(request.group);
  for (const int32_t id : request.prompt_ids) hash = hash_pair(hash, static_cast<uint64_t>(id));
  hash = hash_pair(hash, static_cast<uint64_t>(request.priority));
  return hash_pair(hash, static_cast<uint64_t>(request.sampling.max_tokens));
}

GroupSpec group_of(const std::vector<GatewayActor::Piece>& pieces) {
  const GatewayRequest& first = *pieces.front().request;
  GroupSpec group{.id = {},
                  .prompt_ids = first.prompt_ids,
                  .samples = static_cast<uint32_t>(pieces.size()),
                  .sampling = first.sampling,
                  .seeds = {},
                  .known_tokens = {},
                  .priority = first.priority,
                  .streams = first.tokens_to != TokensTo::kNobody};
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
    if (begun.version == version && !begun.tokens.empty()) add.resumed.push_back({{group, sample}, begun.tokens, begun.logprobs});
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
      version(config.version) {
  door->set_wake(rt::waker<GatewayActor>(self, [](const handle& me) { rt::post(me, WorkReady{}); }));
}

GatewayActor::handle::behavior_type GatewayActor::make_behavior() {
  rt::post(handle{self}, WorkReady{});  // for what came through the door before it had a wake
  return {
      [this](const WorkReady&) {
        for (auto& work : door->take()) work(*this);
        place();
      },
      [this](const Tick&) {
        is_ticking = false;
        place();
      },
      [this](Response& response) { on_response(response); },
      [this](const RolloutProgress& progress) {
        if (const auto at = rollouts.find(progress.rollout); at != rollouts.end()) at->second.kv_use_share = progress.kv_use_share;
      },
      [this](RolloutCommits& commits) { on_commits(commits); },
      [this](const RolloutSummary& summary) { on_summary(summary); },
      [this](const WeightsUpdated& answer) { on_weights(answer); },
  };
}

// ---- requests come ---------------------------------------------------------------------------------------------------------

void GatewayActor::submit(GatewayRequest asked) {
  const auto request = std::make_shared<const GatewayRequest>(std::move(asked));
  const auto samples = static_cast<uint32_t>(request->seeds.size());
  ++totals.requests;
  const bool is_full = pieces_open + samples > config.responses_max;
  open.emplace(request->ticket, Open{request, std::vector<RequestId>(samples, kNotRunning), samples});
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

/// Takes out what belongs to requests that are over.
void GatewayActor::sweep() {
  cancelled = 0;
  for (auto it = waiting.begin(); it != waiting.end();) {
    std::erase_if(it->second.pieces, [&](const Piece& piece) { return !open.contains(piece.request->ticket); });
    it = it->second.pieces.empty() ? forget(it) : std::next(it);
  }
}

/// Groups whose time has come go to the rollout.
void GatewayActor::place() {
  if (is_held()) return;
  if (cancelled > 0) sweep();
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
    Rollout& rollout = open_rollout();
    to = rollout.handle;
    const GroupId id{rollout.groups++, current};
    rollout.responses += group.pieces.size();
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

void GatewayActor::tick_in(int64_t us) {
  if (std::exchange(is_ticking, true)) return;
  rt::tell_after(self, us, handle{self}, Tick{});
}

GatewayActor::Rollout& GatewayActor::open_rollout() {
  if (current != RolloutId{}) return rollouts.at(current);
  current = last_rollout = RolloutId{last_rollout.value + 1};
  RolloutConfig rollout = config.rollout;
  rollout.id = current;
  rollout.version = version;
  rollout.open = true;
  return rollouts.emplace(current, Rollout{fleet.start_rollout(rollout, handle{self}), version}).first->second;
}

/// It ends when its requests are over.
void GatewayActor::close_rollout() {
  if (current == RolloutId{}) return;
  rt::post(rollouts.at(current).handle, CloseRollout{});
  current = {};
}

// ---- responses ---------------------------------------------------------------------------------------------------------------

void GatewayActor::on_response(Response& response) {
  auto node = running.extract(response.request);
  if (node.empty()) return;  // it was cancelled
  const Running& run = node.mapped();
  open.at(run.piece.request->ticket).runs[run.piece.sample] = kNotRunning;
  if (run.is_redone && response.finish == FinishReason::kAborted) {
    gather(run.piece);
    return place();
  }
  give(run.piece, std::move(response));
}

void GatewayActor::give(const Piece& piece, Response response) {
  switch (response.finish) {
    case FinishReason::kAborted: ++totals.aborted; break;
    case FinishReason::kError: ++totals.failed; break;
    default: ++totals.finished; break;
  }
  totals.output_tokens += std::ssize(response.output_ids);
  --pieces_open;
  const auto at = open.find(piece.request->ticket);
  if (--at->second.left == 0) open.erase(at);
  client.response(piece.request->ticket, piece.sample, std::move(response));
}

void GatewayActor::give_unstarted(const Piece& piece, FinishReason finish, std::string error) {
  Response response;
  response.seed = piece.request->seeds[piece.sample];
  response.finish = finish;
  response.error = std::move(error);
  response.version = version;
  give(piece, std::move(response));
}

void GatewayActor::on_commits(RolloutCommits& commits) {
  for (CommittedTokens& part : commits.parts) {
    const auto run = running.find(part.request);
    if (run == running.end() || run->second.piece.request->tokens_to == TokensTo::kNobody) continue;
    const Piece& piece = run->second.piece;
    client.tokens(piece.request->ticket, piece.sample, std::move(part), rollouts.at(run->first.group.rollout).version);
  }
}

/// A rollout is over. What it still had when it ended early is answered with its error.
void GatewayActor::on_summary(const RolloutSummary& summary) {
  if (rollouts.erase(summary.rollout) == 0) return;
  fleet.end_rollout(summary.rollout);
  if (current == summary.rollout) current = {};
  std::vector<Piece> lost;
  const auto first = running.lower_bound(RequestId{{0, summary.rollout}, 0});
  auto end = first;
  for (; end != running.end() && end->first.group.rollout == summary.rollout; ++end) lost.push_back(end->second.piece);
  running.erase(first, end);
  for (const Piece& piece : lost) {
    open.at(piece.request->ticket).runs[piece.sample] = kNotRunning;
    give_unstarted(piece, FinishReason::kError, summary.error.empty() ? "the rollout has ended" : summary.error);
  }
}

// ---- requests end early --------------------------------------------------------------------------------------------------------

void GatewayActor::end_run(RequestId run) {
  const auto rollout = rollouts.find(run.group.rollout);
  if (rollout != rollouts.end()) rt::post(rollout->second.handle, CancelRequest{run});
}

void GatewayActor::cancel(Ticket ticket) {
  const auto node = open.extract(ticket);
  if (node.empty()) return;
  for (const RequestId run : node.mapped().runs) {
    if (run == kNotRunning) continue;
    end_run(run);
    running.erase(run);
  }
  pieces_open -= node.mapped().left;
  totals.aborted += node.mapped().left;
  if (++cancelled >= kCancelledMax) sweep();
}

int64_t GatewayActor::abort(const std::string& rid) {
  return end_requests([&](const GatewayRequest& request) { return request.rid.starts_with(rid); }, InFlight::kAbort);
}

int64_t GatewayActor::abort(const std::set<Ticket>& tickets) {
  return end_requests([&](const GatewayRequest& request) { return tickets.contains(request.ticket); }, InFlight::kAbort);
}

/// Those that wait are answered at once; those that run when they have ended.
int64_t GatewayActor::end_requests(const std::function<bool(const GatewayRequest&)>& is_meant, InFlight how) {
  int64_t count = 0;
  for (auto& [id, run] : running) {
    if (!is_meant(*run.piece.request)) continue;
    run.is_redone = how == InFlight::kRedo && run.piece.request->tokens_to != TokensTo::kClient;
    end_run(id);
    ++count;
  }
  if (how != InFlight::kAbort) return count;
  sweep();
  std::vector<Piece> aborted;
  for (auto& [id, group] : waiting) {
    const auto stays = [&](const Piece& piece) { return !is_meant(*piece.request); };
    const auto kept = std::stable_partition(group.pieces.begin(), group.pieces.end(), stays);
    aborted.insert(aborted.end(), kept, group.pieces.end());
    group.pieces.erase(kept, group.pieces.end());
  }
  for (auto it = waiting.begin(); it != waiting.end();) it = it->second.pieces.empty() ? forget(it) : std::next(it);
  for (const Piece& piece : aborted) give_unstarted(piece, FinishReason::kAborted, {});
  return count + std::ssize(aborted);
}

void GatewayActor::pause(InFlight in_flight) {
  is_paused = true;
  if (in_flight != InFlight::kFinish) end_requests(is_any, in_flight);
  log.info(rt::now_us(self), "generation_paused", {{"running", running.size()}});
}

void GatewayActor::go_on() {
  is_paused = false;
  log.info(rt::now_us(self), "generation_continued");
}

Status GatewayActor::flush() {
  if (!open.empty() || !running.empty()) return fail(Code::kUnavailable, pieces_open, " responses are not over");
  close_rollout();
  return {};
}

// ---- weights -------------------------------------------------------------------------------------------------------------------

void GatewayActor::update_weights(WeightsOrder order) {
  if (update)
    return order.done(fail(Code::kUnavailable, "an update to weight version ", update->order.what.version, " is under way"), version);
  if (order.what.version <= version)
    return order.done(fail(Code::kInvalidArgument, "weight version ", order.what.version, ": expected one above ", version, ", which runs"),
                      version);
  log.info(rt::now_us(self), "weights_update", {{"weight_version", order.what.version}, {"folder", order.what.folder}});
  if (order.in_flight != InFlight::kFinish) end_requests(is_any, order.in_flight);
  close_rollout();
  const NewWeights what = order.what;
  update = {.order = std::move(order), .nodes_left = 0, .error = {}};
  update->nodes_left = fleet.update_weights(what, handle{self});
  if (update->nodes_left == 0) finish_update(fail(Code::kUnavailable, "there is no machine"));
}

/// Once some machine has the new weights, the others get them too, or are lost: no rollout starts with the old ones.
void GatewayActor::on_weights(const WeightsUpdated& answer) {
  if (!update || answer.version != update->order.what.version) return;
  if (answer.error.empty())
    update->has_succeeded = true;
  else
    update->error = answer.error;
  if (--update->nodes_left > 0) return;
  if (update->has_succeeded) {
    version = answer.version;
    ++totals.updates;
  }
  finish_update(update->error.empty() ? Status{} : fail(Code::kUnavailable, update->error));
}

void GatewayActor::finish_update(Status status) {
  const auto done = std::move(update->order.done);
  update.reset();
  log.info(rt::now_us(self), "weights_updated", {{"weight_version", version}, {"error", status.ok() ? "" : status.error().detail}});
  done(std::move(status), version);
  place();
}

GatewayLoads GatewayActor::loads() const {
  GatewayLoads now = totals;
  now.version = version;
  now.is_paused = is_paused;
  now.is_updating = update.has_value();
  now.running = std::ssize(running);
  now.waiting = pieces_open - now.running;
  now.rollouts = std::ssize(rollouts);
  for (const auto& [id, rollout] : rollouts) now.kv_use_share = std::max(now.kv_use_share, rollout.kv_use_share);
  return now;
}

}  // namespace seer
