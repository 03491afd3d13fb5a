#include "cli/local_rollout.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "actors/fleet.h"
#include "actors/policy/draft/draft_history.h"
#include "actors/policy/schedule/policies.h"
#include "cli/chat_prompts.h"
#include "cli/cluster_machines.h"
#include "cli/cluster_net.h"
#include "cli/engine_source.h"
#include "cli/machine_memory.h"
#include "cli/machine_parts.h"
#include "cli/past_responses.h"
#include "cli/policy_auto.h"
#include "cli/server_fleet.h"
#include "cli/steady_time.h"
#include "cli/watched_engine.h"
#include "gpu/cpu/cpu_engine.h"
#include "gpu/model/model_folder.h"
#include "gpu/sampler.h"
#include "protocols/cpu_time.h"
#include "protocols/hash.h"

namespace seer {
namespace {

constexpr int64_t kReceiveUs = 100'000;  // between two checks of the stop flag
constexpr int64_t kStreamUs = 10'000;    // the same if prompts come while the rollout runs
constexpr size_t kKeptMax = 4096;         // responses that are not written yet

/// CPU time of the actors: of the runtime's threads, which all bear its name, and of those lent to it.
int64_t actors_cpu_us() {
  int64_t ns = 0;
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    int64_t task_ns = 0;
    if (name.starts_with("caf.")) std::ifstream(task.path() / "schedstat") >> task_ns;
    ns += task_ns;
  }
  return ns / 1000 + rt::LentThread::used_us();
}

/// Checks that the model supports the line's sampling. REQUIRES: it supports that of the flags.
Status check_sampling(const RolloutOptions& options, const RolloutWork& work, const PromptLine& line) {
  const auto wrong = [&](const auto&... what) {
    return fail(Code::kInvalidArgument, options.prompts_name(), ":", line.line, ": ", what...);
  };
  if (const Status valid = validate(line.sampling); !valid.ok()) return wrong(valid.error().detail);
  if (!line.sampling.stop.empty() && work.tokenizer == nullptr)
    return wrong("stop needs a tokenizer, and ", options.model, " has none; use stop_token_ids instead");
  for (const int32_t id : line.sampling.stop_token_ids)
    if (id >= work.config.vocab_size)
      return wrong("stop_token_ids has ", id, ": expected ids of the vocabulary of ", work.config.vocab_size);
  if (const Status fits = check_ending_ids(line.sampling, work.config.eos_ids); !fits.ok()) return wrong(fits.error().detail);
  return {};
}

/// Loads the chat template with the first conversation.
Status load_chat_for(const RolloutOptions& options, const PromptLine& line, RolloutWork& work) {
  if (line.chat.empty() || work.chat != nullptr || work.tokenizer == nullptr) return {};
  auto chat = ChatPrompts::load(options.model, work.tokenizer);
  if (chat.ok()) work.chat = *std::move(chat);
  return chat.ok() || chat.error().code == Code::kNotFound ? Status{} : Status{chat.error()};
}

Result<GroupSpec> make_group(const RolloutOptions& options, RolloutWork& work, const PromptLine& line, uint32_t id) {
  SEER_RETURN_IF_ERROR(load_chat_for(options, line, work));
  SEER_ASSIGN_OR_RETURN(std::vector<int32_t> prompt_ids,
                        prompt_ids_of(line, {options.model, work.tokenizer.get(), work.chat.get()},
                                      cat(options.prompts_name(), ":", line.line, ": ")));
  GroupSpec group{.id = GroupId{id},
                  .prompt_ids = std::move(prompt_ids),
                  .samples = static_cast<uint32_t>(line.samples),
                  .sampling = line.sampling,
                  .seeds = {},
                  .known_tokens = {},
                  .length_hint = line.length_hint};
  const ModelConfig& model = work.config;
  SEER_RETURN_IF_ERROR(
      check_prompt(options.prompts_name(), line.line, group.prompt_ids, model.vocab_size, model.context_tokens_max));
  SEER_RETURN_IF_ERROR(check_sampling(options, work, line));
  group.sampling.max_tokens = std::min(group.sampling.max_tokens,
                                       model.context_tokens_max - static_cast<int64_t>(group.prompt_ids.size()));
  for (uint32_t sample = 0; sample < group.samples; ++sample)
    group.seeds.push_back(prompt_sample_seed(line, options.seed, id, sample));
  return group;
}

MemoryDemand demand_of_requests(int64_t requests) {
  const int64_t bytes = bytes_of(requests, kRolloutRequestBytes);
  return {cat("the bookkeeping of ", requests, " requests"), bytes, bytes};
}

/// Checks before loading that model and requests fit in memory.
Status check_memory_to_load(const RolloutOptions& options, const std::vector<PromptLine>& lines) {
  int64_t requests = 0;
  for (const PromptLine& line : lines) requests += line.samples;
  return check_memory({demand_of_weights(options.model, options.weights == WeightType::kInt8), demand_of_requests(requests)},
                      find_memory());
}

/// KV of all responses at their longest; no tier ever holds more.
int64_t work_kv_bytes(const RolloutOptions& options, const RolloutWork& work) {
  int64_t blocks = 0;
  for (const GroupSpec& group : work.groups) {
    const int64_t tokens = static_cast<int64_t>(group.prompt_ids.size()) + group.sampling.max_tokens;
    blocks += group.samples * (tokens / options.block_tokens + 1);
  }
  return bytes_of(blocks, kv_block_bytes_of(options, work.config));
}

Status check_memory_to_run(const RolloutOptions& options, const RolloutWork& work) {
  int64_t requests = 0;
  for (const GroupSpec& group : work.groups) requests += group.samples;
  const int64_t work_bytes = work_kv_bytes(options, work);
  const int64_t dram = bytes_of(options.dram_bytes, options.nodes);
  std::vector<MemoryDemand> demands{{cat("--dram-bytes ", options.dram_bytes, " for --nodes ", options.nodes), dram, std::min(dram, work_bytes)},
                                    demand_of_requests(requests)};
  if (options.device == DeviceKind::kCpu) {
    const int64_t kv = bytes_of(options.kv_bytes, options.instances);
    demands.insert(demands.begin(), {cat("--kv-bytes ", options.kv_bytes, " for --instances ", options.instances), kv, std::min(kv, work_bytes)});
  }
  return check_memory(demands, find_memory());
}

/// Checks that every response, at its longest, fits in the KV cache of one instance.
Status check_kv_fits(const RolloutOptions& options, const RolloutWork& work, const EngineInfo& engine) {
  const auto blocks_for = [&](const GroupSpec& group) {
    const int64_t tokens = static_cast<int64_t>(group.prompt_ids.size()) + group.sampling.max_tokens;
    return (tokens + engine.block_tokens - 1) / engine.block_tokens;
  };
  const auto longest = std::max_element(work.groups.begin(), work.groups.end(), [&](const GroupSpec& a, const GroupSpec& b) {
    return blocks_for(a) < blocks_for(b);
  });
  const int64_t blocks = blocks_for(*longest);
  if (blocks <= engine.device_blocks) return {};
  return fail(Code::kInvalidArgument, "--kv-bytes ", options.kv_bytes, " holds ", engine.device_blocks, " KV blocks of ",
              engine.block_bytes, " bytes, and the prompt of ", options.prompts_name(), ":", work.lines[longest->id.index].line,
              " (", longest->prompt_ids.size(), " tokens) with max_tokens ", longest->sampling.max_tokens, " needs ", blocks,
              ": the least that works is ", blocks * engine.block_bytes);
}

using LoadHistories = std::map<InstanceId, std::shared_ptr<LoadHistory>>;

/// With --html, a history for each instance; else none.
LoadHistories make_histories(const RolloutOptions& options) {
  LoadHistories histories;
  if (options.html.empty()) return histories;
  const auto clock = std::make_shared<LoadHistory::Clock>();
  for (uint32_t i = 0; i < options.instances; ++i) histories[InstanceId{i}] = std::make_shared<LoadHistory>(clock);
  return histories;
}

/// Makers of engines large enough for every response, watched if there are histories.
/// REQUIRES: options, work and aside outlive the makers.
Result<NodeMakers> make_makers(const RolloutOptions& options, const RolloutWork& work, const LoadHistories& histories,
                               SlowWork& aside) {
  SEER_ASSIGN_OR_RETURN(NodeMakers makers, make_local_makers(options, options.nodes, work.loaded, aside));
  makers.make_engine = [make = makers.make_engine, &options, &work, histories](InstanceId id) -> Result<std::shared_ptr<Engine>> {
    SEER_ASSIGN_OR_RETURN(std::shared_ptr<Engine> engine, make(id));
    SEER_RETURN_IF_ERROR(check_kv_fits(options, work, engine->info()));
    const auto history = histories.find(id);
    return history == histories.end() ? engine : watch_engine(std::move(engine), history->second);
  };
  return makers;
}

}  // namespace

