#include "cli/cluster_machines.h"

#include <numeric>
#include <utility>

namespace seer {

ClusterIdentity model_identity(const std::string& folder, const ModelConfig& config, const Tokenizer* tokenizer) {
  return {.model = model_name(folder),
          .shape = shape_hash(config),
          .version = {},
          .endings = endings_text(config.eos_ids, config.context_tokens_max),
          .tokenizer = pieces_hash(tokenizer)};
}

Result<std::unique_ptr<ClusterMachines>> ClusterMachines::enter(ClusterNet& net, Config config, const std::atomic<bool>& stop,
                                                                const EventLog& log) {
  SEER_ASSIGN_OR_RETURN(ClusterHandle controller, dial_cluster(net, config.address, "--cluster", stop));
  SEER_ASSIGN_OR_RETURN(RolloutEntered entered, enter_rollout(net, config.address, controller, {.id = {}, .identity = config.model}));
  return std::unique_ptr<ClusterMachines>(new ClusterMachines(net, std::move(config), std::move(controller), std::move(entered), log));
}

ClusterMachines::ClusterMachines(ClusterNet& net, Config config, ClusterHandle controller, RolloutEntered entered, const EventLog& log)
    : net_(net),
      config_(std::move(config)),
      entered_(std::move(entered)),
      log_(log),
      fleet_(net.system(), entered_.directory, log),
      controller_(std::move(controller)),
      ids_{entered_.id} {
  watch_.emplace(net_, controller_, ClusterWatch::Config{.address = config_.address, .wait_s = config_.wait_s},
                 ClusterWatch::Hooks{[this](const NodeAddress& at, NodeHandle node, uint32_t instances) {
                                       return joined(at, std::move(node), instances);
                                     },
                                     [this](const PartLost& lost) { left(lost); },
                                     [this](const ClusterHandle& returned) { return enter_again(returned); },
                                     config_.weights_changed},
                 log);
}

RolloutId ClusterMachines::take_id() {
  const std::lock_guard lock(mutex_);
  if (ids_.empty()) return {};
  const RolloutId id = ids_.front();
  ids_.pop_front();
  taken_.insert(id);
  return id;
}

void ClusterMachines::follow() {
  watch_->follow();
  if (watch_->has_controller()) fetch_ids();
}

/// Outside of the lock: it waits for the controller.
void ClusterMachines::fetch_ids() {
  const auto missing = [this] {
    const std::lock_guard lock(mutex_);
    return ids_.size() < config_.spare_ids;
  };
  while (missing()) {
    const auto entered = enter_rollout(net_, config_.address, controller_, {.id = {}, .identity = config_.model});
    if (!entered.ok()) return note_refusal(entered.error().detail);  // it is asked again
    last_refusal_.clear();
    const std::lock_guard lock(mutex_);
    ids_.push_back(entered->id);
  }
}

void ClusterMachines::note_refusal(const std::string& why) {
  if (why != last_refusal_) log_.warn(rt::now_us(&net_.system()), "no_new_rollout", {{"error", why}});
  last_refusal_ = why;
}

RolloutHandle ClusterMachines::start_rollout(RolloutConfig config, RolloutTask task, const RolloutEvents& events) {
  const std::lock_guard lock(mutex_);
  const RolloutId id = config.id;
  size_t instances = 0;
  for (const auto& [node, count] : instances_) instances += count;
  if (instances > 0) config.instances_expected = instances;
  config.machines_may_join = true;
  RolloutHandle rollout = fleet_.start_rollout(std::move(config), std::move(task), events);
  rt::post(controller_, RolloutStarted{id, rollout});
  return rollout;
}

void ClusterMachines::end_rollout(RolloutId id) {
  const std::lock_guard lock(mutex_);
  taken_.erase(id);
  fleet_.end_rollout(id);
}

std::vector<NodeId> ClusterMachines::update_weights(const NewWeights& weights, const WeightsSink& reply_to) {
  const std::lock_guard lock(mutex_);
  return fleet_.update_weights(weights, reply_to);
}

void ClusterMachines::weights_are(const ClusterWeights& weights) {
  const std::lock_guard lock(mutex_);
  weights_ = weights;
  rt::post(controller_, weights);
}

void ClusterMachines::changed_late(const WeightsUpdated& answer) {
  const std::lock_guard lock(mutex_);
  rt::post(controller_, answer);
}

KvDirectoryHandle ClusterMachines::directory() const {
  const std::lock_guard lock(mutex_);
  return fleet_.directory();
}

std::map<NodeId, NodeHandle> ClusterMachines::nodes() const {
  const std::lock_guard lock(mutex_);
  return fleet_.nodes();
}

int64_t ClusterMachines::instances_expected() const {
  const int64_t now = rt::now_us(&net_.system());
  int64_t expected = instances_up();
  const std::lock_guard lock(mutex_);
  for (const auto& [node, missed] : missed_)
    if (now - missed.since_us < kMissedUs) expected += missed.instances;
  return expected;
}

int64_t ClusterMachines::instances_up() const {
  const std::lock_guard lock(mutex_);
  return std::accumulate(instances_.begin(), instances_.end(), int64_t{0}, [](int64_t sum, const auto& machine) { return sum + machine.second; });
}

Status ClusterMachines::joined(const NodeAddress& at, NodeHandle node, uint32_t instances) {
  const std::lock_guard lock(mutex_);
  SEER_RETURN_IF_ERROR(fleet_.add_node(at.node, std::move(node)));
  instances_[at.node] = instances;
  missed_.erase(at.node);
  return {};
}

void ClusterMachines::left(const PartLost& lost) {
  {
    const std::lock_guard lock(mutex_);
    if (fleet_.node(lost.node)) fleet_.lose_node(lost);
    const auto at = instances_.find(lost.node);
    if (at != instances_.end() && !lost.reason.empty()) missed_[lost.node] = {at->second, rt::now_us(&net_.system())};
    instances_.erase(lost.node);
  }
  if (config_.node_left) config_.node_left(lost.node, lost.reason.empty());
}

/// The controller answers again, or another one was started: it hears of all rollouts that run, and gives new spare ids.
Status ClusterMachines::enter_again(const ClusterHandle& returned) {
  std::set<RolloutId> taken;
  {
    const std::lock_guard lock(mutex_);
    taken = taken_;
    ids_.clear();
  }
  KvDirectoryHandle directory;
  for (const RolloutId id : taken) {
    SEER_ASSIGN_OR_RETURN(const RolloutEntered again, enter_rollout(net_, config_.address, returned, {.id = id, .identity = config_.model}));
    directory = again.directory;
  }
  if (taken.empty()) {  // a controller that has no machine yet refuses, but says which directory it has
    SEER_ASSIGN_OR_RETURN(const RolloutEntered ahead, ask_to_roll_out(net_, config_.address, returned, {.id = {}, .identity = config_.model}));
    directory = ahead.directory;
  }
  const std::lock_guard lock(mutex_);
  fleet_.use_directory(directory);
  for (const RolloutId id : taken_)
    if (fleet_.rollout(id)) rt::post(returned, RolloutStarted{id, fleet_.rollout(id)});
  controller_ = returned;
  // Not which machines had them then: each says what it has when it enters.
  if (weights_) rt::post(returned, ClusterWeights{weights_->what, {}});
  return {};
}

}  // namespace seer
