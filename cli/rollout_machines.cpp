#include "cli/rollout_machines.h"

#include <algorithm>
#include <utility>

#include "cli/engine_source.h"
#include "cli/machine_parts.h"
#include "protocols/hash.h"

namespace seer {
namespace {

/// The response that may get the longest, of the prompts that are there before the rollout starts. One that comes later and needs more
/// KV than there is fails alone.
struct LongestResponse {
  int64_t line = 0;
  int64_t prompt_tokens = 0, max_tokens = 0;
  int64_t tokens() const { return prompt_tokens + max_tokens; }
};

LongestResponse longest_response(const RolloutWork& work) {
  LongestResponse longest;
  for (const GroupSpec& group : work.groups) {
    const LongestResponse own{static_cast<int64_t>(work.lines[group.id.index].line), std::ssize(group.prompt_ids), group.sampling.max_tokens};
    if (own.tokens() > longest.tokens()) longest = own;
  }
  return longest;
}

/// Checks that it fits in the KV cache of one instance.
Status check_kv_fits(const RolloutOptions& options, const LongestResponse& longest, const EngineInfo& engine) {
  const int64_t blocks = (longest.tokens() + engine.block_tokens - 1) / engine.block_tokens;
  if (blocks <= engine.device_blocks) return {};
  return fail(Code::kInvalidArgument, "--kv-bytes ", options.kv_bytes, " holds ", engine.device_blocks, " KV blocks of ",
              engine.block_bytes, " bytes, and the prompt of ", options.prompts_name(), ":", longest.line, " (", longest.prompt_tokens,
              " tokens) with max_tokens ", longest.max_tokens, " needs ", blocks, ": the least that works is ", blocks * engine.block_bytes);
}

/// With --html, a history for each instance; else none.
LoadHistories make_histories(const RolloutOptions& options) {
  LoadHistories histories;
  if (options.html.empty()) return histories;
  const auto clock = std::make_shared<LoadHistory::Clock>();
  for (uint32_t i = 0; i < options.instances; ++i) histories[InstanceId{i}] = std::make_shared<LoadHistory>(clock);
  return histories;
}

/// Makers of engines large enough for every response, watched if there are histories.
/// REQUIRES: options and aside outlive the makers.
Result<NodeMakers> make_makers(const RolloutOptions& options, const RolloutWork& work, const LoadHistories& histories,
                               SlowWork& aside) {
  SEER_ASSIGN_OR_RETURN(NodeMakers makers, make_local_makers(options, options.nodes, work.loaded, aside));
  // Other prompts may come while an engine is made again.
  makers.make_engine = [make = makers.make_engine, &options, longest = longest_response(work), histories](InstanceId id) -> Result<std::shared_ptr<Engine>> {
    SEER_ASSIGN_OR_RETURN(std::shared_ptr<Engine> engine, make(id));
    SEER_RETURN_IF_ERROR(check_kv_fits(options, longest, engine->info()));
    const auto history = histories.find(id);
    return history == histories.end() ? engine : watch_engine(std::move(engine), history->second);
  };
  return makers;
}

}  // namespace

RolloutMachines::RolloutMachines(const RolloutOptions& options)
    : aside_({}, [](std::function<void()>& f) { f(); }), histories_(make_histories(options)) {}

RolloutMachines::~RolloutMachines() {
  if (servers_ && fleet_)
    for (const auto& [id, node] : fleet_->nodes()) rt::stop(node);
}

Result<std::unique_ptr<RolloutMachines>> RolloutMachines::open(const RolloutOptions& options, const RolloutWork& work,
                                                               const std::atomic<bool>& stop, const EventLog& log, RolloutConfig& config) {
  std::unique_ptr<RolloutMachines> machines(new RolloutMachines(options));
  if (!options.router.engines.empty())
    SEER_RETURN_IF_ERROR(machines->connect_servers(options, work, stop, log, config));
  else if (!options.cluster.empty())
    SEER_RETURN_IF_ERROR(machines->enter_cluster(options, work, stop, log, config));
  else
    SEER_RETURN_IF_ERROR(machines->start_here(options, work, log));
  return machines;
}

Status RolloutMachines::start_here(const RolloutOptions& options, const RolloutWork& work, const EventLog& log) {
  local_system_.emplace(config_);
  SEER_RETURN_IF_ERROR(check_sizes(options, work.config));
  SEER_ASSIGN_OR_RETURN(NodeMakers makers, make_makers(options, work, histories_, aside_));
  fleet_.emplace(*local_system_, FleetLinks{}, log);
  const auto kv_hash = std::make_shared<std::atomic<uint64_t>>(0);
  makers.make_engine = [make = makers.make_engine, kv_hash](InstanceId id) {
    auto engine = make(id);
    if (engine.ok()) *kv_hash = (*engine)->info().kv_hash;  // the same for all, also at a restart
    return engine;
  };
  SEER_RETURN_IF_ERROR(fleet_->start_nodes(fleet_config(options, options.nodes), std::make_shared<const NodeMakers>(std::move(makers))));
  // CPUs give the same bits whatever the size of KV blocks, which the engine's hash knows too. GPUs of another kind do not.
  const bool is_cpu = options.device == DeviceKind::kCpu;
  weights_ = is_cpu ? hash_pair(work.loaded.model()->weights_hash, static_cast<uint64_t>(options.kv_dtype)) : kv_hash->load();
  return {};
}

Status RolloutMachines::enter_cluster(const RolloutOptions& options, const RolloutWork& work, const std::atomic<bool>& stop,
                                      const EventLog& log, RolloutConfig& config) {
  SEER_ASSIGN_OR_RETURN(net_, ClusterNet::create(options.access, log));
  SEER_ASSIGN_OR_RETURN(cluster_, ClusterMachines::enter(*net_,
                                                         {.address = options.cluster,
                                                          .model = model_identity(options.model, work.config, work.tokenizer.get()),
                                                          .wait_s = options.controller_wait_s},
                                                         stop, log));
  const RolloutEntered& entered = cluster_->entered();
  config.id = cluster_->take_id();
  config.version = entered.version;
  config.weights = entered.weights;
  config.instances_expected = entered.instances;  // instances that come later take part too
  weights_ = entered.weights;
  return {};
}

Status RolloutMachines::connect_servers(const RolloutOptions& options, const RolloutWork& work, const std::atomic<bool>& stop,
                                        const EventLog& log, RolloutConfig& config) {
  servers_.emplace(server_fleet_config(options, options.router, work.config), work.tokenizer, log);
  local_system_.emplace(config_);
  SEER_RETURN_IF_ERROR(servers_->open());
  fleet_.emplace(*local_system_, FleetLinks{}, log);
  SEER_RETURN_IF_ERROR(servers_->start(*fleet_, *local_system_, stop));
  if (servers_->up_count() == 0) {
    std::string all;
    for (const auto& [id, server] : servers_->all())
      all += cat(all.empty() ? "" : "; ", url_of(server.link.address), ": ", server.has_answered ? server.why_out : "no answer in time");
    return fail(Code::kUnavailable, "--engines: no server answers: ", all);
  }
  SEER_ASSIGN_OR_RETURN(std::string label, servers_->weights_label());
  if (label != cat(config.version)) weights_name_ = std::move(label);
  config.scheduler = routed_scheduler(config.scheduler, options.router);
  config = routed_rollout(std::move(config), servers_->all().size());  // those that are out say so, and take part later
  weights_ = servers_->weights();
  return {};
}

RolloutHandle RolloutMachines::start_rollout(const RolloutConfig& config, RolloutTask task, const RolloutEvents& events) {
  return fleet_ ? fleet_->start_rollout(config, std::move(task), events) : cluster_->start_rollout(config, std::move(task), events);
}

Status RolloutMachines::follow() {
  if (!cluster_) return {};
  cluster_->follow();
  return cluster_->status();
}

std::optional<Result<StepProfile>> RolloutMachines::learned() const {
  if (!servers_) return {};
  return servers_->profile({});
}

std::vector<InstanceTimeline> RolloutMachines::timelines(double wall_s) const {
  std::vector<InstanceTimeline> all;
  for (const auto& [id, history] : histories_) all.push_back(history->take(wall_s));
  return all;
}

}  // namespace seer
