#include "cli/rollout_command.h"

#include <unistd.h>

#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/engine_source.h"
#include "cli/file_limit.h"
#include "cli/jsonl.h"
#include "cli/machine_memory.h"
#include "cli/output_writer.h"
#include "cli/progress.h"
#include "cli/prompt_stream.h"
#include "cli/report.h"
#include "cli/response_lines.h"
#include "cli/rollout_run.h"
#include "cli/run_warnings.h"
#include "cli/sim/sim_html.h"
#include "cli/steady_time.h"
#include "cli/terminal.h"

namespace seer {
namespace {

Progress make_progress() {
  return Progress({.terminal = terminal_of(STDERR_FILENO)}, std::cerr);
}

/// Counts requests that ended with an error, and keeps the first one by its prompt's line and its sample.
struct FailedRequests {
  int64_t count = 0;
  Response first;

  void add(const Response& r) {
    if (r.finish != FinishReason::kError) return;
    if (count++ == 0 || r.request < first.request) first = r;
  }
  Error sentence(const RolloutOptions& options, const RolloutWork& work, int64_t requests) const {
    return fail(Code::kUnavailable, count, " of ", requests, " requests ended with an error, the first of them ",
                options.prompts_name(), ":", work.lines[first.request.group.index].line, " sample ", first.request.sample, ": ",
                first.error,
                options.journal.empty() ? "" : cat("; journal ", options.journal, " is kept: the same command with --resume makes only these again"));
  }
};

Status write_response(const RolloutWork& work, const Response& r, const std::string& weights_name, OutputWriter& out) {
  const uint32_t group = r.request.group.index;
  return out.append(response_line_of(r, {work.lines[group].id, work.groups[group].prompt_ids, work.lines[group].carried}, work.tokenizer.get(),
                                     weights_name));
}

/// The content of a rollout's page.
SimRun run_of(const RolloutOptions& options, RolloutOutcome&& outcome) {
  const RolloutReport& report = outcome.report;
  const RolloutSummary& r = report.rollout;
  namespace fs = std::filesystem;
  return {.workload = fs::path(options.prompts_name()).filename().string() + " on " + fs::path(options.model).filename().string(),
          .policy = report.policy_text(),
          .seed = options.seed,
          .is_synchronous = outcome.complete,
          .total_s = r.wall_s(),
          .tail_s = r.tail_s,
          .requests = r.finished,
          .output_tokens = r.output_tokens,
          .tokens_per_s = report.tokens_per_s(),
          .preemptions = r.preemptions,
          .migrations = r.migrations,
          .yields = r.yields,
          .reprefill_tokens = r.reprefill_tokens,
          .idle_share = report.idle_share(),
          .estimate_error = r.estimate_error,
          .acceptance_length = report.acceptance_length(),
          .instances = std::move(outcome.instances),
          .completions_s = std::move(outcome.completions_s)};
}

std::string settings_text(const RolloutOptions& options) {
  return cat("seer rollout --model ", options.model, " --prompts ", options.prompts, " --group-size ", options.group_size,
             " --instances ", options.instances);
}

constexpr int kWaitMs = 100;  // between two checks of the stop flag

/// Waits for the first prompts.
Result<std::vector<PromptLine>> first_prompts(PromptStream& stream, const std::atomic<bool>& stop) {
  while (!stop.load()) {
    SEER_ASSIGN_OR_RETURN(auto prompts, stream.take());
    if (!prompts.empty()) return prompts;
    if (stream.ended()) return fail(Code::kInvalidArgument, "stdin holds no prompts: expected a JSON object per line");
    stream.wait(kWaitMs);
  }
  return fail(Code::kCancelled, "stopped on request before the first prompt");
}

/// Groups of the prompts that have come since the last call.
MoreGroups more_groups(const RolloutOptions& options, PromptStream& stream, RolloutWork& work) {
  MoreGroups more;
  Result<std::vector<PromptLine>> prompts = stream.take();
  more.error = prompts.ok() ? add_prompts(options, *std::move(prompts), work, more.groups) : Status(prompts.error());
  more.closed = stream.ended() || !more.error.ok();
  return more;
}

/// The responses that a run has kept so far, and the end of an error that mentions them.
struct Kept {
  OutputWriter* out = nullptr;  // nullptr: responses are not written
  int64_t responses = 0;
  int64_t requests = 0;

