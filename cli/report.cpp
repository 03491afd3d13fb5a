#include "cli/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "actors/policy/draft/draft_history.h"
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
  const DraftFigures d = r.drafting();
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

struct InstanceTimes {
  double busy_s, idle_s;
};
/// Unknown of servers that were there before (--engines): they do not report steps.
InstanceTimes times_of(const RolloutReport& r, const InstanceReport& instance) {
  if (instance.steps == 0 && instance.output_tokens > 0) return {kUnknown, kUnknown};
  const double busy_s = static_cast<double>(instance.busy_us) / 1e6;
  return {busy_s, std::max(0.0, r.rollout.wall_s() - busy_s)};
}

Json instances_json(const RolloutReport& r) {
  Json instances = Json::array();
  for (const InstanceReport& i : r.rollout.instances) {
    const auto [busy_s, idle_s] = times_of(r, i);
    instances.push_back({{"busy_s", busy_s}, {"idle_s", idle_s}, {"tokens", i.output_tokens}, {"steps", i.steps}});
  }
  return instances;
}

int64_t kv_peak_bytes(const RolloutReport& r) {
  int64_t bytes = 0;
  for (const InstanceReport& i : r.rollout.instances) bytes += i.kv_blocks_peak * i.kv_block_bytes;
  return bytes;
}

double cpu_engine_s(const RolloutReport& r) {
  int64_t us = 0;
  for (const InstanceReport& i : r.rollout.instances) us += i.engine_cpu_us;
  return static_cast<double>(us) / 1e6;
}

int64_t fetched_draft_tokens(const RolloutReport& r) {
  int64_t tokens = 0;
  for (const DraftServerReport& server : r.rollout.draft_servers) tokens += server.fetched_tokens;
  return tokens;
}

/// "7 of 320" if the rollout was stopped.
std::string requests_text(const RolloutReport& r) {
  const int64_t all = r.rollout.requests, done = r.rollout.finished;
  return done < all ? cat(count_text(done), " of ", count_text(all)) : count_text(all);
}

// ---- the figures ----

using R = RolloutReport;

std::string whole(double value) { return std::isfinite(value) ? count_text(std::llround(value)) : "-"; }
std::string size(double value) { return bytes_text(std::llround(value)); }
std::string hundredths(double value) { return decimal_text(value, 2); }
std::string thousandths(double value) { return decimal_text(value, 3); }

constexpr std::array<const char*, 5> kSections{"result", "scheduling", "KV", "drafting", "cost"};
enum Section : uint8_t { kResult, kScheduling, kKv, kDrafting, kCost };

enum RowFlags : unsigned {
  kAlways = 1,  // rows without this are left out if all reports have 0 or nothing there
  kLate = 2,    // comes after the other rows of its section
};

/// A row of the table. The words are those of `seer simulate`.
struct Row {
  Section section;
  const char* name;
  const char* meaning;  // "": the name says it
  std::string (*text)(double value);
  unsigned flags = 0;
};

/// A figure of the report, in JSON, in the table or in both.
struct Figure {
  const char* key;  // nullptr: in the table only
  Json (*value)(const R& report);
  std::optional<Row> row = {};  // REQUIRES: the value is a number
};

