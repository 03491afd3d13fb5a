#include "actors/node_actor.h"

#include <algorithm>
#include <utility>

namespace seer {
namespace {

/// Kinds of a Tick.
enum TickKind : uint32_t { kLookAtDrain, kLookAtFetch, kRestartInstance };

Result<InstanceMachinery> make_instance(const NodeMakers& makers, InstanceId id) {
  InstanceMachinery made;
  SEER_ASSIGN_OR_RETURN(made.engine, makers.make_engine(id));
  if (makers.make_drafting) {
    SEER_ASSIGN_OR_RETURN(made.drafting, makers.make_drafting(id));
  }
  return made;
}

/// A pool takes blocks of all weight versions.
ClusterIdentity pool_identity_of(const EngineInfo& info) {
  return {.model = model_name(info.model), .shape = info.model_shape, .kv_layout = info.kv_layout, .version = {}};
}

/// REQUIRES: there is a pool.
Result<PoolMachinery> make_pool(const NodeMakers& makers, NodeId node) {
  PoolMachinery made;
  SEER_ASSIGN_OR_RETURN(made.arena, makers.make_arena(node));
  if (makers.open_cold) {
    SEER_ASSIGN_OR_RETURN(made.cold, makers.open_cold(node));
  }
  return made;
}

constexpr int64_t kDrainLookUs = 100'000;  // between two checks whether a draining machine can end

}  // namespace

PartLost lost_machine(NodeId node, uint32_t instances, const rt::down& message) {
  PartLost lost{.node = node, .instances = {}, .reason = {}};
  if (!rt::ended_in_order(message)) lost.reason = rt::reason_text(message, cat("node ", node, " is gone"));
  for (uint32_t i = 0; i < instances; ++i) lost.instances.push_back(node_instance(node, i));
  return lost;
}

ClusterIdentity instance_identity(const EngineInfo& info, uint64_t tokenizer) {
  return {.model = model_name(info.model),
          .shape = info.model_shape,
          .kv_layout = info.kv_layout,
          .weights = info.kv_hash,
          .version = info.version,
          .endings = endings_text(info.eos_ids, info.context_tokens_max),
          .tokenizer = tokenizer};
}

Result<NodeMachinery> make_machinery(const NodeConfig& config, const NodeMakers& makers) {
  NodeMachinery made;
  for (const InstanceConfig& instance : config.instances) {
    SEER_ASSIGN_OR_RETURN(made.instances[instance.id], make_instance(makers, instance.id));
  }
  if (makers.make_arena) {
    SEER_ASSIGN_OR_RETURN(made.pool, make_pool(makers, config.node));
  }
  return made;
}

NodeActor::NodeActor(rt::self_ptr<NodeActor> self_in, NodeConfig config_in, NodeParts parts)
    : self(self_in),
      config(std::move(config_in)),
      makers(std::move(parts.makers)),
      tokenizer_hash(pieces_hash(makers->tokenizer.get())),
      directory(std::move(parts.directory)),
      log(std::move(parts.log)),
      handover(make_handover<NodeActor>(self)),
      epoch(config.epoch) {
  rt::on_down(self, [this](const rt::down& message) { on_down(message); });
  config.kv_node.is_kv_only = config.instances.empty();
  if (!parts.first->instances.empty())
    config.kv_node.identity = pool_identity_of(parts.first->instances.begin()->second.engine->info());
  if (parts.first->pool.arena) start_pool(std::move(parts.first->pool));
  start_draft_server();
  for (const InstanceConfig& instance : config.instances)
    instances[instance.id] = {.config = instance, .handle = {}, .made = std::move(parts.first->instances.at(instance.id)), .info = {}};
  start_waiting_instances();
  log.info(rt::now_us(self), "node_up", {{"node", config.node}, {"instances", instances.size()}});
}

template <class Message>
void NodeActor::tell_all(const Message& message) {
  for (const InstanceSink& sink : sinks) rt::tell(self, sink, message);
}

NodeActor::~NodeActor() {
  for (auto& [id, instance] : instances)
    if (instance.handle) rt::stop(instance.handle);
  if (draft_server) rt::stop(draft_server);
  if (kv_node) rt::stop(kv_node);
}

NodeActor::handle::behavior_type NodeActor::make_behavior() {
  return {[this](const AttachRollout& attach) { on_attach(attach); },
          [this](const UpdateWeights& asked) { on_update(asked); },
          [this](const WeightPart& part) { on_weight_part(part); },
          [this](const InstanceWeights& answer) { on_weights(answer); },
          [this](const DrainNode& drain) { on_drain(drain); },
          [this](const DirectoryUp& up) { on_directory_up(up); },
          [this](const Tick& tick) {
            if (tick.kind == kLookAtDrain) return leave_when_drained();
            if (tick.kind == kLookAtFetch) return end_silent_fetch();
            restart_unable({static_cast<uint32_t>(tick.of)});
          },
          [this](const WorkReady&) {
            for (auto& work : handover->take()) work();
          },
          [this](const GetReport&) { return on_report(); }};
}

void NodeActor::on_attach(const AttachRollout& attach) {
  const InstanceSink& sink = attach.reply_to;
  if (std::ranges::find(sinks, sink) == sinks.end()) {
    sinks.push_back(sink);
    rt::monitor(self, sink);
  }
  if (draining) return rt::tell(self, sink, all_draining());
  if (draft_server) rt::tell(self, sink, DraftServerUp{config.node, draft_server});
  for (const auto& [id, instance] : instances)
    if (instance.handle && !is_outdated(instance)) rt::tell(self, sink, instance_up(id));
  for (const PartLost& lost : losses) rt::tell(self, sink, lost);
}

// ---- starting ----------------------------------------------------------------------------------------------------------

void NodeActor::start_pool(PoolMachinery&& made) {
  arena = std::move(made.arena);
  ++epoch;
  KvNodeParts parts{.arena = arena, .open_cold = {}, .directory = directory, .transport = makers->transport, .epoch = epoch, .log = log, .is_connected = makers->is_connected};
  if (made.cold)
    parts.open_cold = [opened = std::make_shared<std::unique_ptr<ColdStore>>(std::move(made.cold))] {
      return std::move(*opened);
    };
  kv_node = rt::spawn<KvNodeActor>(self->system(), config.kv_node, std::move(parts));
  rt::monitor(self, kv_node);
  tell_kv_drains();
}

void NodeActor::on_directory_up(const DirectoryUp& up) {
  directory = up.directory;
  if (kv_node) rt::tell(self, kv_node, up);
  tell_kv_drains();
}

void NodeActor::start_draft_server() {
  if (!config.draft_server) return;
  draft_server = rt::spawn<DraftServerActor>(self->system(), *config.draft_server);
  rt::monitor(self, draft_server);
}

/// REQUIRES: the instance's machinery is made, and the pool is settled.
void NodeActor::start_instance(InstanceId id) {
  Instance& instance = instances.at(id);
  InstanceMachinery made = *std::exchange(instance.made, std::nullopt);
  instance.info = made.engine->info();
  instance.stopped = instance.updating = instance.unable = false;
  instance.handle = rt::spawn<InstanceActor>(self->system(), instance.config,
                                             InstanceParts{arena, std::move(made.engine), makers->tokenizer, kv_node,
                                                           std::move(made.drafting)});
  rt::monitor(self, instance.handle);
  if (is_outdated(instance)) return update_instance(id, weights);
  tell_all(instance_up(id));
}

void NodeActor::start_waiting_instances() {
  if (pool_state != PoolState::kSettled || draining) return;
  for (const auto& [id, instance] : instances)
    if (instance.made) start_instance(id);
}

// ---- starting again ----------------------------------------------------------------------------------------------------

/// Runs make() outside of the handlers, and then(its result) in a handler. `make` may run after this actor has ended.
template <class Make, class Then>
void NodeActor::make_aside(Make make, Then then) {
  makers->aside([to = handover, make = std::move(make), then = std::move(then)] {
    // Shared, because a std::function must be copyable.
    auto made = std::make_shared<decltype(make())>(make());
    to->put([made, then] { then(*made); });
  });
}

void NodeActor::remake_instance(InstanceId id) {
  make_aside([makers = makers, id] { return make_instance(*makers, id); },
             [this, id](Result<InstanceMachinery>& made) {
               if (!made.ok()) {
                 const std::string why = cat("instance ", id, " on node ", config.node, " could not be started again: ", made.error().detail);
                 return is_last(id) && !draining ? give_up(why) : lose({id}, why);
               }
               instances.at(id).made = *std::move(made);
               start_waiting_instances();
             });
}

/// Waits until the last instance that uses the old arena has ended.
void NodeActor::remake_pool_when_unused() {
  if (pool_state != PoolState::kDown) return;
  if (std::ranges::any_of(instances, [](const auto& i) { return i.second.handle != nullptr; })) return;
  pool_state = PoolState::kMaking;
  make_aside([makers = makers, node = config.node] { return make_pool(*makers, node); },
             [this](Result<PoolMachinery>& made) {
               pool_state = PoolState::kSettled;
               if (made.ok())
                 start_pool(*std::move(made));
               else
                 lose({}, cat("the KV pool of node ", config.node, " could not be started again: ", made.error().detail));
               start_waiting_instances();
             });
}

void NodeActor::on_down(const rt::down& message) {
  if (draining && rt::is_source(message, kv_node)) return rt::quit(self);  // a lost pool has nothing left to drain
  if (update && update->fetch && rt::is_source(message, update->what.source))
    return fail_update("the server that sends the weights is gone");
  if (rt::is_source(message, draft_server)) {
    if (!may_restart(draft_server_restarts)) return give_up_restarting("its draft server");
    log.warn(rt::now_us(self), "draft_server_restarted", {{"node", config.node}, {"restarts", restarts}});
    start_draft_server();
    return tell_all(DraftServerUp{config.node, draft_server});
  }
  if (rt::is_source(message, kv_node)) {
    // A node that the directory refused would be refused again.
    if (const std::string why = rt::reason_text(message); !why.empty()) return give_up(why);
    if (!may_restart(kv_node_restarts)) return give_up_restarting("its KV pool");
    log.warn(rt::now_us(self), "kv_node_restarted", {{"node", config.node}, {"restarts", restarts}});
    kv_node = nullptr;
    arena = nullptr;
    pool_state = PoolState::kDown;
    for (auto& [id, instance] : instances) {
      if (!instance.handle) continue;
      instance.stopped = true;
      rt::stop(instance.handle);
    }
    return remake_pool_when_unused();
  }
  for (auto& [id, instance] : instances) {
    if (!rt::is_source(message, instance.handle)) continue;
    const std::string why = rt::reason_text(message);
    const bool restarts_it = instance.stopped || may_restart(instance.restarts);
    if (!restarts_it && is_last(id)) return give_up_restarting(cat("instance ", id), why);
    instance.handle = nullptr;
    updated(id, cat("instance ", id, " died while it changed its weights"));
    if (restarts_it) {
      log.warn(rt::now_us(self), "instance_restarted",
               {{"instance", id}, {"node", config.node}, {"restarts", restarts}, {"error", why.empty() ? "none given" : why}});
      remake_instance(id);
    } else {
      lose({id}, died_text(cat("instance ", id, " on node ", config.node), why));
    }
    return remake_pool_when_unused();
  }
  std::erase_if(sinks, [&](const InstanceSink& sink) { return rt::is_source(message, sink); });
}  // any other actor was replaced already

// ---- weights -----------------------------------------------------------------------------------------------------------

void NodeActor::on_update(const UpdateWeights& asked) {
  if (config.instances.empty())  // nothing here depends on weights
    return rt::tell(self, asked.reply_to, WeightsUpdated{config.node, asked.what.version, {}, 0});
  const auto refuse = [&](const auto&... why) {
    rt::tell(self, asked.reply_to, WeightsUpdated{config.node, asked.what.version, cat("node ", config.node, why...), 0});
  };
  // The controller, or a server that was started again, may ask for what another one did.
  const auto is_same = [&](const NewWeights& of) { return of.version == asked.what.version && of.folder == asked.what.folder && of.crc == asked.what.crc; };
  if (asked.what.weights != 0 && asked.what.weights == weights.weights && is_same(weights))
    return rt::tell(self, asked.reply_to, WeightsUpdated{config.node, weights.version, {}, weights.weights});
  if (update && is_same(update->what)) return update->askers.push_back(asked.reply_to);
  if (update) return refuse(" is changing to weight version ", update->what.version, " already");
  if (asked.what.version <= weights.version)
    return refuse(" has weight version ", weights.version, ", and ", asked.what.version, " is not above it");
  if (asked.what.source && makers->loader == nullptr) return refuse(" takes no weights from a server");
  update = {.what = asked.what, .askers = {asked.reply_to}, .waiting = {}, .error = {}};
  log.info(rt::now_us(self), "weights_update", {{"node", config.node}, {"weight_version", asked.what.version}, {"folder", asked.what.folder}});
  if (!asked.what.source) return load_update();
  auto fetch = WeightFetch::begin(asked.what);
  if (!fetch.ok()) return fail_update(fetch.error().detail);
  update->fetch = *std::move(fetch);
  update->heard_us = rt::now_us(self);
  rt::monitor(self, asked.what.source);
  go_on_fetching();
  end_silent_fetch();
}

void NodeActor::go_on_fetching() {
  const NewWeights& what = update->what;
  while (const std::optional<uint64_t> offset = update->fetch->next())
    rt::tell(self, what.source, ReadWeights{what.version, *offset, handle{self}});
  if (!update->fetch->is_whole()) return;
  makers->loader->offer(what.folder, update->fetch->memory());
  update->fetch.reset();
  load_update();
}

void NodeActor::on_weight_part(const WeightPart& part) {
  if (!update || !update->fetch || part.version != update->what.version) return;  // of an update that failed
  if (const Status taken = update->fetch->take(part); !taken.ok()) return fail_update(taken.error().detail);
  update->heard_us = rt::now_us(self);
  go_on_fetching();
}

/// Looks again later, as long as parts come.
void NodeActor::end_silent_fetch() {
  const int64_t now = rt::now_us(self);
  if (!update || !update->fetch || now < update->look_us) return;
  if (now - update->heard_us >= kSilentUsMax)
    return fail_update(cat("the server that sends the weights was silent for ", kSilentUsMax / 1'000'000, " s"));
  update->look_us = now + kSilentUsMax;
  rt::tell_after(self, kSilentUsMax, handle{self}, Tick{kLookAtFetch});
}

/// Their bytes are on this machine.
void NodeActor::load_update() {
  for (const auto& [id, instance] : instances)
    if (instance.handle && !instance.updating) update->waiting.insert(id);
  if (update->waiting.empty()) return fail_update("it has no instance that runs");
  for (const InstanceId id : update->waiting) update_instance(id, update->what);
}

/// Before any instance was asked.
void NodeActor::fail_update(const std::string& why) {
  log.warn(rt::now_us(self), "weights_failed", {{"node", config.node}, {"error", why}});
  end_update({config.node, update->what.version, cat("node ", config.node, ": ", why), 0});
}

void NodeActor::end_update(const WeightsUpdated& answer) {
  for (const WeightsSink& asker : update->askers) rt::tell(self, asker, answer);
  if (update->what.source) makers->loader->withdraw(update->what.folder);  // which keeps what runs
  update.reset();
}

void NodeActor::on_weights(const InstanceWeights& answer) {
  Instance& instance = instances.at(answer.instance);
  if (!instance.handle) return;  // it died meanwhile
  if (const bool is_asked = update && update->waiting.contains(answer.instance); !answer.error.empty() && !is_asked) {
    log.warn(rt::now_us(self), "weights_failed", {{"instance", answer.instance}, {"node", config.node}, {"error", answer.error}});
    return restart_later(answer.instance);  // others have these weights
  }
  if (answer.version == weights.version && answer.kv_hash != weights.weights) {
    const std::string why = cat(weights.folder, " changed while instances loaded it");
    log.warn(rt::now_us(self), "weights_failed", {{"instance", answer.instance}, {"node", config.node}, {"error", why}});
    updated(answer.instance, why);
    return restart_later(answer.instance);
  }
  instance.updating = false;
  instance.info.version = answer.version;
  instance.info.kv_hash = answer.kv_hash;
  if (!draining && !is_outdated(instance)) tell_all(instance_up(answer.instance));  // after an error too: rollouts may have left it
  updated(answer.instance, answer.error);
  update_outdated();
}

void NodeActor::update_instance(InstanceId id, const NewWeights& to) {
  instances.at(id).updating = true;
  rt::tell(self, instances.at(id).handle, UpdateInstance{to, handle{self}});
}

/// An instance that could not take weights that others have tries again, as a new one. Each time it waits for longer, since what it
/// reads them from may be away for a while.
void NodeActor::restart_later(InstanceId id) {
  Instance& instance = instances.at(id);
  instance.unable = true;
  rt::tell_after(self, kUnablePauseUs << std::min(instance.restarts.count, kUnableDoublings), handle{self}, Tick{kRestartInstance, id.value});
}

void NodeActor::restart_unable(InstanceId id) {
  if (const Instance& instance = instances.at(id); instance.handle && instance.unable) rt::stop(instance.handle);
}

/// Sends the weights of the others to instances that were restarted or failed to change.
void NodeActor::update_outdated() {
  for (const auto& [id, instance] : instances)
    if (instance.handle && !instance.updating && is_outdated(instance)) update_instance(id, weights);
}

/// Once some instance has the new weights, all must get them. Answers the update when all instances have answered.
void NodeActor::updated(InstanceId id, const std::string& error) {
  if (!update || update->waiting.erase(id) == 0) return;
  if (error.empty()) {
    weights = update->what;
    weights.weights = instances.at(id).info.kv_hash;
    if (makers->loader) makers->loader->settle(weights.version);
  }
  if (update->error.empty()) update->error = error;
  if (!update->waiting.empty()) return;
  if (update->error.empty())
    log.info(rt::now_us(self), "weights_updated", {{"node", config.node}, {"weight_version", update->what.version}});
  else
    log.warn(rt::now_us(self), "weights_failed",
             {{"node", config.node}, {"weight_version", update->what.version}, {"error", update->error}});
  const bool is_taken = weights.version == update->what.version;  // even if those that took them have died since
  end_update({config.node, update->what.version, update->error, is_taken ? weights.weights : 0});
}

// ---- leaving -----------------------------------------------------------------------------------------------------------

void NodeActor::on_drain(const DrainNode& drain) {
  if (draining) return;
  draining = true;
  drain_until_us = rt::now_us(self) + drain.timeout_us;
  log.info(rt::now_us(self), "node_draining", {{"node", config.node}, {"timeout_s", drain.timeout_us / 1'000'000}});
  tell_all(all_draining());
  tell_kv_drains();
  for (const auto& [id, instance] : instances)
    if (instance.handle) rt::tell(self, instance.handle, YieldChunks{});
  rt::tell_after(self, kDrainLookUs, handle{self}, Tick{kLookAtDrain});
}

/// Once the machine drains, and has KV, and has a directory, in whatever order that came.
void NodeActor::tell_kv_drains() {
  if (draining && kv_node && directory) rt::tell(self, directory, KvDraining{config.node});
}

InstancesDraining NodeActor::all_draining() const {
  InstancesDraining all{config.node, {}};
  for (const auto& [id, instance] : instances) all.instances.push_back(id);
  return all;
}

void NodeActor::leave_when_drained() {
  gather_report([this](const NodeReport& report) {
    int64_t left = 0;
    for (const InstanceReport& instance : report.instances) left += instance.chunks;
    for (const KvNodeReport& pool : report.pool) left += pool.kept_requests;
    const int64_t now = rt::now_us(self);
    const auto up = std::ranges::count_if(instances, [](const auto& i) { return i.second.handle != nullptr; });
    const bool all_answered = std::ssize(report.instances) >= up && (kv_node == nullptr || !report.pool.empty());
    if ((left > 0 || !all_answered) && now < drain_until_us) return rt::tell_after(self, kDrainLookUs, handle{self}, Tick{kLookAtDrain});
    log.info(now, "node_drained", {{"node", config.node}, {"requests_left", left}});
    rt::quit(self);
  });
}

/// The identity of an instance with the newest weights; empty: none is up.
ClusterIdentity NodeActor::identity() const {
  const Instance* newest = nullptr;
  for (const auto& [id, instance] : instances)
    if (instance.handle && (newest == nullptr || newest->info.version < instance.info.version)) newest = &instance;
  return newest == nullptr ? ClusterIdentity{} : instance_identity(newest->info, tokenizer_hash);
}

template <class Then>
void NodeActor::gather_report(Then then) {
  std::map<InstanceId, InstanceHandle> up;
  for (const auto& [id, instance] : instances)
    if (instance.handle) up.emplace(id, instance.handle);
  rt::gather_then<std::vector<InstanceReport>>(self, up, GetReport{}, [this, then](std::vector<InstanceReport> reports) {
    std::map<NodeId, KvNodeHandle> pool;
    if (kv_node) pool.emplace(config.node, kv_node);
    rt::gather_then<std::vector<KvNodeReport>>(
        self, pool, GetReport{}, [this, then, reports = std::move(reports)](std::vector<KvNodeReport> of_pool) mutable {
          then(NodeReport{config.node, draining, restarts, std::move(reports), std::move(of_pool), identity()});
        });
  });
}

rt::result<NodeReport> NodeActor::on_report() {
  auto promise = self->make_response_promise<NodeReport>();
  gather_report([promise](NodeReport report) mutable { promise.deliver(std::move(report)); });
  return promise;
}

// ---- telling -----------------------------------------------------------------------------------------------------------

/// REQUIRES: the instance runs.
InstanceUp NodeActor::instance_up(InstanceId id) const {
  const Instance& i = instances.at(id);
  return {id, config.node, i.info.device_blocks, i.info.block_tokens, i.config.rows_max, i.handle, instance_identity(i.info, tokenizer_hash)};
}

void NodeActor::lose(std::vector<InstanceId> lost, std::string reason) {
  for (const InstanceId id : lost) instances.at(id).is_lost = true;
  losses.push_back({config.node, std::move(lost), std::move(reason)});
  tell_all(losses.back());
}

/// The others are lost.
bool NodeActor::is_last(InstanceId id) const {
  return std::ranges::all_of(instances, [id](const auto& other) { return other.first == id || other.second.is_lost; });
}

bool NodeActor::may_restart(Restarts& of) {
  const int64_t now = rt::now_us(self);
  if (now - of.last_us > kRestartsUs) of.count = 0;
  of.last_us = now;
  ++restarts;
  return ++of.count <= config.restarts_max;
}

/// `why`: the reason that it gave; empty: none.
std::string NodeActor::died_text(const std::string& part, const std::string& why) const {
  return cat(part, " died after ", config.restarts_max, " restarts", why.empty() ? "" : ": ", why);
}

void NodeActor::give_up_restarting(const std::string& part, const std::string& why) {
  give_up(cat("node ", config.node, " gave up when ", died_text(part, why)));
}

/// `why`: one sentence that names the node.
void NodeActor::give_up(const std::string& why) {
  std::vector<InstanceId> all;
  for (const auto& [id, instance] : instances) all.push_back(id);
  log.error(rt::now_us(self), "node_gave_up", {{"node", config.node}, {"restarts", restarts}, {"reason", why}});
  lose(std::move(all), why);
  rt::quit(self, why);
}

}  // namespace seer
