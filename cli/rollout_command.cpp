#include "cli/rollout_command.h"

#include <unistd.h>

#include <chrono>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "cli/jsonl.h"
#include "cli/local_rollout.h"
#include "cli/output_writer.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/terminal.h"

namespace seer {
namespace {

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Progress make_progress() {
  return Progress({.terminal = terminal_of(STDERR_FILENO)}, std::cerr);
}

/// Requests that ended with an error of their own, and the first one of them by its prompt's line and its sample.
struct FailedRequests {
  int64_t count = 0;
  Response first;

  void add(const Response& r) {
    if (r.finish != FinishReason::kError) return;
    if (count++ == 0 || r.request < first.request) first = r;
  }
  Error sentence(const RolloutOptions& options, const RolloutWork& work, int64_t requests) const {
    return fail(Code::kUnavailable, count, " of ", requests, " requests ended with an error, the first of them ",
                options.prompts, ":", work.lines[first.request.group.value].line, " sample ", first.request.sample, ": ",
                first.error);
  }
};

Status write_response(const RolloutWork& work, const Response& r, OutputWriter& out) {
  const uint32_t group = r.request.group.value;
  std::optional<std::string> text;
  if (work.tokenizer != nullptr) text = work.tokenizer->decode(r.output_ids, {.skip_special = true});
  return out.append(response_line({.request = r.request,
                                   .id = work.lines[group].id,
                                   .seed = r.seed,
                                   .prompt_ids = work.groups[group].prompt_ids,
                                   .output_ids = r.output_ids,
                                   .logprobs = r.logprobs,
                                   .text = text,
                                   .finish_reason = r.finish,
                                   .error = r.error,
                                   .weight_version = r.version,
                                   .chunks = r.chunks,
                                   .migrations = r.migrations,
                                   .preemptions = r.preemptions,
                                   .queue_s = static_cast<double>(r.queue_us) / 1e6,
                                   .run_s = static_cast<double>(r.run_us) / 1e6,
                                   .carried = work.lines[group].carried}));
}

int64_t requests_of(const RolloutWork& work) {
  int64_t requests = 0;
  for (const GroupSpec& group : work.groups) requests += group.samples;
  return requests;
}

/// What a run has kept so far, and how an error says so.
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

}  // namespace

Status rollout_command(const RolloutOptions& options, const std::atomic<bool>& stop) {
  SEER_RETURN_IF_ERROR(check_two_files("--out", options.out, "--prompts", options.prompts));
  SEER_RETURN_IF_ERROR(check_two_files("--report", options.report, "--prompts", options.prompts));
  // Paths that cannot be written are found out before the work, not after it.
  std::optional<OutputWriter> out, report;
  if (!options.out.empty()) {
    SEER_ASSIGN_OR_RETURN(out, OutputWriter::open(options.out));
  }
  if (!options.report.empty()) {
    SEER_ASSIGN_OR_RETURN(report, OutputWriter::open(options.report));
  }
  SEER_ASSIGN_OR_RETURN(const RolloutWork work, load_work(options));

  const std::vector<std::string> policies =
      options.compare.empty() ? std::vector<std::string>{options.scheduler.policy} : options.compare;
  std::vector<RolloutReport> reports;
  FailedRequests failed;  // the same under every policy
  bool complete = true;
  Kept kept{.requests = requests_of(work)};
  for (const std::string& policy : policies) {
    Progress progress = make_progress();
    // All policies give the same responses: with --compare the first one's are written.
    kept.out = reports.empty() && out ? &*out : nullptr;
    kept.responses = 0;
    const RolloutHooks hooks{
        .response =
            [&](const Response& r) -> Status {
              if (reports.empty()) failed.add(r);
              if (kept.out != nullptr) SEER_RETURN_IF_ERROR(write_response(work, r, *kept.out));
              ++kept.responses;
              return {};
            },
        .progress =
            [&](const RolloutProgress& p) {
              progress.update({p.done, p.requests, p.running, p.waiting, p.output_tokens, p.kv_use_share}, now_us());
            },
        .stop = &stop};
    auto outcome = run_rollout(options, work, policy, hooks);
    progress.clear();
    if (!outcome.ok()) return kept.responses > 0 ? Status(kept.after(outcome.error())) : Status(outcome.error());
    reports.push_back(outcome->report);
    complete = outcome->complete;
    if (!complete) break;
    if (kept.out == nullptr) continue;
    if (const Status finished = kept.out->finish(); !finished.ok()) return kept.after(finished.error());
  }
  if (report) {
    SEER_RETURN_IF_ERROR(report->append(options.compare.empty() ? report_json(reports[0]) : report_json(reports)));
    if (complete) SEER_RETURN_IF_ERROR(report->finish());
  }
  std::cout << (reports.size() > 1 ? compare_table(reports) : report_table(reports[0])) << std::flush;
  if (complete && failed.count > 0) return failed.sentence(options, work, reports[0].requests);
  if (complete) return {};
  Error stopped = kept.after(fail(Code::kCancelled, "stopped on request"));
  if (report) stopped.detail += cat("; the report so far is in ", report->unfinished_path());
  return stopped;
}

}  // namespace seer