int64_t requests_of(const RolloutWork& work) {
  int64_t requests = 0;
  for (const GroupSpec& group : work.groups) requests += group.samples;
  return requests;
}

Result<RolloutWork> load_work(const RolloutOptions& options) {
  SEER_RETURN_IF_ERROR(validate(options.sampling));
  SEER_ASSIGN_OR_RETURN(auto prompts, read_prompts(options.prompts, options.limit,
                                                   {.samples = options.group_size, .sampling = options.sampling}));
  return load_work(options, std::move(prompts));
}

Status add_prompts(const RolloutOptions& options, std::vector<PromptLine> prompts, RolloutWork& work,
                   std::vector<GroupSpec>& added) {
  for (PromptLine& line : prompts) {
    SEER_ASSIGN_OR_RETURN(GroupSpec group, make_group(options, work, line, static_cast<uint32_t>(work.groups.size())));
    work.lines.push_back(std::move(line));
    work.groups.push_back(group);
    added.push_back(std::move(group));
  }
  return {};
}

Result<RolloutWork> load_work(const RolloutOptions& options, std::vector<PromptLine> prompts) {
  SEER_RETURN_IF_ERROR(validate(options.sampling));
  RolloutWork work;
  work.lines = std::move(prompts);
  if (options.runs_here()) {
    SEER_RETURN_IF_ERROR(check_memory_to_load(options, work.lines));
    SEER_ASSIGN_OR_RETURN(work.loaded, load_model_of(options));
    work.tokenizer = work.loaded.tokenizer;
    work.config = work.loaded.model()->config;
  } else {
    SEER_RETURN_IF_ERROR(check_model_folder(options.model, ModelFiles::kWithoutWeights));
    SEER_ASSIGN_OR_RETURN(work.config, read_model_config(options.model));
    SEER_ASSIGN_OR_RETURN(work.tokenizer, load_tokenizer_of(options));
  }
  if (!options.sampling.stop.empty() && work.tokenizer == nullptr)
    return fail(Code::kInvalidArgument, "--stop needs a tokenizer, and ", options.model,
                " has none; use --stop-token-ids instead");
  for (const int32_t id : options.sampling.stop_token_ids)
    if (id >= work.config.vocab_size)
      return fail(Code::kInvalidArgument, "--stop-token-ids ", id, " is outside the vocabulary of ",
                  work.config.vocab_size);
  for (uint32_t i = 0; i < work.lines.size(); ++i) {
    SEER_ASSIGN_OR_RETURN(GroupSpec group, make_group(options, work, work.lines[i], i));
    work.groups.push_back(std::move(group));
  }
  if (options.runs_here()) SEER_RETURN_IF_ERROR(check_memory_to_run(options, work));
  if (options.lengths.empty()) return work;
  std::vector<int64_t> group_sizes;
  for (const PromptLine& line : work.lines) group_sizes.push_back(line.samples);
  SEER_ASSIGN_OR_RETURN(auto lengths, read_lengths(options.lengths, group_sizes));
  for (size_t i = 0; i < work.groups.size(); ++i) work.groups[i].known_tokens = std::move(lengths[i]);
  return work;
}

