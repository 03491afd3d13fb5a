#include "actors/cluster_actor.h"

#include <algorithm>
#include <utility>

#include "actors/kv_directory_actor.h"
#include "actors/node_actor.h"

namespace seer {
namespace {

/// A rollout without a model's name takes any.
Status check_rollout(const ClusterIdentity& rollout, const ClusterIdentity& machine) {
  ClusterIdentity expected = rollout;
  expected.protocol = kProtocolNumber;
  if (!rollout.model.empty()) {
    expected.model = machine.model;
    expected.shape = machine.shape;
    expected.endings = machine.endings;
    expected.tokenizer = machine.tokenizer;
  }
  return check_identity("a rollout", rollout, expected);
}

/// Kinds of a Tick.
enum TickKind : uint32_t { kDropLost, kDropAbsent, kTryAgain };

}  // namespace

ClusterActor::ClusterActor(rt::self_ptr<ClusterActor> self_in, uint64_t first_number_in, EventLog log_in)
    : self(self_in),
      first_number(first_number_in),
      started_us(rt::now_us(self)),
      log(std::move(log_in)),
      directory(rt::spawn<KvDirectoryActor>(self->system())),
      last_number(first_number) {
  rt::on_down(self, [this](const rt::down& message) { on_down(message); });
  rt::tell_after(self, kReturnUs, handle{self}, Tick{kDropLost});
}

ClusterActor::~ClusterActor() { rt::stop(directory); }

ClusterActor::handle::behavior_type ClusterActor::make_behavior() {
  return {[this](const Tick& tick) { on_tick(tick); },
          [this](const EnterCluster& ask) { return on_enter(ask); },
          [this](const NodeReady& ready) { on_ready(ready); },
          [this](const EnterRollout& ask) { return on_rollout(ask); },
          [this](const RolloutStarted& started) { on_rollout_started(started); },
          [this](const WatchCluster& watch) { on_watch(watch); },
          [this](const ClusterWeights& changed) { on_weights(changed); },
          [this](const WeightsUpdated& answer) { on_updated(answer); },
          [this](const DrainMachine& drain) { return on_drain(drain); },
          [this](const GetReport&) { return report(); }};
}

void ClusterActor::on_tick(const Tick& tick) {
  const auto id = static_cast<uint32_t>(tick.of);
  switch (tick.kind) {
    case kDropLost: return drop_lost_rollouts();
    case kDropAbsent: return drop_absent_rollout(RolloutId{id});
    case kTryAgain: return try_again(NodeId{id});
  }
}

uint64_t ClusterActor::next_number() {
  const uint64_t now = first_number + static_cast<uint64_t>(rt::now_us(self) - started_us) / 1000;
  return last_number = std::max(last_number + 1, now);
}

ClusterEntered ClusterActor::on_enter(const EnterCluster& ask) {
  const int64_t now = rt::now_us(self);
  std::erase_if(members, [&](const auto& m) { return !m.second.ready && now - m.second.entered_us > kEnterUs; });
  const std::string who = cat("node ", ask.node);
  const auto known = members.find(ask.node);
  const bool is_itself = known != members.end() && ask.epoch > 0 && known->second.epoch == ask.epoch;  // its loss was not noticed here
  Status fits;
  if (known != members.end() && !is_itself)
    fits = fail(Code::kInvalidArgument, who, " is refused: a node of that name ",
                known->second.ready ? "is in the cluster, expected another name for each machine" : "is being started, or failed to start within the last minute");
  else
    fits = check_identity(who, ask.identity, expected_of(ask));
  if (!fits.ok()) {
    log.warn(now, "node_refused", {{"node", ask.node}, {"reason", fits.error()}});
    return {.error = fits.error().detail};
  }
  const uint64_t epoch = ask.epoch > 0 ? ask.epoch : next_number() * kEpochsOfStart;
  keep_number(epoch / kEpochsOfStart);
  if (is_itself)
    known->second.identity = ask.identity;
  else
    members[ask.node] = {.identity = ask.identity, .roles = ask.roles, .kv_block_bytes = ask.kv_block_bytes, .entered_us = now, .epoch = epoch};
  return {.error = {}, .epoch = epoch, .directory = directory};
}

void ClusterActor::on_ready(const NodeReady& ready) {
  const auto member = members.find(ready.at.node);
  const bool is_known = member != members.end() && member->second.ready;
  if (is_known && member->second.ready->handle == ready.handle) return update_outdated(member->second);
  if (is_known || member == members.end()) return rt::stop(ready.handle);  // it took longer than kEnterUs
  member->second.ready = ready;
  rt::monitor(self, ready.handle);
  log.info(rt::now_us(self), "node_joined",
           {{"node", ready.at.node}, {"host", ready.at.host}, {"port", ready.at.port}, {"instances", ready.instances}});
  tell_all(NodeJoined{ready.at, ready.handle, ready.instances});
  update_outdated(member->second);
}

/// A machine is compared with others only in what both have. Weights that are older than the cluster's are right too: the machine
/// gets those of the cluster. So are those of another version if it ran already: an update was under way when it lost the controller,
/// and rollouts leave it out until it has theirs.
ClusterIdentity ClusterActor::expected_of(const EnterCluster& ask) const {
  const auto first_with = [&](auto has) {
    const auto at = std::ranges::find_if(members, [&](const auto& m) { return has(m.second); });
    return at == members.end() ? nullptr : &at->second.identity;
  };
  ClusterIdentity expected = ask.identity;
  expected.protocol = kProtocolNumber;
  const ClusterIdentity* const with_model = first_with([](const Member& m) { return !m.identity.model.empty(); });
  if (with_model != nullptr && !ask.identity.model.empty()) {
    expected.model = with_model->model;
    expected.shape = with_model->shape;
    expected.endings = with_model->endings;
    expected.kv_layout = with_model->kv_layout;
  }
  if (const ClusterIdentity* const with_tokenizer = first_with([](const Member& m) { return m.identity.tokenizer != 0; }))
    expected.tokenizer = with_tokenizer->tokenizer;
  const ClusterIdentity* const with_weights = first_with([](const Member& m) { return m.has_instances(); });
  if (with_weights == nullptr || !ask.roles.has(NodeRole::kInstances)) return expected;
  const bool are_known = weights.what.version != WeightVersion{};
  const WeightVersion right = are_known ? weights.what.version : with_weights->version;
  const bool is_old = are_known && ask.identity.version < right, ran = ask.epoch > 0 && ask.identity.version != right;
  if (is_old || ran) return expected;
  expected.version = right;
  expected.weights = are_known ? weights.what.weights : with_weights->weights;
  return expected;
}

void ClusterActor::on_weights(const ClusterWeights& changed) {
  if (changed.what.version <= weights.what.version) return;
  weights = changed;
  log.info(rt::now_us(self), "cluster_weights", {{"weight_version", weights.what.version}, {"folder", weights.what.folder}});
  tell_all(weights);
  for (const NodeId node : changed.nodes) has_changed(node);
  for (auto& [id, member] : members) {
    member.tries = 0;
    update_outdated(member);
  }
}

/// The machine runs with `weights` now.
void ClusterActor::has_changed(NodeId node) {
  const auto member = members.find(node);
  if (member == members.end() || !member->second.has_instances()) return;
  member->second.identity.version = weights.what.version;
  member->second.identity.weights = weights.what.weights;
  member->second.tries = 0;
}

bool ClusterActor::is_outdated(const Member& member) const {
  const ClusterIdentity& has = member.identity;
  const bool are_others = has.version == weights.what.version && has.weights != 0 && has.weights != weights.what.weights;
  return member.has_instances() && (has.version < weights.what.version || are_others);
}

void ClusterActor::on_updated(const WeightsUpdated& answer) {
  const bool is_of_now = answer.version == weights.what.version;
  if (!answer.error.empty()) log.warn(rt::now_us(self), "weights_failed", {{"node", answer.node}, {"error", answer.error}});
  if (is_of_now && answer.weights == weights.what.weights) return has_changed(answer.node);
  const auto member = members.find(answer.node);
  if (member == members.end()) return;
  if (is_of_now && answer.weights != 0) {  // its folder had others: only weights of a later version can replace them
    log.warn(rt::now_us(self), "weights_differ", {{"node", answer.node}, {"weight_version", answer.version}, {"folder", weights.what.folder}});
    return;
  }
  // While it changed to weights of before, it refused those of now.
  if (answer.version < weights.what.version) return update_outdated(member->second);
  if (is_of_now) try_later(answer.node, member->second);
}

void ClusterActor::try_later(NodeId node, Member& member) {
  if (!is_outdated(member) || member.tries >= kTriesMax || std::exchange(member.retry_is_pending, true)) return;
  const int64_t pause_us = std::min(kTryPauseUs << member.tries++, kTryPauseUsMax);
  rt::tell_after(self, pause_us, handle{self}, Tick{kTryAgain, node.value});
}

/// It may have them by now: from another try, or from one whose answer was lost.
void ClusterActor::try_again(NodeId node) {
  const auto member = members.find(node);
  if (member == members.end() || !member->second.ready) return;
  member->second.retry_is_pending = false;
  const std::map<NodeId, NodeHandle> asked{{node, member->second.ready->handle}};
  rt::gather_then<std::vector<NodeReport>>(self, asked, GetReport{}, [this, node](const std::vector<NodeReport>& reports) {
    const ClusterIdentity has = reports.empty() ? ClusterIdentity{} : reports.front().identity;
    if (has.version == weights.what.version && has.weights == weights.what.weights) return has_changed(node);
    if (const auto at = members.find(node); at != members.end()) update_outdated(at->second);
  });
}

void ClusterActor::update_outdated(const Member& member) {
  if (member.ready && is_outdated(member))
    rt::tell(self, member.ready->handle, UpdateWeights{weights.what, handle{self}});
}

rt::result<RolloutEntered> ClusterActor::on_rollout(const EnterRollout& ask) {
  if (ask.id != RolloutId{}) {
    // An id is the low 32 bits of a number.
    keep_number(last_number + std::max<int64_t>(0, static_cast<int32_t>(ask.id.value - static_cast<uint32_t>(last_number))));
    note_absent(ask.id);  // until it has started
    rt::tell(self, directory, KvRolloutReturned{ask.id});
    return RolloutEntered{.id = ask.id, .directory = directory, .error = {}};
  }
  // A server that died may have given machines weights that it told nobody of.
  std::map<NodeId, NodeHandle> asked;
  for (const auto& [id, member] : members)
    if (member.ready && member.has_instances()) asked.emplace(id, member.ready->handle);
  auto promise = self->make_response_promise<RolloutEntered>();
  rt::gather_then<std::vector<NodeReport>>(self, asked, GetReport{}, [this, promise, ask](const std::vector<NodeReport>& reports) mutable {
    for (const NodeReport& report : reports) note_weights(report);
    promise.deliver(enter_rollout(ask));
  });
  return promise;
}

/// Of a machine, as far as one of its instances runs.
void ClusterActor::note_weights(const NodeReport& report) {
  const auto member = members.find(report.node);
  if (member == members.end() || report.identity.model.empty() || report.identity.version <= member->second.identity.version) return;
  member->second.identity.version = report.identity.version;
  member->second.identity.weights = report.identity.weights;
}

RolloutEntered ClusterActor::enter_rollout(const EnterRollout& ask) {
  const auto is_ready = [](const auto& m) { return m.second.ready.has_value(); };
  const auto has_instances = [&](const auto& m) { return is_ready(m) && m.second.has_instances(); };
  const bool only_helpers = std::ranges::any_of(members, is_ready) && std::ranges::none_of(members, has_instances);
  RolloutEntered entered{.directory = directory,
                         .error = only_helpers ? "no machine of the cluster has instances yet" : "the cluster has no machine yet",
                         .may_enter_later = true};
  const auto takes_part = [&](const Member& m) { return m.ready && m.has_instances() && !m.draining && !is_outdated(m); };
  WeightVersion newest;
  for (const auto& [id, member] : members)
    if (takes_part(member)) newest = std::max(newest, member.identity.version);
  for (const auto& [id, member] : members) {
    if (!takes_part(member) || member.identity.version < newest) continue;
    if (const Status fits = check_rollout(ask.identity, member.identity); !fits.ok()) {
      log.warn(rt::now_us(self), "rollout_refused", {{"reason", fits.error()}});
      return {.directory = directory, .error = fits.error().detail};
    }
    entered.version = member.identity.version;
    entered.weights = member.identity.weights;
    entered.instances += member.ready->instances;
    entered.error.clear();
    entered.may_enter_later = false;
  }
  if (entered.error.empty()) entered.id = RolloutId{static_cast<uint32_t>(next_number())};
  return entered;
}

void ClusterActor::on_rollout_started(const RolloutStarted& started) {
  rollouts[started.id] = started.handle;
  absent_us.erase(started.id);
  rt::monitor(self, started.handle);
  log.info(rt::now_us(self), "rollout_entered", {{"rollout", started.id}});
}

/// Drops the KV of rollouts that died while there was no controller.
void ClusterActor::drop_lost_rollouts() {
  KvKeepRollouts keep{.last = RolloutId{static_cast<uint32_t>(first_number)}, .rollouts = {}};
  for (const auto& [id, rollout] : rollouts) keep.rollouts.push_back(id);
  for (const auto& [id, since_us] : absent_us) keep.rollouts.push_back(id);
  rt::tell(self, directory, std::move(keep));
}

void ClusterActor::note_absent(RolloutId id) {
  absent_us[id] = rt::now_us(self);
  rt::tell_after(self, kAbsentUs, handle{self}, Tick{kDropAbsent, id.value});
}

void ClusterActor::drop_absent_rollout(RolloutId id) {
  const auto absent = absent_us.find(id);
  if (absent == absent_us.end() || rt::now_us(self) - absent->second < kAbsentUs) return;
  absent_us.erase(absent);
  drop_rollout(id);
}

/// Releases the KV that it has not released itself.
void ClusterActor::drop_rollout(RolloutId id) { rt::tell(self, directory, KvDropRollout{id}); }

Drained ClusterActor::on_drain(const DrainMachine& drain) {
  const auto member = members.find(drain.node);
  if (member == members.end() || !member->second.ready) return {cat("node ", drain.node, " is not in the cluster")};
  member->second.draining = true;
  rt::tell(self, member->second.ready->handle, DrainNode{drain.timeout_us});
  return {};
}

void ClusterActor::on_watch(const WatchCluster& watch) {
  if (std::ranges::find(sinks, watch.reply_to) != sinks.end()) return;
  sinks.push_back(watch.reply_to);
  rt::monitor(self, watch.reply_to);
  for (const auto& [id, member] : members)
    if (member.ready) rt::tell(self, watch.reply_to, NodeJoined{member.ready->at, member.ready->handle, member.ready->instances});
  if (weights.what.version != WeightVersion{}) rt::tell(self, watch.reply_to, weights);
}

void ClusterActor::on_down(const rt::down& message) {
  std::erase_if(sinks, [&](const ClusterSink& sink) { return rt::is_source(message, sink); });
  if (const auto rollout = std::ranges::find_if(rollouts, [&](const auto& r) { return rt::is_source(message, r.second); });
      rollout != rollouts.end()) {
    const RolloutId id = rollout->first;
    rollouts.erase(rollout);
    if (rt::ended_in_order(message)) return drop_rollout(id);
    return note_absent(id);
  }
  const auto gone =
      std::ranges::find_if(members, [&](const auto& m) { return m.second.ready && rt::is_source(message, m.second.ready->handle); });
  if (gone == members.end()) return;
  const PartLost lost = lost_machine(gone->first, gone->second.ready->instances, message);
  members.erase(gone);
  if (lost.reason.empty())
    log.info(rt::now_us(self), "node_left", {{"node", lost.node}});
  else
    log.warn(rt::now_us(self), "node_lost", {{"node", lost.node}, {"reason", lost.reason}});
  tell_all(lost);
}

ClusterReport ClusterActor::report() const {
  ClusterReport report;
  for (const auto& [id, member] : members)
    if (member.ready)
      report.nodes.push_back({member.ready->at, member.ready->handle, member.ready->instances, member.draining, member.identity,
                              member.roles, member.kv_block_bytes});
  for (const auto& [id, rollout] : rollouts) report.rollouts.push_back({id, rollout});
  return report;
}

template <class Message>
void ClusterActor::tell_all(const Message& message) {
  for (const ClusterSink& sink : sinks) rt::tell(self, sink, message);
}

}  // namespace seer