  /// "ERROR after 7 of 320 responses; they are in o.jsonl.partial, and o.jsonl is as it was".
  Error after(const Error& error) const {
    return fail(error.code, error.detail, " after ", responses, " of ", requests, " responses",
                out != nullptr ? "; " + out->left_text() : "");
  }
};

/// The files that the command writes; empty where it was not asked for one.
struct OutputFiles {
  std::optional<OutputWriter> out, report, html, profile;
};

/// Opens them. Paths that cannot be written are found before the work, not after it.
Result<OutputFiles> open_files(const RolloutOptions& options) {
  for (const auto& [flag, path] : {std::pair{"--out", &options.out}, {"--report", &options.report}, {"--html", &options.html},
                                   {"--profile-out", &options.profile_out}, {"--log-file", &options.log.file}})
    SEER_RETURN_IF_ERROR(check_two_files(flag, *path, "--prompts", options.prompts));
  OutputFiles files;
  for (const auto& [path, file] : {std::pair{&options.out, &files.out}, {&options.report, &files.report}, {&options.html, &files.html},
                                   {&options.profile_out, &files.profile}}) {
    if (path->empty()) continue;
    SEER_ASSIGN_OR_RETURN(OutputWriter opened, OutputWriter::open(*path));
    file->emplace(std::move(opened));
  }
  return files;
}

void print_warnings(const RolloutOptions& options, const RolloutWork& work) {
  std::vector<std::string> warnings = run_warnings(options, work, find_cpus());
  if (std::string disk = disk_warning(options, work); !disk.empty()) warnings.insert(warnings.begin(), std::move(disk));
  for (const std::string& warning : warnings) std::cerr << "seer: warning: " << warning << "\n";
}

/// The runs of the command, one for each policy, and what they leave.
struct Runs {
  const RolloutOptions& options;
  RolloutWork& work;
  PromptStream* stream;  // null: the work has all prompts
  OutputFiles& files;
  const std::atomic<bool>& stop;
  const EventLog& log;

  std::vector<RolloutReport> reports = {};
  std::optional<Result<StepProfile>> learned = {};  // in the last run
  std::vector<SimRun> drawn = {};
  FailedRequests failed = {};  // the same under every policy
  Kept kept = {};              // in the last run
  bool complete = true;        // the last run

  Status run(const std::string& policy);
  Status write_figures();
  Error stopped() const;