std::string disk_warning(const RolloutOptions& options, const RolloutWork& work) {
  if (options.cold_dir.empty()) return "";
  std::error_code unknown;
  std::filesystem::path folder = std::filesystem::absolute(options.cold_dir, unknown);
  while (!std::filesystem::exists(folder, unknown) && folder.has_relative_path()) folder = folder.parent_path();
  const std::filesystem::space_info space = std::filesystem::space(folder, unknown);
  const int64_t used = std::min(bytes_of(options.cold_bytes, options.nodes), work_kv_bytes(options, work));
  if (unknown || used <= static_cast<int64_t>(space.available)) return "";
  return cat("--cold-bytes ", options.cold_bytes, " for --nodes ", options.nodes, " may take ", size_text(used), " in ",
             options.cold_dir, ", and ", size_text(static_cast<int64_t>(space.available)),
             " are free there: KV that does not fit is computed again");
}

namespace {

/// The policy that runs, and why it or its reserve was chosen; empty if both were named.
struct ChosenPolicy {
  ChunkSchedulerConfig scheduler;
  std::string why;
};
Result<ChosenPolicy> choose(const RolloutOptions& options, const RolloutWork& work, const std::string& policy) {
  ChosenPolicy result{options.scheduler, ""};
  result.scheduler.policy = policy;
  if (!is_measured(result.scheduler)) return result;
  if (!options.runs_here()) {
    if (policy != kAutoPolicy) return result;
    const bool has_servers = !options.router.engines.empty();
    result.scheduler.policy = has_servers ? kSeerPlusPolicy : kSeerPolicy;
    result.why = has_servers ? "seer+: the servers are not measured" : "seer: the machines of a cluster are not measured";
    return result;
  }
  SEER_ASSIGN_OR_RETURN(const PolicyChoice choice, choose_policy(engine_source(options, work.loaded.model()), instance_work(work.groups, options),
                                                                 options, options.scheduler));
  return ChosenPolicy{chosen(result.scheduler, choice), choice_text(result.scheduler, choice)};
}

/// The machines of a rollout: in this process, in a cluster, or servers of others.
struct Machines {
  Machines() = default;
  Machines(const Machines&) = delete;
  Machines& operator=(const Machines&) = delete;
  ~Machines() {
    if (servers != nullptr && local)
      for (const auto& [id, node] : local->nodes()) rt::stop(node);
  }

