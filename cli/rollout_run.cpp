#include "cli/rollout_run.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "actors/policy/draft/draft_history.h"
#include "actors/policy/schedule/policies.h"
#include "cli/engine_source.h"
#include "cli/past_responses.h"
#include "cli/policy_auto.h"
#include "cli/rollout_machines.h"
#include "cli/steady_time.h"
#include "protocols/cpu_time.h"

namespace seer {
namespace {

constexpr int64_t kReceiveUs = 100'000;  // between two checks of the stop flag
constexpr int64_t kStreamUs = 10'000;    // the same if prompts come while the rollout runs
constexpr size_t kKeptMax = 4096;        // responses that are not written yet

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

/// CPU time that this process has used.
struct CpuTime {
  int64_t all_us = cpu_ns(CLOCK_PROCESS_CPUTIME_ID) / 1000;
  int64_t actors_us = actors_cpu_us();
};

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

/// A rollout on its way. Hears its events on the caller's thread: responses go to their writer, to the journal and to the history of
/// drafts; prompts that come meanwhile go to the rollout.
class RunningRollout {
 public:
  /// `history`: null if none is kept. REQUIRES: all outlive it.
  RunningRollout(const RolloutHooks& hooks, bool keeps_times, RunJournal& journal, PastResponses* history)
      : hooks_(hooks), keeps_times_(keeps_times), journal_(journal), history_(history), more_come_(static_cast<bool>(hooks.more)) {}

  /// Gives the responses of an earlier process to their writer.
  Status give_answered() {
    for (const Response& response : journal_.answered()) give(response);
    return written_;
  }

  /// Errors: of the writer, of the journal, of the cluster, and why the rollout ended before all was done, if nobody stopped it.
  Result<RolloutSummary> follow(RolloutMachines& machines, RolloutHandle rollout, rt::Inbox<RolloutEvents>& inbox) {
    rollout_ = std::move(rollout);
    const RolloutListener listener{.response = [this](Response& response) { on_response(response); },
                                   .progress = hooks_.progress,
                                   .commits = [this](const RolloutCommits& commits) { keep([&] { return journal_.commit(commits); }); },
                                   .summary = [this](RolloutSummary& last) { on_summary(last); }};
    Status reached;
    while (!summary_) {
      if (hooks_.stop != nullptr && hooks_.stop->load()) stop();
      reached = machines.follow();
      if (!reached.ok()) stop();
      if (more_come_ && !stopping_) take_more();
      receive_event(inbox, more_come_ ? kStreamUs : kReceiveUs, listener);
      keep([&] { return journal_.sync_when_due(steady_us()); });
    }
    if (!written_.ok()) return written_.error();
    if (!summary_->complete && !reached.ok()) return reached.error();
    if (!summary_->complete && !stopping_) return fail(Code::kUnavailable, summary_->error);
    return *summary_;
  }

  /// MoreGroups::error.
  const Status& prompts() const { return prompts_; }
  /// When each response came, in seconds since the rollout's start. REQUIRES: follow() has returned a summary.
  std::vector<double> completions_s() const {
    std::vector<double> all;
    for (const int64_t us : completed_us_) all.push_back(std::max(0.0, summary_->wall_s() - static_cast<double>(ended_us_ - us) / 1e6));
    return all;
  }

 private:
  void on_response(Response& response) {
    keep([&] { return journal_.finish(response); });
    give(response);
    if (!written_.ok()) stop();
    if (hooks_.more) rt::post(rollout_, AckResponses{{response.request}});
    if (keeps_times_) completed_us_.push_back(steady_us());
  }

  void on_summary(RolloutSummary& last) {
    summary_ = std::move(last);
    ended_us_ = steady_us();
  }

  void give(const Response& response) {
    if (written_.ok() && hooks_.response) written_ = hooks_.response(response);
    if (history_ != nullptr) history_->keep(response);
  }

  /// Writes to the journal, unless something could not be written before.
  template <class Write>
  void keep(Write into_journal) {
    if (written_.ok()) written_ = into_journal();
    if (!written_.ok()) stop();
  }

  void take_more() {
    MoreGroups more = hooks_.more();
    if (!more.groups.empty()) rt::post(rollout_, AddGroups{std::move(more.groups)});
    if (more.closed) rt::post(rollout_, CloseRollout{});
    more_come_ = !more.closed;
    prompts_ = std::move(more.error);
  }

  void stop() {
    if (std::exchange(stopping_, true)) return;
    hooks_.log.info(steady_us(), "rollout_interrupted");
    rt::post(rollout_, StopRollout{});
  }

