#include "cli/rollout_command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "cli/jsonl.h"
#include "cli/local_rollout.h"
#include "cli/output_writer.h"
#include "cli/progress.h"
#include "cli/report.h"

namespace seer {
namespace {

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Progress make_progress() {
  ProgressConfig config{.terminal = isatty(STDERR_FILENO) != 0};
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) config.columns = size.ws_col;
  return Progress(config, std::cerr);
}

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
                                   .weight_version = r.version,
                                   .chunks = r.chunks,
                                   .migrations = r.migrations,
                                   .preemptions = r.preemptions,
                                   .queue_s = static_cast<double>(r.queue_us) / 1e6,
                                   .run_s = static_cast<double>(r.run_us) / 1e6,
                                   .carried = work.lines[group].carried}));
}

}  // namespace

Status rollout_command(const RolloutOptions& options, const std::atomic<bool>& stop) {
  if (std::error_code ignored; !options.out.empty() && std::filesystem::equivalent(options.out, options.prompts, ignored))
    return fail(Code::kInvalidArgument, "--out and --prompts both name ", options.out, ": expected two files");
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
  bool complete = true;
  for (const std::string& policy : policies) {
    Progress progress = make_progress();
    // All policies give the same responses: with --compare the first one's are written.
    const bool writes = out.has_value() && reports.empty();
    const RolloutHooks hooks{
        .response = [&](const Response& r) { return writes ? write_response(work, r, *out) : Status{}; },
        .progress =
            [&](const RolloutProgress& p) {
              progress.update({p.done, p.requests, p.running, p.waiting, p.output_tokens, p.kv_use_share}, now_us());
            },
        .stop = &stop};
    auto outcome = run_rollout(options, work, policy, hooks);
    progress.clear();
    if (!outcome.ok()) return outcome.error();
    reports.push_back(outcome->report);
    complete = outcome->complete;
    if (!complete) break;
  }
  if (out) SEER_RETURN_IF_ERROR(out->finish());
  if (report) {
    SEER_RETURN_IF_ERROR(report->append(options.compare.empty() ? report_json(reports[0]) : report_json(reports)));
    SEER_RETURN_IF_ERROR(report->finish());
  }
  std::cout << (reports.size() > 1 ? compare_table(reports) : report_table(reports[0]));
  if (!complete) return fail(Code::kCancelled, "stopped on request; the finished responses were kept");
  return {};
}

}  // namespace seer