  ServerFleet* servers = nullptr;  // that the nodes of `local` are; null: they are in this process
  std::optional<Fleet> local;
  std::unique_ptr<ClusterMachines> cluster;
  uint64_t weights = 0;  // checksum of what they run with, also of how it computes

  KvDirectoryHandle directory() const { return local ? local->directory() : cluster->directory(); }
  RolloutHandle start_rollout(const RolloutConfig& config, RolloutTask task, const RolloutEvents& events) {
    return local ? local->start_rollout(config, std::move(task), events) : cluster->start_rollout(config, std::move(task), events);
  }
};

/// REQUIRES: options, work, histories and aside outlive the machines.
Status start_machines(rt::system& system, const RolloutOptions& options, const RolloutWork& work, const LoadHistories& histories,
                      SlowWork& aside, const EventLog& log, Machines& machines) {
  SEER_RETURN_IF_ERROR(check_sizes(options, work.config));
  SEER_ASSIGN_OR_RETURN(NodeMakers makers, make_makers(options, work, histories, aside));
  machines.local.emplace(system, FleetLinks{}, log);
  const auto layout_hash = std::make_shared<std::atomic<uint64_t>>(0);
  makers.make_engine = [make = makers.make_engine, layout_hash](InstanceId id) {
    auto engine = make(id);
    if (engine.ok()) *layout_hash = (*engine)->info().layout_hash;  // the same for all, also at a restart
    return engine;
  };
  SEER_RETURN_IF_ERROR(machines.local->start_nodes(fleet_config(options, options.nodes), std::make_shared<const NodeMakers>(std::move(makers))));
  // CPUs give the same bits whatever the size of KV blocks, which the engine's hash knows too. GPUs of another kind do not.
  const bool is_cpu = options.device == DeviceKind::kCpu;
  machines.weights = is_cpu ? hash_pair(work.loaded.model()->weights_hash, static_cast<uint64_t>(options.kv_dtype)) : layout_hash->load();
  return {};
}

/// Fills in the fields of `config` that the cluster decides. REQUIRES: net outlives the machines.
Status enter_cluster(ClusterNet& net, const RolloutOptions& options, const RolloutWork& work, const RolloutHooks& hooks, Machines& machines,
                     RolloutConfig& config) {
  const std::atomic<bool> never{false};
  SEER_ASSIGN_OR_RETURN(machines.cluster,
                        ClusterMachines::enter(net, {.address = options.cluster, .model = model_identity(options.model, work.config, work.tokenizer.get()), .wait_s = options.controller_wait_s},
                                               hooks.stop != nullptr ? *hooks.stop : never, hooks.log));
  const RolloutEntered& entered = machines.cluster->entered();
  config.id = machines.cluster->take_id();
  config.version = entered.version;
  config.weights = entered.weights;
  config.instances_expected = entered.instances;  // instances that come later take part too
  machines.weights = entered.weights;
  return {};
}

/// REQUIRES: servers outlives the system.
Status connect_servers(rt::system& system, const RolloutOptions& options, ServerFleet& servers, const RolloutHooks& hooks, Machines& machines, RolloutConfig& config) {
  const std::atomic<bool> never{false};
  SEER_RETURN_IF_ERROR(servers.open());
  machines.servers = &servers;
  machines.local.emplace(system, FleetLinks{}, hooks.log);
  SEER_RETURN_IF_ERROR(servers.start(*machines.local, system, hooks.stop != nullptr ? *hooks.stop : never));
  const size_t up = servers.up_count();
  if (up == 0) {
    std::string all;
    for (const auto& [id, server] : servers.all()) all += cat(all.empty() ? "" : "; ", url_of(server.link.address), ": ", server.has_answered ? server.why_out : "no answer in time");
    return fail(Code::kUnavailable, "--engines: no server answers: ", all);
  }
  SEER_ASSIGN_OR_RETURN(const std::string label, servers.weights_label());
  if (hooks.weights_named && !label.empty() && label != cat(config.version)) hooks.weights_named(label);
  config.scheduler = routed_scheduler(config.scheduler, options.router);
  config = routed_rollout(std::move(config), servers.all().size());  // those that are out say so, and take part later
  machines.weights = servers.weights();
  return {};
}

}  // namespace

