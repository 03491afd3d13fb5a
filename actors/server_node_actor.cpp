#include "actors/server_node_actor.h"

#include <algorithm>
#include <utility>

#include "actors/node_actor.h"

namespace seer {
namespace {

constexpr int64_t kDrainLookUs = 50'000;  // between two checks whether a draining server's chunks are back

}  // namespace

ServerNodeActor::ServerNodeActor(rt::self_ptr<ServerNodeActor> self_in, ServerNodeConfig config_in, ServerNodeParts parts_in)
    : self(self_in),
      config(std::move(config_in)),
      parts(std::move(parts_in)),
      handover(make_handover<ServerNodeActor>(self)),
      version(config.version),
      target(config.target),
      look_delay_us(config.look_us) {
  config.instance.id = node_instance(config.node, 0);
  rt::on_down(self, [this](const rt::down& message) { on_down(message); });
  look();
}

ServerNodeActor::~ServerNodeActor() {
  if (instance) rt::stop(instance);
}

template <class Message>
void ServerNodeActor::tell_all(const Message& message) {
  for (const InstanceSink& sink : sinks) rt::tell(self, sink, message);
}

ServerNodeActor::handle::behavior_type ServerNodeActor::make_behavior() {
  return {[this](const AttachRollout& attach) { on_attach(attach); },
          [this](const UpdateWeights& asked) { on_update(asked); },
          [this](const InstanceWeights& answer) { on_weights(answer); },
          [this](const DrainNode& drain) { on_drain(drain); },
          [](const DirectoryUp&) {},
          [](const WeightPart&) {},  // a server is told of a folder; it fetches nothing here
          [this](const Tick& tick) { on_tick(tick.of); },
          [this](const WorkReady&) {
            for (auto& work : handover->take()) work();
          },
          [this](const GetReport&) { return on_report(); }};
}

void ServerNodeActor::on_attach(const AttachRollout& attach) {
  if (std::ranges::find(sinks, attach.reply_to) == sinks.end()) {
    sinks.push_back(attach.reply_to);
    rt::monitor(self, attach.reply_to);
  }
  if (instance && !draining) return rt::tell(self, attach.reply_to, instance_up());
  rt::tell(self, attach.reply_to, InstancesDraining{config.node, {config.instance.id}});  // it is not to be waited for
}

// ---- looking -----------------------------------------------------------------------------------------------------------------------

void ServerNodeActor::look() {
  if (looking) return;
  looking = true;
  parts.server->look(later<Result<ServerState>>(handover, [this](const Result<ServerState>& found) {
    looking = false;
    on_look(found);
  }));
}

void ServerNodeActor::on_look(const Result<ServerState>& found) {
  if (draining) return;
  if (instance) return found.ok() ? look_again(*found) : stop_if_unused(found.error());
  if (!found.ok()) return look_later(found.error().detail);
  state = *found;
  if (parts.events.seen) parts.events.seen(config.node, state);
  if (weights_move()) return look_later("a trainer replaces its weights");
  if (!first_weights) first_weights = config.first_weights->note(state.weights);
  adopt_late();
  const std::string right = right_label();
  if (state.weights == right) return start_instance();
  if (target.version != WeightVersion{}) return give_weights(state);
  look_later(cat("it has weights ", state.weights, " while the servers had ", right, " at first, and no update came through here"));
}

/// Of the weights that the server should have. Empty: not known yet.
std::string ServerNodeActor::right_label() const {
  return target.version == WeightVersion{} ? first_weights.value_or("") : config.instance.label_of(target.version);
}

/// While the instance runs.
void ServerNodeActor::look_again(const ServerState& now) {
  state.running = now.running;
  state.waiting = now.waiting;
  state.kv_use_share = now.kv_use_share;
  state.server_ids = now.server_ids;  // a router behind this one may have got another server, which passes requests on to this one
  const bool has_changed = !update && !weights_move() && now.weights != state.weights;
  if (has_changed) {
    parts.log.warn(rt::now_us(self), "server_weights", {{"server", parts.server->name()}, {"weights", now.weights}, {"expected", state.weights}});
    return rt::stop(instance);
  }
  if (parts.events.seen) parts.events.seen(config.node, state);
  tick_in(config.relook_us);
}

/// While the instance runs, which learns from its chunks whether the server works. Without any, a server that was gone could come back
/// with other weights unseen. A router that passes requests on in a circle must have none.
void ServerNodeActor::stop_if_unused(const Error& error) {
  const auto stop = [this, why = error.detail] {
    stopped_why = why;
    rt::stop(instance);
  };
  if (error.code == Code::kInvalidArgument) return stop();
  rt::gather_then<std::vector<InstanceReport>>(self, std::map<NodeId, InstanceHandle>{{config.node, instance}}, GetReport{},
                                               [this, stop, asked = instance](const std::vector<InstanceReport>& reports) {
    if (instance != asked) return;  // it has ended
    if (!reports.empty() && reports[0].chunks == 0) return stop();
    tick_in(config.relook_us);
  });
}

/// The server has the weights of an update whose answer was lost. Who asked may still use them.
void ServerNodeActor::adopt_late() {
  if (!unanswered || unanswered->what.version <= target.version || state.weights != config.instance.label_of(unanswered->what.version)) return;
  const UpdateWeights late = *std::exchange(unanswered, std::nullopt);
  target = late.what;
  rt::tell(self, late.reply_to, WeightsUpdated{config.node, target.version, {}, label_hash(state.weights)});
}

/// REQUIRES: there was an update.
void ServerNodeActor::give_weights(const ServerState& old) {
  if (target.folder.empty()) return look_later(cat("it has weights ", old.weights, ", and version ", target.version, " came over the trainer's own group, without it"));
  parts.log.info(rt::now_us(self), "server_update", {{"server", parts.server->name()}, {"had", old.weights}, {"weight_version", target.version}});
  looking = true;
  parts.server->update_weights(target.folder, config.instance.label_of(target.version), later<Status>(handover, [this, given = target.version, had = old.weights](const Status& status) {
                                 looking = false;
                                 if (draining || instance) return;
                                 if (!status.ok()) return look_later(status.error().detail);
                                 // A server without labels cannot be asked what it has.
                                 if (had.empty() && given == target.version) return start_instance();
                                 look();
                               }));
}

void ServerNodeActor::look_later(const std::string& why) {
  parts.log.warn(rt::now_us(self), "server_out",
                 {{"server", parts.server->name()}, {"next_look_ms", look_delay_us / 1000}, {"error", why}});
  if (parts.events.changed) parts.events.changed(config.node, false, why);
  tick_in(look_delay_us);
  look_delay_us = std::min(2 * look_delay_us, config.look_us_max);
}

/// Generation is paused until another version runs.
bool ServerNodeActor::weights_move() const {
  const WeightVersion now = target.version == WeightVersion{} ? config.version : target.version;
  return config.moving && config.moving->load() == now.value;
}

void ServerNodeActor::tick_in(int64_t us) { rt::tell_after(self, us, handle{self}, Tick{.of = ++last_tick}); }

void ServerNodeActor::on_tick(uint64_t what) {
  if (what != last_tick) return;
  draining ? leave_when_drained() : look();
}

// ---- the instance ------------------------------------------------------------------------------------------------------------------

void ServerNodeActor::start_instance() {
  version = target.version == WeightVersion{} ? config.version : target.version;
  ServedInstanceConfig now = config.instance;
  now.kv_tokens = state.kv_tokens > 0 ? state.kv_tokens : config.kv_tokens;
  if (state.context_tokens > 0) now.stop.context_tokens_max = std::min(now.stop.context_tokens_max, state.context_tokens);
  now.version = version;
  now.rows_max = state.rows_max > 0 ? state.rows_max : config.rows_max;
  now.weights = state.weights.empty() ? state.weights : right_label();
  now.rid_prefix += cat(config.node, ".", restarts, ".");
  instance = rt::spawn<ServedInstanceActor>(self->system(), std::move(now), ServedInstanceParts{parts.server, parts.tokenizer, parts.log});
  started_us = rt::now_us(self);
  rt::monitor(self, instance);
  parts.log.info(started_us, "server_up",
                 {{"server", parts.server->name()}, {"node", config.node}, {"engine", state.engine}, {"weights", state.weights}, {"kv_tokens", state.kv_tokens},
                  {"rows_max", state.rows_max}, {"deterministic", state.is_deterministic ? "true" : "false"}});
  if (parts.events.changed) parts.events.changed(config.node, true, {});
  tell_all(instance_up());
  tick_in(config.relook_us);
}

/// REQUIRES: the instance runs.
InstanceUp ServerNodeActor::instance_up() const {
  const int64_t kv_tokens = state.kv_tokens > 0 ? state.kv_tokens : config.kv_tokens;
  const int64_t rows = state.rows_max > 0 ? state.rows_max : config.rows_max;
  return {config.instance.id, config.kv_node, kv_tokens / config.instance.block_tokens, config.instance.block_tokens, static_cast<int32_t>(rows), instance, identity()};
}

ClusterIdentity ServerNodeActor::identity() const {
  return {.model = config.model, .weights = label_hash(right_label()), .version = version};
}

void ServerNodeActor::on_down(const rt::down& message) {
  if (!rt::is_source(message, instance)) {
    std::erase_if(sinks, [&](const InstanceSink& sink) { return rt::is_source(message, sink); });
    return;
  }
  const std::string why = rt::reason_text(message, std::exchange(stopped_why, "its instance was stopped"));
  instance = nullptr;
  ++restarts;
  if (rt::now_us(self) - started_us > config.look_us_max) look_delay_us = config.look_us;
  const auto failed = std::exchange(update, {});
  if (!draining) look_later(why);  // first: who hears the answer may start a rollout on those that are up
  if (failed) unanswered = failed;
  if (failed) rt::tell(self, failed->reply_to, WeightsUpdated{config.node, failed->what.version, why, 0});
}

// ---- weights -----------------------------------------------------------------------------------------------------------------------

/// Without somebody to answer, these weights are in use already: the server must get them before it works again.
void ServerNodeActor::on_update(const UpdateWeights& asked) {
  const auto refuse = [&](const auto&... why) {
    if (asked.reply_to) rt::tell(self, asked.reply_to, WeightsUpdated{config.node, asked.what.version, cat(parts.server->name(), why...), 0});
  };
  if (!asked.reply_to) {
    if (asked.what.version <= target.version) return;
    target = asked.what;
    if (instance && version != target.version) rt::stop(instance);
    return;
  }
  if (update) return refuse(" is changing to weight version ", update->what.version, " already");
  if (!instance) return refuse(" is out");
  if (asked.what.source) return refuse(" takes weights from a folder only");
  update = asked;
  rt::tell(self, instance, UpdateInstance{asked.what, handle{self}});
}

void ServerNodeActor::on_weights(const InstanceWeights& answer) {
  if (!update) return;  // the instance that answers has ended since
  const UpdateWeights asked = *std::exchange(update, std::nullopt);
  if (answer.error.empty()) {
    target = asked.what;
    version = answer.version;
    state.weights = state.weights.empty() ? "" : config.instance.label_of(version);
    if (parts.events.seen) parts.events.seen(config.node, state);
  } else {
    unanswered = asked;
  }
  if (!draining) tell_all(instance_up());  // after an error too: rollouts may have left it
  rt::tell(self, asked.reply_to, WeightsUpdated{config.node, asked.what.version, answer.error, answer.error.empty() ? label_hash(config.instance.label_of(version)) : 0});
}

// ---- leaving -----------------------------------------------------------------------------------------------------------------------

void ServerNodeActor::on_drain(const DrainNode& drain) {
  if (draining) return;
  draining = true;
  drain_until_us = rt::now_us(self) + drain.timeout_us;
  parts.log.info(rt::now_us(self), "server_draining", {{"server", parts.server->name()}, {"node", config.node}});
  tell_all(InstancesDraining{config.node, {config.instance.id}});
  if (instance) rt::tell(self, instance, YieldChunks{});
  leave_when_drained();
}

void ServerNodeActor::leave_when_drained() {
  if (has_left) return;
  std::map<NodeId, InstanceHandle> up;
  if (instance) up.emplace(config.node, instance);
  rt::gather_then<std::vector<InstanceReport>>(self, up, GetReport{}, [this](const std::vector<InstanceReport>& reports) {
    const bool is_busy = !reports.empty() && reports[0].chunks > 0;
    if (is_busy && rt::now_us(self) < drain_until_us) return tick_in(kDrainLookUs);
    if (std::exchange(has_left, true)) return;
    if (parts.events.left) parts.events.left(config.node);
  });
}

rt::result<NodeReport> ServerNodeActor::on_report() {
  auto promise = self->make_response_promise<NodeReport>();
  std::map<NodeId, InstanceHandle> up;
  if (instance) up.emplace(config.node, instance);
  rt::gather_then<std::vector<InstanceReport>>(self, up, GetReport{}, [this, promise](std::vector<InstanceReport> reports) mutable {
    promise.deliver(NodeReport{config.node, draining, restarts, std::move(reports), {}, identity()});
  });
  return promise;
}

}  // namespace seer