/// All figures, in the order of the JSON. Rows have the same order within their section.
const std::vector<Figure>& figures() {
  static const std::vector<Figure> all{
      {"policy", [](const R& r) -> Json { return r.policy; }},
      {"policy_choice", [](const R& r) { return r.policy_choice.empty() ? Json() : Json(r.policy_choice); }},
      {"reserve", [](const R& r) -> Json { return r.reserve; }},
      {"requests", [](const R& r) -> Json { return r.rollout.requests; }},
      {"finished", [](const R& r) -> Json { return r.rollout.finished; }},
      {"failed_requests", [](const R& r) -> Json { return r.rollout.failed; },
       Row{kResult, "failed requests", "their responses say why", whole}},
      {"answered_before", [](const R& r) -> Json { return r.answered_before; },
       Row{kResult, "answered before", "requests, as the journal had them", whole}},
      {"prompt_tokens", [](const R& r) -> Json { return r.rollout.prompt_tokens; }, Row{kResult, "prompt tokens", "", whole}},
      {"output_tokens", [](const R& r) -> Json { return r.rollout.output_tokens; },
       Row{kResult, "output tokens", "", whole, kAlways}},
      {"wall_s", [](const R& r) -> Json { return r.rollout.wall_s(); }, Row{kResult, "total, s", "", hundredths}},
      {"tokens_per_s", [](const R& r) -> Json { return r.tokens_per_s(); },
       Row{kResult, "tokens/s", "output tokens of this run over total", whole, kLate}},
      {"tail_s", [](const R& r) -> Json { return r.rollout.tail_s; },
       Row{kResult, "tail, s", "after 90 % of the requests were done", hundredths, kAlways}},
      {nullptr, [](const R& r) -> Json { return r.idle_share(); },
       Row{kResult, "idle", "of the instances' time, outside steps", share_text, kAlways | kLate}},
      {"chunks", [](const R& r) -> Json { return r.rollout.chunks; },
       Row{kScheduling, "chunks", "turns of a request on an instance", whole}},
      {"migrations", [](const R& r) -> Json { return r.rollout.migrations; },
       Row{kScheduling, "migrations", "chunks on another instance than before", whole}},
      {"yields", [](const R& r) -> Json { return r.rollout.yields; },
       Row{kScheduling, "yields", "chunks cut short, KV kept in the pool", whole}},
      {"preemptions", [](const R& r) -> Json { return r.rollout.preemptions; },
       Row{kScheduling, "preemptions", "chunks cut short, KV dropped", whole}},
      {"reprefill_tokens", [](const R& r) -> Json { return r.rollout.reprefill_tokens; },
       Row{kScheduling, "prefilled again", "tokens whose KV was computed again", whole}},
      {"reprefilled_chunks", [](const R& r) -> Json { return r.rollout.reprefilled_chunks; },
       Row{kScheduling, "chunks with these", "", whole}},
      {"kv_peak_bytes", [](const R& r) -> Json { return kv_peak_bytes(r); },
       Row{kKv, "peak", "most in use at one time, all instances", size}},
      {"spilled_bytes", [](const R& r) -> Json { return r.sum(&KvNodeReport::spilled_bytes); },
       Row{kKv, "written to disk", "by the cold tier", size}},
      {"instances_lost", [](const R& r) -> Json { return r.rollout.instances_lost; },
       Row{kScheduling, "instances lost", "died or fell silent; started again", whole}},
      {"cold_failures", [](const R& r) -> Json { return r.sum(&KvNodeReport::cold_failures); },
       Row{kKv, "cold tier failures", "reads and writes; computed again", whole}},
      {"parts_lost", [](const R& r) -> Json { return r.rollout.parts_lost; }},
      {nullptr, [](const R& r) -> Json { return r.rollout.parts_lost.size(); },
       Row{kScheduling, "parts lost for good", "of machines; the log says why", whole}},
      {"fetched_bytes", [](const R& r) -> Json { return r.sum(&KvNodeReport::fetched_bytes); },
       Row{kKv, "from other machines", "KV that moved with requests", size}},
      {"moved_bytes", [](const R& r) -> Json { return r.sum(&KvNodeReport::moved_bytes); },
       Row{kKv, "to other machines", "KV that left for lack of room", size}},
      {"fetch_failures", [](const R& r) -> Json { return r.sum(&KvNodeReport::fetch_failures); },
       Row{kKv, "fetches failed", "blocks of other nodes; computed again", whole}},
      {"length_icc", [](const R& r) -> Json { return r.rollout.length_icc; },
       Row{kScheduling, "length ICC", "1: a group's lengths are alike", thousandths, kLate}},
      {"estimate_error", [](const R& r) -> Json { return r.rollout.estimate_error; },
       Row{kScheduling, "estimate off", "mean of |estimate - length| / length", share_text}},
      {"verifies", [](const R& r) -> Json { return r.drafting().all().verifies; }},
      {"drafted_tokens", [](const R& r) -> Json { return r.drafting().all().drafted; },
       Row{kDrafting, "drafted tokens", "", whole}},
      {nullptr, [](const R& r) -> Json { return r.drafting().trees().drafted; },
       Row{kDrafting, "of them in trees", "", whole}},
      {"accepted_tokens", [](const R& r) -> Json { return r.drafting().all().accepted; }},
      {"acceptance_length", [](const R& r) -> Json { return r.acceptance_length(); },
       Row{kDrafting, "acceptance length", "tokens gained by a verified draft", hundredths}},
      {nullptr, [](const R& r) -> Json { return r.draft_share(); },
       Row{kDrafting, "time making drafts", "share of the instances' time", share_text}},
      {nullptr, [](const R& r) -> Json { return r.drafting_time_ratio(); },
       Row{kDrafting, "T_SD, of predicted", "time of drafting steps, as modelled", share_text}},
      {"fetched_draft_tokens", [](const R& r) -> Json { return fetched_draft_tokens(r); }},
      {"past_groups", [](const R& r) -> Json { return r.past_groups; },
       Row{kDrafting, "groups known before", "prompts found in --draft-history", whole}},
      {"unkept_groups", [](const R& r) -> Json { return r.unkept_groups; },
       Row{kDrafting, "groups not kept", "could not be stored there", whole}},
      {"drafting", drafting_json},
      {"cpu_engine_s", [](const R& r) -> Json { return cpu_engine_s(r); }, Row{kCost, "CPU of engines, s", "", hundredths}},
      {"cpu_total_s", [](const R& r) -> Json { return r.cpu_total_s; }, Row{kCost, "CPU in all, s", "", hundredths}},
      {"actor_cpu_share", [](const R& r) -> Json { return r.actor_cpu_share; },
       Row{kCost, "CPU of actors", "scheduling, share of CPU in all", share_text}},
      {"weight_version", [](const R& r) -> Json { return r.version.value; },
       Row{kResult, "weight version", "", whole, kLate}},
      {"instances", instances_json}};
  return all;
}