  const RolloutHooks& hooks_;
  const bool keeps_times_;
  RunJournal& journal_;
  PastResponses* const history_;
  RolloutHandle rollout_;
  bool more_come_, stopping_ = false;
  Status written_;  // an error: a response or the journal could not be written
  Status prompts_;
  std::optional<RolloutSummary> summary_;
  int64_t ended_us_ = 0;                // when the summary came
  std::vector<int64_t> completed_us_;   // when each response came
};

}  // namespace

Result<RolloutOutcome> run_rollout(const RolloutOptions& options, const RolloutWork& work, const std::string& policy,
                                   const RolloutHooks& hooks) {
  SEER_ASSIGN_OR_RETURN(const ChosenPolicy chosen, choose(options, work, policy));
  if (!chosen.why.empty())
    hooks.log.info(steady_us(), "policy_chosen", {{"policy", chosen.scheduler.policy}, {"running_max", chosen.scheduler.running_max}, {"why", chosen.why}});
  RolloutConfig config{.scheduler = chosen.scheduler,
                       .version = WeightVersion{static_cast<uint64_t>(options.weight_version)},
                       .instances_expected = static_cast<size_t>(options.instances)};
  if (auto known = make_chunk_scheduler(config.scheduler); !known.ok()) return known.error();
  const std::atomic<bool> never{false};
  SEER_ASSIGN_OR_RETURN(const auto machines, RolloutMachines::open(options, work, hooks.stop != nullptr ? *hooks.stop : never, hooks.log, config));
  if (hooks.weights_named && !machines->weights_name().empty()) hooks.weights_named(machines->weights_name());

  std::unique_ptr<PastResponses> history;
  std::vector<CstPast> pasts;
  if (!options.draft_history.empty()) {
    SEER_ASSIGN_OR_RETURN(history, PastResponses::open(options.draft_history, work.config.vocab_size, work.groups));
    pasts = history->recall(GroupLogsConfig{}.past_tokens_max);
  }
  const int64_t past_groups = std::ssize(pasts);

  ClusterIdentity identity = model_identity(options.model, work.config, work.tokenizer.get());
  identity.version = config.version;
  identity.weights = machines->weights();
  SEER_ASSIGN_OR_RETURN(RunJournal journal, RunJournal::open(options, work.groups, identity));
  const int64_t answered_before = std::ssize(journal.answered());
  const int64_t begun_tokens = journal.begun_tokens() - static_cast<int64_t>(journal.begun());  // the last of each is computed again
  if (answered_before > 0 || journal.begun() > 0)
    hooks.log.info(steady_us(), "rollout_resumed", {{"responses", answered_before}, {"requests_begun", journal.begun()}, {"tokens_begun", journal.begun_tokens()}});
  RunningRollout running(hooks, !options.html.empty(), journal, history.get());
  SEER_RETURN_IF_ERROR(running.give_answered());

  const CpuTime before;
  if (hooks.more) config.open = true, config.responses_kept_max = kKeptMax;
  config.tells_commits = journal.is_on();
  std::vector<GroupSpec> groups = work.groups;
  for (GroupSpec& group : groups) group.id.rollout = config.id;
  for (CstPast& past : pasts) past.group.rollout = config.id;
  rt::Inbox<RolloutEvents> inbox(machines->system());
  const RolloutHandle rollout =
      machines->start_rollout(config, {std::move(groups), std::move(pasts), journal.take_resumed(config.id)}, inbox.handle());
  SEER_ASSIGN_OR_RETURN(RolloutSummary summary, running.follow(*machines, rollout, inbox));

  auto pool = inbox.ask<std::vector<KvNodeReport>>(machines->directory(), GetReport{});
  const CpuTime after;
  const double wall_s = summary.wall_s(), cpu_us = static_cast<double>(after.all_us - before.all_us);
  const bool is_all_here = options.cluster.empty();  // else engines, and part of the actors, take CPU time of other processes
  const bool complete = summary.complete;
  return RolloutOutcome{.report = {.policy = chosen.scheduler.policy,
                                   .is_auto = policy == kAutoPolicy,
                                   .policy_choice = chosen.why,
                                   .reserve = reserve_of(config.scheduler),
                                   .rollout = std::move(summary),
                                   .pool = std::move(pool),
                                   .begun_tokens = begun_tokens,
                                   .answered_before = answered_before,
                                   .past_groups = past_groups,
                                   .unkept_groups = history ? history->failed_groups() : 0,
                                   .cpu_total_s = is_all_here ? cpu_us / 1e6 : kUnknown,
                                   .actor_cpu_share = is_all_here ? static_cast<double>(after.actors_us - before.actors_us) / cpu_us : kUnknown,
                                   .version = config.version},
                        .complete = complete,
                        .learned = machines->learned(),
                        .prompts = running.prompts(),
                        .instances = machines->timelines(wall_s),
                        .completions_s = running.completions_s(),
                        .journal = std::move(journal)};
}

}  // namespace seer
