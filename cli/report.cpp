#include "cli/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/figure_text.h"
#include "cli/terminal.h"
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

/// "7 of 320" where the rollout was stopped.
std::string requests_text(const RolloutReport& r) {
  return r.finished < r.requests ? cat(count_text(r.finished), " of ", count_text(r.requests)) : count_text(r.requests);
}

double real(int64_t count) { return static_cast<double>(count); }

// ---- the table ----

using R = RolloutReport;

std::string whole(double value) { return std::isfinite(value) ? count_text(std::llround(value)) : "-"; }
std::string size(double value) { return bytes_text(std::llround(value)); }
std::string hundredths(double value) { return decimal_text(value, 2); }
std::string thousandths(double value) { return decimal_text(value, 3); }

/// A line of the table. The words are those of `seer simulate`.
struct Row {
  const char* name;
  const char* meaning;  // "": the name says it
  double (*value)(const RolloutReport& report);
  std::string (*text)(double value);
  bool is_always_shown = false;  // others are left out where there is nothing: 0, or not known, in all reports
};
struct Section {
  const char* title;
  std::vector<Row> rows;
};

const std::vector<Section>& sections() {
  static const std::vector<Section> all{
      {"result",
       {{"failed requests", "their responses say why", [](const R& r) { return real(r.failed_requests); }, whole},
        {"prompt tokens", "", [](const R& r) { return real(r.prompt_tokens); }, whole},
        {"output tokens", "", [](const R& r) { return real(r.output_tokens); }, whole, true},
        {"total, s", "", [](const R& r) { return r.wall_s; }, hundredths},
        {"tail, s", "after 90 % of the requests were done", [](const R& r) { return r.tail_s; }, hundredths, true},
        {"tokens/s", "output tokens over total", [](const R& r) { return r.tokens_per_s; }, whole},
        {"idle", "of the instances' time, outside steps", [](const R& r) { return r.idle_share(); }, share_text, true},
        {"weight version", "", [](const R& r) { return real(static_cast<int64_t>(r.weight_version)); }, whole}}},
      {"scheduling",
       {{"chunks", "turns of a request on an instance", [](const R& r) { return real(r.chunks); }, whole},
        {"migrations", "chunks on another instance than before", [](const R& r) { return real(r.migrations); }, whole},
        {"yields", "chunks cut short, KV kept in the pool", [](const R& r) { return real(r.yields); }, whole},
        {"preemptions", "chunks cut short, KV dropped", [](const R& r) { return real(r.preemptions); }, whole},
        {"prefilled again", "tokens whose KV was computed again", [](const R& r) { return real(r.reprefill_tokens); }, whole},
        {"instances lost", "died or fell silent; started again", [](const R& r) { return real(r.instances_lost); }, whole},
        {"estimate off", "mean of |estimate - length| / length", [](const R& r) { return r.estimate_error; }, share_text},
        {"length ICC", "1: a group's lengths are alike", [](const R& r) { return r.length_icc; }, thousandths}}},
      {"KV",
       {{"peak", "most in use at one time, all instances", [](const R& r) { return real(r.kv_peak_bytes); }, size},
        {"written to disk", "by the cold tier", [](const R& r) { return real(r.spilled_bytes); }, size},
        {"cold tier failures", "reads and writes; computed again", [](const R& r) { return real(r.cold_failures); }, whole},
        {"fetches failed", "blocks of other nodes; computed again", [](const R& r) { return real(r.fetch_failures); }, whole}}},
      {"drafting",
       {{"drafted tokens", "", [](const R& r) { return real(r.drafting.all().drafted); }, whole},
        {"of them in trees", "", [](const R& r) { return real(r.drafting.trees().drafted); }, whole},
        {"acceptance length", "tokens gained by a verified draft", [](const R& r) { return r.acceptance_length(); }, hundredths},
        {"time making drafts", "share of the instances' time", [](const R& r) { return r.draft_share(); }, share_text},
        {"T_SD, of predicted", "time of drafting steps, as modelled", [](const R& r) { return r.drafting_time_ratio(); }, share_text},
        {"groups known before", "prompts found in --draft-history", [](const R& r) { return real(r.past_groups); }, whole},
        {"groups not kept", "could not be stored there", [](const R& r) { return real(r.unkept_groups); }, whole}}},
      {"cost",
       {{"CPU of engines, s", "", [](const R& r) { return r.cpu_engine_s; }, hundredths},
        {"CPU in all, s", "", [](const R& r) { return r.cpu_total_s; }, hundredths},
        {"CPU of actors", "scheduling, share of CPU in all", [](const R& r) { return r.actor_cpu_share; }, share_text}}}};
  return all;
}

constexpr int64_t kColumns = 80, kNameWidth = 24, kCellWidth = 14, kCellWidthMin = 10;