Json to_json(const RolloutReport& r) {
  Json json = Json::object();
  for (const Figure& figure : figures())
    if (figure.key != nullptr) json[figure.key] = figure.value(r);
  return json;
}

/// The figures with a row in this section, from top to bottom.
std::vector<const Figure*> rows_of(Section section) {
  std::vector<const Figure*> rows;
  for (const unsigned late : {0u, unsigned{kLate}})
    for (const Figure& figure : figures())
      if (figure.row && figure.row->section == section && (figure.row->flags & kLate) == late) rows.push_back(&figure);
  return rows;
}

double number(const Figure& figure, const R& report) { return figure.value(report).get<double>(); }

constexpr int64_t kColumns = 80, kNameWidth = 24, kCellWidth = 14, kCellWidthMin = 10;

/// A name and right-aligned cells, then the meaning of the name.
std::string padded_line(std::string_view name, const std::vector<std::string>& cells, std::string_view meaning = "",
                        int64_t cell_width = kCellWidth) {
  std::string line = "  " + std::string(name) + std::string(std::max<int64_t>(0, kNameWidth - std::ssize(name)), ' ');
  for (const std::string& cell : cells) line += std::string(std::max<int64_t>(1, cell_width - std::ssize(cell)), ' ') + cell;
  return line + (meaning.empty() ? "" : "  " + std::string(meaning)) + '\n';
}

bool is_shown(const Figure& figure, std::span<const RolloutReport> reports) {
  return (figure.row->flags & kAlways) != 0 || std::ranges::any_of(reports, [&](const RolloutReport& r) {
    const double value = number(figure, r);
    return std::isfinite(value) && value != 0;
  });
}

/// The sections, with the rows that have a value in any report of `all`, and cells for `shown`.
std::string sections_text(std::span<const RolloutReport> all, std::span<const RolloutReport> shown, int64_t cell_width,
                          bool with_meanings, bool is_coloured) {
  std::string text;
  for (size_t section = 0; section < kSections.size(); ++section) {
    std::string rows;
    if (section == kResult) {
      std::vector<std::string> requests;
      for (const RolloutReport& r : shown) requests.push_back(requests_text(r));
      rows += padded_line("requests", requests, "", cell_width);
    }
    for (const Figure* figure : rows_of(static_cast<Section>(section))) {
      if (!is_shown(*figure, all)) continue;
      std::vector<std::string> cells;
      for (const RolloutReport& r : shown) cells.push_back(figure->row->text(number(*figure, r)));
      rows += padded_line(figure->row->name, cells, with_meanings ? figure->row->meaning : "", cell_width);
    }
    if (!rows.empty()) text += with_look(kSections[section], Look::kBold, is_coloured) + '\n' + rows;
  }
  return text;
}