Result<RolloutOutcome> run_rollout(const RolloutOptions& options, const RolloutWork& work, const std::string& policy,
                                   const RolloutHooks& hooks) {
  const bool is_local = options.cluster.empty();  // the actors are all in this process
  SEER_ASSIGN_OR_RETURN(const ChosenPolicy chosen, choose(options, work, policy));
  if (!chosen.why.empty())
    hooks.log.info(steady_us(), "policy_chosen", {{"policy", chosen.scheduler.policy}, {"running_max", chosen.scheduler.running_max}, {"why", chosen.why}});
  RolloutConfig config{.scheduler = chosen.scheduler,
                       .version = WeightVersion{static_cast<uint64_t>(options.weight_version)},
                       .instances_expected = static_cast<size_t>(options.instances)};
  if (auto known = make_chunk_scheduler(config.scheduler); !known.ok()) return known.error();

  SlowWork aside({}, [](std::function<void()>& f) { f(); });
  const LoadHistories histories = make_histories(options);
  std::optional<ServerFleet> servers;
  if (!options.router.engines.empty()) servers.emplace(server_fleet_config(options, options.router, work.config), work.tokenizer, hooks.log);
  SeerConfig local_config(kActorThreads);
  std::optional<rt::system> local;
  std::unique_ptr<ClusterNet> net;  // only for a cluster: a rollout within this process opens no port
  if (is_local) {
    local.emplace(local_config);
  } else {
    SEER_ASSIGN_OR_RETURN(net, ClusterNet::create(options.access, hooks.log));
  }
  rt::system& system = is_local ? *local : net->system();
  rt::Inbox<RolloutEvents> inbox(system);
  Machines machines;
  if (servers)
    SEER_RETURN_IF_ERROR(connect_servers(system, options, *servers, hooks, machines, config));
  else
    SEER_RETURN_IF_ERROR(is_local ? start_machines(system, options, work, histories, aside, hooks.log, machines)
                                  : enter_cluster(*net, options, work, hooks, machines, config));

  std::unique_ptr<PastResponses> history;
  std::vector<CstPast> pasts;
  if (!options.draft_history.empty()) {
    SEER_ASSIGN_OR_RETURN(history, PastResponses::open(options.draft_history, work.config.vocab_size, work.groups));
    pasts = history->recall(GroupLogsConfig{}.past_tokens_max);
  }
  const int64_t past_groups = std::ssize(pasts);

  Status written;
  const auto give = [&](const Response& response) {
    if (written.ok() && hooks.response) written = hooks.response(response);
    if (history) history->keep(response);
  };
  ClusterIdentity identity = model_identity(options.model, work.config, work.tokenizer.get());
  identity.version = config.version;
  identity.weights = machines.weights;
  SEER_ASSIGN_OR_RETURN(RunJournal journal, RunJournal::open(options, work.groups, identity));
  const int64_t answered_before = std::ssize(journal.answered());
  const int64_t begun_tokens = journal.begun_tokens() - static_cast<int64_t>(journal.begun());  // the last of each is computed again
  if (answered_before > 0 || journal.begun() > 0)
    hooks.log.info(steady_us(), "rollout_resumed", {{"responses", answered_before}, {"requests_begun", journal.begun()}, {"tokens_begun", journal.begun_tokens()}});
  for (const Response& response : journal.answered()) give(response);
  if (!written.ok()) return written.error();

  const int64_t cpu_before = cpu_ns(CLOCK_PROCESS_CPUTIME_ID) / 1000, cpu_actors_before = actors_cpu_us();
  if (hooks.more) config.open = true, config.responses_kept_max = kKeptMax;
  config.tells_commits = journal.is_on();
  std::vector<GroupSpec> groups = work.groups;
  for (GroupSpec& group : groups) group.id.rollout = config.id;
  for (CstPast& past : pasts) past.group.rollout = config.id;
  const RolloutHandle rollout =
      machines.start_rollout(config, {std::move(groups), std::move(pasts), journal.take_resumed(config.id)}, inbox.handle());

  RolloutSummary summary;
  std::vector<int64_t> completed_us;  // each response, and at the end the rollout, as heard of here
  int64_t ended_us = 0;
  bool stopping = false;
  auto stop = [&] {
    if (std::exchange(stopping, true)) return;
    hooks.log.info(steady_us(), "rollout_interrupted");
    rt::post(rollout, StopRollout{});
  };
  bool more_come = static_cast<bool>(hooks.more);
  Status prompts;
  bool over = false;
  const auto keep = [&](auto&& into_journal) {
    if (written.ok()) written = into_journal();
    if (!written.ok()) stop();
  };
  const RolloutListener listener{
      .response =
          [&](Response& response) {
            keep([&] { return journal.finish(response); });
            give(response);
            if (!written.ok()) stop();
            if (hooks.more) rt::post(rollout, AckResponses{{response.request}});
            if (!options.html.empty()) completed_us.push_back(steady_us());
          },
      .progress = hooks.progress,
      .commits = [&](const RolloutCommits& commits) { keep([&] { return journal.commit(commits); }); },
      .summary =
          [&](RolloutSummary& s) {
            summary = std::move(s);
            ended_us = steady_us();
            over = true;
          }};
  while (!over) {
    if (hooks.stop != nullptr && hooks.stop->load()) stop();
    if (machines.cluster) {
      machines.cluster->follow();
      if (!machines.cluster->status().ok()) stop();
    }
    if (more_come && !stopping) {
      MoreGroups more = hooks.more();
      if (!more.groups.empty()) rt::post(rollout, AddGroups{std::move(more.groups)});
      if (more.closed) rt::post(rollout, CloseRollout{});
      more_come = !more.closed;
      prompts = std::move(more.error);
    }
    receive_event(inbox, more_come ? kStreamUs : kReceiveUs, listener);
    keep([&] { return journal.sync_when_due(steady_us()); });
  }
  auto pool = inbox.ask<std::vector<KvNodeReport>>(machines.directory(), GetReport{});
  const int64_t cpu_total = cpu_ns(CLOCK_PROCESS_CPUTIME_ID) / 1000 - cpu_before;
  const int64_t cpu_actors = actors_cpu_us() - cpu_actors_before;
  if (!written.ok()) return written.error();
  if (!summary.complete && machines.cluster && !machines.cluster->status().ok()) return machines.cluster->status().error();
  if (!summary.complete && !stopping) return fail(Code::kUnavailable, summary.error);
  RolloutOutcome outcome{.report = {.policy = chosen.scheduler.policy,
                                    .is_auto = policy == kAutoPolicy,
                                    .policy_choice = chosen.why,
                                    .reserve = reserve_of(config.scheduler),
                                    .rollout = std::move(summary),
                                    .pool = std::move(pool),
                                    .begun_tokens = begun_tokens,
                                    .answered_before = answered_before,
                                    .past_groups = past_groups,
                                    .unkept_groups = history ? history->failed_groups() : 0,
                                    .cpu_total_s = static_cast<double>(cpu_total) / 1e6,
                                    .actor_cpu_share = static_cast<double>(cpu_actors) / static_cast<double>(cpu_total),
                                    .version = config.version},
                         .complete = false,
                         .learned = {},
                         .prompts = std::move(prompts),
                         .instances = {},
                         .completions_s = {},
                         .journal = std::move(journal)};
  outcome.complete = outcome.report.rollout.complete;
  for (const int64_t us : completed_us)
    outcome.completions_s.push_back(std::max(0.0, outcome.report.rollout.wall_s() - static_cast<double>(ended_us - us) / 1e6));
  if (servers) outcome.learned = servers->profile({});
  for (const auto& [id, load] : histories) outcome.instances.push_back(load->take(outcome.report.rollout.wall_s()));
  return outcome;
}

}  // namespace seer