/// A name and cells set right under each other, then what the name means.
std::string padded_line(std::string_view name, const std::vector<std::string>& cells, std::string_view meaning = "",
                        int64_t cell_width = kCellWidth) {
  std::string line = "  " + std::string(name) + std::string(std::max<int64_t>(0, kNameWidth - std::ssize(name)), ' ');
  for (const std::string& cell : cells) line += std::string(std::max<int64_t>(1, cell_width - std::ssize(cell)), ' ') + cell;
  return line + (meaning.empty() ? "" : "  " + std::string(meaning)) + '\n';
}

bool is_shown(const Row& row, std::span<const RolloutReport> reports) {
  return row.is_always_shown || std::ranges::any_of(reports, [&](const RolloutReport& r) {
    const double value = row.value(r);
    return std::isfinite(value) && value != 0;
  });
}

/// The sections with their rows, of `all` those which have something in any report, cells for `shown`.
std::string sections_text(std::span<const RolloutReport> all, std::span<const RolloutReport> shown, int64_t cell_width,
                          bool with_meanings, bool is_coloured) {
  std::string text;
  for (const Section& section : sections()) {
    std::string rows;
    if (&section == &sections().front()) {
      std::vector<std::string> requests;
      for (const RolloutReport& r : shown) requests.push_back(requests_text(r));
      rows += padded_line("requests", requests, "", cell_width);
    }
    for (const Row& row : section.rows) {
      if (!is_shown(row, all)) continue;
      std::vector<std::string> cells;
      for (const RolloutReport& r : shown) cells.push_back(row.text(row.value(r)));
      rows += padded_line(row.name, cells, with_meanings ? row.meaning : "", cell_width);
    }
    if (!rows.empty()) text += with_look(section.title, Look::kBold, is_coloured) + '\n' + rows;
  }
  return text;
}

std::string meanings_text(std::span<const RolloutReport> reports) {
  std::string text;
  for (const Section& section : sections())
    for (const Row& row : section.rows)
      if (*row.meaning != '\0' && is_shown(row, reports))
        text += padded_line(row.name, {}, row.meaning);
  return text;
}

/// The name of a row of ratios: "tail vs verl".
std::string against(std::string_view what, const RolloutReport& first) {
  const std::string name = cat(what, " vs ", first.policy_text());
  return std::ssize(name) <= kNameWidth ? name : cat(what, " vs the first");
}

std::string ratio_text(double value, double first) { return first > 0 ? formatted("%.2fx", value / first) : "-"; }

}  // namespace

std::string report_json(const RolloutReport& report) { return to_json(report).dump(2) + '\n'; }

std::string report_json(std::span<const RolloutReport> reports) {
  Json list = Json::array();
  for (const RolloutReport& report : reports) list.push_back(to_json(report));
  return list.dump(2) + '\n';
}

std::string report_table(const RolloutReport& report, bool is_coloured) {
  std::string text = padded_line("policy", {report.policy});
  if (!report.policy_choice.empty()) text += cat("  chosen: ", report.policy_choice, "\n");
  text += sections_text({&report, 1}, {&report, 1}, kCellWidth, true, is_coloured);
  text += with_look("instances", Look::kBold, is_coloured) + '\n' +
          padded_line("", {"busy, s", "idle, s", "tokens", "steps"}, "", kCellWidth - 1);
  for (size_t i = 0; i < report.instances.size(); ++i) {
    const InstanceFigures& instance = report.instances[i];
    text += padded_line(std::to_string(i), {decimal_text(instance.busy_s, 2), decimal_text(instance.idle_s, 2),
                                            count_text(instance.tokens), count_text(instance.steps)}, "", kCellWidth - 1);
  }
  return text;
}

std::string compare_table(std::span<const RolloutReport> reports, bool is_coloured) {
  SEER_CHECK(!reports.empty());
  int64_t cell_width = kCellWidthMin;
  for (const RolloutReport& report : reports) cell_width = std::max(cell_width, std::ssize(report.policy_text()) + 2);
  // As many policies side by side as fit; the others in tables below.
  const auto side_by_side = static_cast<size_t>((kColumns - 2 - kNameWidth) / cell_width);
  std::string text;
  for (size_t begin = 0; begin < reports.size(); begin += side_by_side) {
    const auto shown = reports.subspan(begin, std::min(side_by_side, reports.size() - begin));
    std::vector<std::string> policies, speeds, tails;
    for (const RolloutReport& r : shown) {
      policies.push_back(r.policy_text());
      speeds.push_back(ratio_text(r.tokens_per_s, reports.front().tokens_per_s));
      tails.push_back(ratio_text(r.tail_s, reports.front().tail_s));
    }
    text += padded_line("policy", policies, "", cell_width) +
            padded_line(against("tokens/s", reports.front()), speeds, "", cell_width) +
            padded_line(against("tail", reports.front()), tails, "", cell_width) +
            sections_text(reports, shown, cell_width, false, is_coloured) + '\n';
  }
  return text + with_look("what the rows mean", Look::kBold, is_coloured) + '\n' + meanings_text(reports);
}

}  // namespace seer