 private:
  RolloutHooks hooks(Progress& progress, std::string& weights_name);
};

/// REQUIRES: progress and weights_name outlive them.
RolloutHooks Runs::hooks(Progress& progress, std::string& weights_name) {
  const auto on_response = [this, &weights_name](const Response& r) -> Status {
    if (reports.empty()) failed.add(r);
    if (kept.out != nullptr) SEER_RETURN_IF_ERROR(write_response(work, r, weights_name, *kept.out));
    ++kept.responses;
    return {};
  };
  const auto on_progress = [&progress](const RolloutProgress& p) {
    progress.update({p.done, p.requests, p.running, p.waiting, p.output_tokens, p.kv_use_share}, steady_us());
  };
  RolloutHooks hooks{.response = on_response,
                     .progress = on_progress,
                     .weights_named = [&weights_name](const std::string& name) { weights_name = name; },
                     .stop = &stop,
                     .log = log};
  if (stream != nullptr)
    hooks.more = [this] {
      MoreGroups more = more_groups(options, *stream, work);
      for (const GroupSpec& group : more.groups) kept.requests += group.samples;
      return more;
    };
  return hooks;
}

Status Runs::run(const std::string& policy) {
  Progress progress = make_progress();
  // All policies give the same responses: with --compare the first one's are written.
  kept.out = reports.empty() && files.out ? &*files.out : nullptr;
  kept.responses = 0;
  std::string weights_name;
  auto outcome = run_rollout(options, work, policy, hooks(progress, weights_name));
  progress.clear();
  if (!outcome.ok()) return kept.responses > 0 ? Status(kept.after(outcome.error())) : Status(outcome.error());
  reports.push_back(outcome->report);
  learned = std::move(outcome->learned);
  complete = outcome->complete;
  if (const Status prompts = outcome->prompts; complete && !prompts.ok()) return kept.after(prompts.error());
  RunJournal journal = std::move(outcome->journal);
  if (files.html) drawn.push_back(run_of(options, *std::move(outcome)));
  if (!complete || kept.out == nullptr) return {};
  if (const Status finished = kept.out->finish(); !finished.ok()) return kept.after(finished.error());
  return failed.count > 0 ? Status{} : journal.clear();  // with --resume only what failed is made again
}

/// Writes report, profile and page; of a run that was stopped, beside their paths.
Status Runs::write_figures() {
  const auto write = [this](std::optional<OutputWriter>& file, const std::string& text) -> Status {
    if (!file) return {};
    SEER_RETURN_IF_ERROR(file->append(text));
    return complete ? file->finish() : Status{};
  };
  SEER_RETURN_IF_ERROR(write(files.report, options.compare.empty() ? report_json(reports[0]) : report_json(reports)));
  if (learned && learned->ok()) SEER_RETURN_IF_ERROR(write(files.profile, step_profile_json(**learned)));
  if (files.profile && learned && !learned->ok()) std::cerr << "seer: warning: no --profile-out: " << learned->error().detail << "\n";
  return files.html ? write(files.html, sim_html(drawn, settings_text(options), "Rollout")) : Status{};
}

/// What was done before the command was stopped, and where it is. REQUIRES: write_figures() was called.
Error Runs::stopped() const {
  Error error = kept.after(fail(Code::kCancelled, "stopped on request"));
  if (files.out && kept.out == nullptr) error.detail += cat(" of ", reports.back().policy_text(), "; ", options.out, " is complete");
  const bool has_profile = files.profile && learned && learned->ok();
  if (files.report) error.detail += cat("; the report so far is in ", files.report->unfinished_path());
  if (has_profile) error.detail += cat("; the profile so far is in ", files.profile->unfinished_path());
  if (files.html) error.detail += cat("; the page so far is in ", files.html->unfinished_path());
  return error;
}

}  // namespace

Status rollout_command(const RolloutOptions& given, const std::atomic<bool>& stop) {
  RolloutOptions options = given;
  if (!options.router.engines.empty()) raise_file_limit();  // each request to a server has a connection
  SEER_ASSIGN_OR_RETURN(OutputFiles files, open_files(options));
  SEER_ASSIGN_OR_RETURN(const EventLog log, EventLog::open(options.log));
  std::optional<PromptStream> stream;
  if (options.streams_prompts())
    stream.emplace(STDIN_FILENO, options.prompts_name(), options.limit,
                   PromptDefaults{.samples = options.group_size, .sampling = options.sampling});
  if (options.runs_here()) SEER_RETURN_IF_ERROR(choose_instances(options, options.nodes));
  RolloutWork work;
  if (stream) {
    SEER_ASSIGN_OR_RETURN(auto prompts, first_prompts(*stream, stop));
    SEER_ASSIGN_OR_RETURN(work, load_work(options, std::move(prompts)));
  } else {
    SEER_ASSIGN_OR_RETURN(work, load_work(options));
  }
  if (options.runs_here()) SEER_RETURN_IF_ERROR(choose_kv_bytes(options, *work.loaded.model(), false));
  print_warnings(options, work);

  Runs runs{options, work, stream ? &*stream : nullptr, files, stop, log};
  runs.kept.requests = requests_of(work);
  for (const std::string& policy : options.compare.empty() ? std::vector{options.scheduler.policy} : options.compare)
    if (runs.complete) SEER_RETURN_IF_ERROR(runs.run(policy));
  SEER_RETURN_IF_ERROR(runs.write_figures());
  const bool is_coloured = terminal_of(STDOUT_FILENO).is_coloured;
  // If responses go to stdout, as they may when prompts come from stdin, the table must not be among them.
  std::ostream& screen = stream || options.out == "-" ? std::cerr : std::cout;
  screen << (runs.reports.size() > 1 ? compare_table(runs.reports, is_coloured) : report_table(runs.reports[0], is_coloured));
  if (!runs.complete) return runs.stopped();
  return runs.failed.count > 0 ? Status(runs.failed.sentence(options, work, runs.kept.requests)) : Status{};
}

}  // namespace seer
