#include "actors/fleet.h"

#include <algorithm>
#include <utility>

#include "actors/context_actor.h"
#include "actors/kv_directory_actor.h"

namespace seer {
namespace {

template <class Listener, class Event>
void call(const Listener& listener, Event& event) {
  if (listener) listener(event);
}

}  // namespace

NodeConfig node_config(const FleetConfig& config, NodeId id) {
  NodeConfig node = config.node;
  node.node = node.kv_node.node = id;
  if (node.draft_server) node.draft_server->node = id;
  const auto add = [&](uint32_t i) {
    node.instances.push_back(config.instance);
    node.instances.back().id = InstanceId{i};
  };
  if (config.instances_per_node == 0) {
    for (uint32_t i = id.value; i < config.instances; i += config.nodes) add(i);
  } else {
    const uint32_t first = id.value * config.instances_per_node;
    for (uint32_t i = first; i < std::min(config.instances, first + config.instances_per_node); ++i) add(i);
  }
  return node;
}

NodeHandle start_node(rt::system& system, const NodeConfig& config, std::shared_ptr<const NodeMakers> makers, NodeMachinery made,
                      const KvDirectoryHandle& directory, const EventLog& log) {
  return rt::spawn<NodeActor>(
      system, config, NodeParts{std::move(makers), std::make_shared<NodeMachinery>(std::move(made)), directory, log});
}

Result<NodeHandle> start_node(rt::system& system, const NodeConfig& config, std::shared_ptr<const NodeMakers> makers,
                              const KvDirectoryHandle& directory, const EventLog& log) {
  SEER_ASSIGN_OR_RETURN(NodeMachinery made, make_machinery(config, *makers));
  return start_node(system, config, std::move(makers), std::move(made), directory, log);
}

void receive_event(rt::Inbox<RolloutEvents>& events, int64_t timeout_us, const RolloutListener& listener) {
  events.receive(
      timeout_us, [&](Response& response) { call(listener.response, response); },
      [&](const RolloutProgress& progress) { call(listener.progress, progress); },
      [&](const RolloutCommits& commits) { call(listener.commits, commits); },
      [&](RolloutSummary& summary) { call(listener.summary, summary); });
}

ListenerActor::handle::behavior_type ListenerActor::make_behavior() {
  return {[this](Response& response) { call(listener.response, response); },
          [this](const RolloutProgress& progress) { call(listener.progress, progress); },
          [this](const RolloutCommits& commits) { call(listener.commits, commits); },
          [this](RolloutSummary& summary) { call(listener.summary, summary); }};
}

Fleet::Fleet(rt::system& system, FleetLinks links, EventLog log)
    : system_(system),
      links_(std::move(links)),
      log_(std::move(log)),
      owns_directory_(true),
      directory_(rt::spawn<KvDirectoryActor>(system)) {}

Fleet::Fleet(rt::system& system, KvDirectoryHandle directory, EventLog log)
    : system_(system), log_(std::move(log)), owns_directory_(false), directory_(std::move(directory)), has_pool_(true) {}

Fleet::~Fleet() {
  while (!rollouts_.empty()) end_rollout(rollouts_.begin()->first);
  for (const auto& [id, node] : nodes_)
    if (starts_.contains(id)) rt::stop(node);
  if (owns_directory_) rt::stop(directory_);
}

Status Fleet::start_nodes(const FleetConfig& config, std::shared_ptr<const NodeMakers> makers) {
  std::vector<std::pair<NodeConfig, NodeMachinery>> made;
  for (uint32_t n = 0; n < config.nodes; ++n) {
    SEER_RETURN_IF_ERROR(check_name(NodeId{n}));
    NodeConfig node = node_config(config, NodeId{n});
    SEER_ASSIGN_OR_RETURN(NodeMachinery machinery, make_machinery(node, *makers));
    made.emplace_back(std::move(node), std::move(machinery));
  }
  for (auto& [node, machinery] : made) start_made(std::move(node), makers, std::move(machinery));
  return {};
}

Status Fleet::start_node(NodeConfig config, std::shared_ptr<const NodeMakers> makers) {
  SEER_RETURN_IF_ERROR(check_name(config.node));
  SEER_ASSIGN_OR_RETURN(NodeMachinery made, make_machinery(config, *makers));
  start_made(std::move(config), std::move(makers), std::move(made));
  return {};
}

void Fleet::start_made(NodeConfig config, std::shared_ptr<const NodeMakers> makers, NodeMachinery made) {
  config.epoch = ++starts_[config.node] * kEpochsOfStart;
  const KvDirectoryHandle directory = directory_of_a_node();
  has_pool_ |= made.pool.arena != nullptr;
  NodeHandle& node = nodes_[config.node];
  node = seer::start_node(system_, config, std::move(makers), std::move(made), directory, log_);
  for (const auto& [id, rollout] : rollouts_) rt::post(node, AttachRollout{rollout.sink});
}

Status Fleet::add_node(NodeId id, NodeHandle node) {
  SEER_RETURN_IF_ERROR(check_name(id));
  has_pool_ = true;  // it may have one
  for (const auto& [of, rollout] : rollouts_) rt::post(node, AttachRollout{rollout.sink});
  nodes_[id] = std::move(node);
  return {};
}

void Fleet::remove_node(NodeId id) {
  SEER_CHECK(nodes_.erase(id) == 1, id);
}

void Fleet::lose_node(const PartLost& lost) {
  remove_node(lost.node);
  for (const auto& [id, rollout] : rollouts_) rt::post(rollout.sink, lost);
}

KvDirectoryHandle Fleet::directory_of_a_node() const { return links_.to_directory ? links_.to_directory(directory_) : directory_; }

void Fleet::use_directory(KvDirectoryHandle directory) {
  directory_ = std::move(directory);
  for (const auto& [id, node] : nodes_)
    if (starts_.contains(id)) rt::post(node, DirectoryUp{directory_of_a_node()});
  for (const auto& [id, rollout] : rollouts_) rt::post(rollout.handle, DirectoryUp{directory_});
}

Status Fleet::check_name(NodeId id) const {
  if (!nodes_.contains(id)) return {};
  return fail(Code::kInvalidArgument, "two nodes have the name ", id, ": each node of a fleet needs its own");
}

RolloutHandle Fleet::start_rollout(RolloutConfig config, RolloutTask task, RolloutEvents events) {
  SEER_CHECK(!rollouts_.contains(config.id), config.id);
  Rollout& rollout = rollouts_[config.id];
  rollout.context = rt::spawn<ContextActor>(system_);
  rollout.handle = rt::spawn<RolloutActor>(
      system_, std::move(config),
      RolloutParts{std::move(task.groups), rollout.context, has_pool_ ? directory_ : KvDirectoryHandle{}, std::move(events),
                   std::move(task.pasts), log_, std::move(task.resumed)});
  rollout.sink = links_.to_rollout ? links_.to_rollout(rollout.handle) : InstanceSink{rollout.handle};
  for (const auto& [id, node] : nodes_) rt::post(node, AttachRollout{rollout.sink});
  return rollout.handle;
}

void Fleet::end_rollout(RolloutId id) {
  const auto ended = rollouts_.find(id);
  SEER_CHECK(ended != rollouts_.end(), id);
  rt::stop(ended->second.handle);
  rt::stop(ended->second.context);
  rollouts_.erase(ended);
}

std::vector<NodeId> Fleet::update_weights(const NewWeights& weights, const WeightsSink& reply_to) {
  std::vector<NodeId> asked;
  for (const auto& [id, node] : nodes_) {
    rt::post(node, UpdateWeights{weights, reply_to});
    asked.push_back(id);
  }
  return asked;
}

RolloutHandle Fleet::rollout(RolloutId id) const {
  const auto at = rollouts_.find(id);
  return at == rollouts_.end() ? RolloutHandle{} : at->second.handle;
}

NodeHandle Fleet::node(NodeId id) const {
  const auto at = nodes_.find(id);
  return at == nodes_.end() ? NodeHandle{} : at->second;
}

}  // namespace seer