std::string meanings_text(std::span<const RolloutReport> reports) {
  std::string text;
  for (size_t section = 0; section < kSections.size(); ++section)
    for (const Figure* figure : rows_of(static_cast<Section>(section)))
      if (*figure->row->meaning != '\0' && is_shown(*figure, reports))
        text += padded_line(figure->row->name, {}, figure->row->meaning);
  return text;
}

/// The name of a row of ratios: "tail vs verl".
std::string against(std::string_view what, const RolloutReport& first) {
  const std::string name = cat(what, " vs ", first.policy_text());
  return std::ssize(name) <= kNameWidth ? name : cat(what, " vs the first");
}

std::string ratio_text(double value, double first) { return first > 0 ? formatted("%.2fx", value / first) : "-"; }

}  // namespace

DraftFigures RolloutReport::drafting() const {
  DraftFigures all;
  for (const InstanceReport& instance : rollout.instances) add_figures(all, instance.drafting);
  return all;
}

double RolloutReport::acceptance_length() const {
  const DraftCounts drafts = drafting().all();
  return drafts.verifies > 0 ? drafts.acceptance_length() : kUnknown;
}

double RolloutReport::idle_share() const {
  double idle_s = 0, all_s = 0;
  for (const InstanceReport& instance : rollout.instances) {
    const InstanceTimes times = times_of(*this, instance);
    if (std::isnan(times.busy_s)) continue;
    idle_s += times.idle_s;
    all_s += times.busy_s + times.idle_s;
  }
  return all_s > 0 ? idle_s / all_s : kUnknown;
}

double RolloutReport::draft_share() const {
  const double all_s = rollout.wall_s() * static_cast<double>(rollout.instances.size());
  return all_s > 0 ? static_cast<double>(drafting().draft_us) / 1e6 / all_s : kUnknown;
}

double RolloutReport::drafting_time_ratio() const {
  const StepTimes times = drafting().drafting_steps;
  return times.predicted_us > 0 ? static_cast<double>(times.us) / static_cast<double>(times.predicted_us) : kUnknown;
}

int64_t RolloutReport::sum(int64_t KvNodeReport::*figure) const {
  int64_t all = 0;
  for (const KvNodeReport& node : pool) all += node.*figure;
  return all;
}

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
  for (size_t i = 0; i < report.rollout.instances.size(); ++i) {
    const InstanceReport& instance = report.rollout.instances[i];
    const auto [busy_s, idle_s] = times_of(report, instance);
    text += padded_line(std::to_string(i), {decimal_text(busy_s, 2), decimal_text(idle_s, 2), count_text(instance.output_tokens),
                                            count_text(instance.steps)}, "", kCellWidth - 1);
  }
  return text;
}

std::string compare_table(std::span<const RolloutReport> reports, bool is_coloured) {
  SEER_CHECK(!reports.empty());
  int64_t cell_width = kCellWidthMin;
  for (const RolloutReport& report : reports) cell_width = std::max(cell_width, std::ssize(report.policy_text()) + 2);
  // As many policies as fit are side by side; the others follow in tables below.
  const auto side_by_side = static_cast<size_t>((kColumns - 2 - kNameWidth) / cell_width);
  std::string text;
  for (size_t begin = 0; begin < reports.size(); begin += side_by_side) {
    const auto shown = reports.subspan(begin, std::min(side_by_side, reports.size() - begin));
    std::vector<std::string> policies, speeds, tails;
    for (const RolloutReport& r : shown) {
      policies.push_back(r.policy_text());
      speeds.push_back(ratio_text(r.tokens_per_s(), reports.front().tokens_per_s()));
      tails.push_back(ratio_text(r.rollout.tail_s, reports.front().rollout.tail_s));
    }
    text += padded_line("policy", policies, "", cell_width) +
            padded_line(against("tokens/s", reports.front()), speeds, "", cell_width) +
            padded_line(against("tail", reports.front()), tails, "", cell_width) +
            sections_text(reports, shown, cell_width, false, is_coloured) + '\n';
  }
  return text + with_look("what the rows mean", Look::kBold, is_coloured) + '\n' + meanings_text(reports);
}

}  // namespace seer
