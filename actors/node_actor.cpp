#include "actors/node_actor.h"

#include <algorithm>
#include <utility>

namespace seer {

NodeActor::NodeActor(rt::self_ptr<NodeActor> self_in, NodeConfig config_in, NodeParts parts_in)
    : self(self_in), config(std::move(config_in)), parts(std::move(parts_in)), epoch(config.epoch) {
  rt::on_down(self, [this](const rt::down& message) { on_down(message); });
  start_kv_node();
  start_draft_server();
  for (const InstanceConfig& instance : config.instances) start_instance(instance);
  parts.log.info(rt::now_us(self), "node_up", {{"node", config.node}, {"instances", instances.size()}});
}

NodeActor::~NodeActor() {
  for (auto& [id, instance] : instances) rt::stop(instance.handle);
  if (draft_server) rt::stop(draft_server);
  if (kv_node) rt::stop(kv_node);
}

NodeActor::handle::behavior_type NodeActor::make_behavior() {
  return {[this](const AttachRollout& rollout) { attach(rollout.reply_to); }};
}

void NodeActor::attach(const InstanceSink& sink) {
  if (std::ranges::find(sinks, sink) == sinks.end()) {
    sinks.push_back(sink);
    rt::monitor(self, sink);
  }
  if (draft_server) rt::tell(self, sink, DraftServerUp{config.node, draft_server});
  for (const auto& [id, instance] : instances) rt::tell(self, sink, instance_up(id));
}

void NodeActor::start_kv_node() {
  if (!parts.make_arena) return;
  arena = parts.make_arena();
  ++epoch;
  kv_node = rt::spawn<KvNodeActor>(self->system(), config.kv_node,
                                   KvNodeParts{arena, parts.open_cold, parts.directory, parts.transport, epoch, parts.log});
  rt::monitor(self, kv_node);
}

void NodeActor::start_draft_server() {
  if (!config.draft_server) return;
  draft_server = rt::spawn<DraftServerActor>(self->system(), *config.draft_server);
  rt::monitor(self, draft_server);
}

void NodeActor::start_instance(const InstanceConfig& instance) {
  std::shared_ptr<Engine> engine = parts.make_engine(instance.id);
  const EngineInfo info = engine->info();
  auto started = rt::spawn<InstanceActor>(self->system(), instance,
                                          InstanceParts{std::move(engine), parts.tokenizer, kv_node, arena,
                                                        parts.make_drafting ? parts.make_drafting() : Drafting{}});
  rt::monitor(self, started);
  instances[instance.id] = {started, info.device_blocks, info.block_tokens, instance.rows_max,
                            {.model = model_name(info.model), .layout = info.layout_hash}};
}

InstanceUp NodeActor::instance_up(InstanceId id) const {
  const Running& r = instances.at(id);
  return {id, config.node, r.kv_blocks, r.block_tokens, r.rows_max, r.handle, r.identity};
}

void NodeActor::give_up() {
  parts.log.error(rt::now_us(self), "node_gave_up", {{"node", config.node}, {"restarts", config.restarts_max}});
  self->quit();
}

void NodeActor::on_down(const rt::down& message) {
  if (rt::is_source(message, draft_server)) {
    if (!may_restart()) return give_up();
    parts.log.warn(rt::now_us(self), "draft_server_restarted", {{"node", config.node}, {"restarts", restarts}});
    start_draft_server();
    for (const InstanceSink& sink : sinks) rt::tell(self, sink, DraftServerUp{config.node, draft_server});
    return;
  }
  if (rt::is_source(message, kv_node)) {
    if (!may_restart()) return give_up();
    parts.log.warn(rt::now_us(self), "kv_node_restarted", {{"node", config.node}, {"restarts", restarts}});
    start_kv_node();
    for (auto& [id, instance] : instances) {
      instance.stopped = true;
      rt::stop(instance.handle);
    }
    return;
  }
  for (const InstanceConfig& instance : config.instances) {
    const Running& old = instances.at(instance.id);
    if (!rt::is_source(message, old.handle)) continue;
    if (!old.stopped && !may_restart()) return give_up();
    parts.log.warn(rt::now_us(self), "instance_restarted", {{"instance", instance.id}, {"node", config.node}, {"restarts", restarts}});
    start_instance(instance);
    for (const InstanceSink& sink : sinks) rt::tell(self, sink, instance_up(instance.id));
    return;
  }
  std::erase_if(sinks, [&](const InstanceSink& sink) { return rt::is_source(message, sink); });
}  // anything else is the end of something already replaced

}  // namespace seer
