#include "cli/report.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "cli/figure_text.h"
#include "protocols/check.h"

namespace seer {
namespace {

using Json = nlohmann::ordered_json;  // a number that is not finite becomes null

Json to_json(const DraftCounts& drafts) {
  const auto per_verify = [&](double sum) { return drafts.verifies > 0 ? sum / static_cast<double>(drafts.verifies) : kUnknown; };
  return {{"verifies", drafts.verifies},
          {"drafted_tokens", drafts.drafted},
          {"accepted_tokens", drafts.accepted},
          {"acceptance_length", drafts.verifies > 0 ? drafts.acceptance_length() : kUnknown},
          {"drafted_per_verify", per_verify(static_cast<double>(drafts.drafted))}};
}

Json to_json(const StepTimes& times) {
  const double s = static_cast<double>(times.us) / 1e6, predicted_s = static_cast<double>(times.predicted_us) / 1e6;
  return {{"steps", times.steps},
          {"tokens", times.tokens},
          {"s", s},
          {"predicted_s", predicted_s},
          {"ratio", predicted_s > 0 ? s / predicted_s : kUnknown}};
}

Json drafting_json(const RolloutReport& r) {
  const DraftFigures& d = r.drafting;
  Json over_time = Json::array();
  for (size_t i = 0; i < d.history.slices.size(); ++i) {
    Json slice = to_json(d.history.slices[i]);
    slice["start_s"] = static_cast<double>(static_cast<int64_t>(i) * d.history.slice_us) / 1e6;
    over_time.push_back(std::move(slice));
  }
  return {{"high", to_json(d.probes())},
          {"low", to_json(d.others())},
          {"path", to_json(d.paths())},
          {"tree", to_json(d.trees())},
          {"draft_s", static_cast<double>(d.draft_us) / 1e6},
          {"draft_share", r.draft_share()},
          {"drafting_steps", to_json(d.drafting_steps)},
          {"plain_steps", to_json(d.plain_steps)},
          {"dropped_tokens", d.losses.dropped_tokens},
          {"dropped_trees", d.losses.dropped_trees},
          {"refused_groups", d.losses.refused_groups},
          {"over_time", std::move(over_time)}};
}

Json to_json(const RolloutReport& r) {
  Json instances = Json::array();
  for (const InstanceFigures& i : r.instances)
    instances.push_back({{"busy_s", i.busy_s}, {"idle_s", i.idle_s}, {"tokens", i.tokens}, {"steps", i.steps}});
  return {{"policy", r.policy},
          {"policy_choice", r.policy_choice.empty() ? Json() : Json(r.policy_choice)},
          {"requests", r.requests},
          {"finished", r.finished},
          {"failed_requests", r.failed_requests},
          {"prompt_tokens", r.prompt_tokens},
          {"output_tokens", r.output_tokens},
          {"wall_s", r.wall_s},
          {"tokens_per_s", r.tokens_per_s},
          {"tail_s", r.tail_s},
          {"chunks", r.chunks},
          {"migrations", r.migrations},
          {"yields", r.yields},
          {"preemptions", r.preemptions},
          {"reprefill_tokens", r.reprefill_tokens},
          {"kv_peak_bytes", r.kv_peak_bytes},
          {"spilled_bytes", r.spilled_bytes},
          {"instances_lost", r.instances_lost},
          {"cold_failures", r.cold_failures},
          {"fetch_failures", r.fetch_failures},
          {"length_icc", r.length_icc},
          {"estimate_error", r.estimate_error},
          {"verifies", r.drafting.all().verifies},
          {"drafted_tokens", r.drafting.all().drafted},
          {"accepted_tokens", r.drafting.all().accepted},
          {"acceptance_length", r.acceptance_length()},
          {"fetched_draft_tokens", r.fetched_draft_tokens},
          {"past_groups", r.past_groups},
          {"unkept_groups", r.unkept_groups},
          {"drafting", drafting_json(r)},
          {"cpu_engine_s", r.cpu_engine_s},
          {"cpu_total_s", r.cpu_total_s},
          {"actor_cpu_share", r.actor_cpu_share},
          {"weight_version", r.weight_version},
          {"instances", std::move(instances)}};
}

std::string ratio_text(double value, double first) { return first > 0 ? formatted("%.2fx", value / first) : "-"; }

/// "7 of 320" where the rollout was stopped.
std::string requests_text(const RolloutReport& r) {
  return r.finished < r.requests ? cat(count_text(r.finished), " of ", count_text(r.requests)) : count_text(r.requests);
}

double busy_share(const RolloutReport& r) {
  double busy_s = 0, all_s = 0;
  for (const InstanceFigures& i : r.instances) {
    busy_s += i.busy_s;
    all_s += i.busy_s + i.idle_s;
  }
  return all_s > 0 ? busy_s / all_s : kUnknown;
}

/// A line of the table: its name, and the cell of a report next to the first one.
struct Row {
  const char* name;
  std::string (*cell)(const RolloutReport& report, const RolloutReport& first);
};
using R = RolloutReport;

constexpr std::array<Row, 29> kRows{{
    {"requests", [](const R& r, const R&) { return requests_text(r); }},
    {"failed requests", [](const R& r, const R&) { return count_text(r.failed_requests); }},
    {"prompt tokens", [](const R& r, const R&) { return count_text(r.prompt_tokens); }},
    {"output tokens", [](const R& r, const R&) { return count_text(r.output_tokens); }},
    {"wall time, s", [](const R& r, const R&) { return decimal_text(r.wall_s, 2); }},
    {"tokens/s", [](const R& r, const R&) { return decimal_text(r.tokens_per_s, 0); }},
    {"tail (last 10 %), s", [](const R& r, const R&) { return decimal_text(r.tail_s, 2); }},
    {"instances busy", [](const R& r, const R&) { return share_text(busy_share(r)); }},
    {"chunks", [](const R& r, const R&) { return count_text(r.chunks); }},
    {"migrations", [](const R& r, const R&) { return count_text(r.migrations); }},
    {"yields", [](const R& r, const R&) { return count_text(r.yields); }},
    {"preemptions", [](const R& r, const R&) { return count_text(r.preemptions); }},
    {"tokens prefilled again", [](const R& r, const R&) { return count_text(r.reprefill_tokens); }},
    {"KV at its peak", [](const R& r, const R&) { return bytes_text(r.kv_peak_bytes); }},
    {"KV spilled to disk", [](const R& r, const R&) { return bytes_text(r.spilled_bytes); }},
    {"instances lost", [](const R& r, const R&) { return count_text(r.instances_lost); }},
    {"cold tier failures", [](const R& r, const R&) { return count_text(r.cold_failures); }},
    {"KV fetches failed", [](const R& r, const R&) { return count_text(r.fetch_failures); }},
    {"length ICC", [](const R& r, const R&) { return decimal_text(r.length_icc, 3); }},
    {"length estimate error", [](const R& r, const R&) { return share_text(r.estimate_error); }},
    {"drafted tokens", [](const R& r, const R&) { return count_text(r.drafting.all().drafted); }},
    {"of them in trees", [](const R& r, const R&) { return count_text(r.drafting.trees().drafted); }},
    {"acceptance length", [](const R& r, const R&) { return decimal_text(r.acceptance_length(), 2); }},
    {"time making drafts", [](const R& r, const R&) { return share_text(r.draft_share()); }},
    {"T_SD, of predicted", [](const R& r, const R&) { return share_text(r.drafting_time_ratio()); }},
    {"CPU of engines, s", [](const R& r, const R&) { return decimal_text(r.cpu_engine_s, 2); }},
    {"CPU in all, s", [](const R& r, const R&) { return decimal_text(r.cpu_total_s, 2); }},
    {"CPU share of actors", [](const R& r, const R&) { return share_text(r.actor_cpu_share); }},
    {"weight version", [](const R& r, const R&) { return std::to_string(r.weight_version); }},
}};
constexpr std::array<Row, 2> kRatioRows{{
    {"tokens/s, ratio", [](const R& r, const R& first) { return ratio_text(r.tokens_per_s, first.tokens_per_s); }},
    {"tail, ratio", [](const R& r, const R& first) { return ratio_text(r.tail_s, first.tail_s); }},
}};

constexpr int kNameWidth = 24, kCellWidth = 14;

std::string padded_line(const char* name, const std::vector<std::string>& cells) {
  std::string line = formatted("  %-*s", kNameWidth, name);
  for (const std::string& cell : cells)
    line += std::string(std::max<std::ptrdiff_t>(1, kCellWidth - std::ssize(cell)), ' ') + cell;
  return line + '\n';
}

std::string rows_text(std::span<const Row> rows, std::span<const RolloutReport> reports) {
  std::string text;
  for (const Row& row : rows) {
    std::vector<std::string> cells;
    for (const RolloutReport& report : reports) cells.push_back(row.cell(report, reports.front()));
    text += padded_line(row.name, cells);
  }
  return text;
}

}  // namespace

std::string report_json(const RolloutReport& report) { return to_json(report).dump(2) + '\n'; }

std::string report_json(std::span<const RolloutReport> reports) {
  Json list = Json::array();
  for (const RolloutReport& report : reports) list.push_back(to_json(report));
  return list.dump(2) + '\n';
}

std::string report_table(const RolloutReport& report) {
  std::string text = padded_line("policy", {report.policy});
  if (!report.policy_choice.empty()) text += cat("  chosen: ", report.policy_choice, "\n");
  text += rows_text(kRows, {&report, 1});
  text += '\n' + padded_line("instance", {"busy, s", "idle, s", "tokens", "steps"});
  for (size_t i = 0; i < report.instances.size(); ++i) {
    const InstanceFigures& instance = report.instances[i];
    text += padded_line(std::to_string(i).c_str(), {decimal_text(instance.busy_s, 2), decimal_text(instance.idle_s, 2),
                                                    count_text(instance.tokens), count_text(instance.steps)});
  }
  return text;
}

std::string compare_table(std::span<const RolloutReport> reports) {
  SEER_CHECK(!reports.empty());
  std::vector<std::string> policies;
  for (const RolloutReport& report : reports) policies.push_back(report.policy_choice.empty() ? report.policy : cat(report.policy, " (auto)"));
  return padded_line("policy", policies) + rows_text(kRows, reports) + '\n' + rows_text(kRatioRows, reports);
}

}  // namespace seer
