#include "cli/sim/sim_html.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/sim/sim_html_page.h"

namespace seer {
namespace {

using Json = nlohmann::ordered_json;  // a number that is not finite becomes null

constexpr int64_t kTimelineColumns = 300;
constexpr int64_t kCompletionPoints = 400;
constexpr double kLevels = 4095;  // of a value in two characters of 6 bits; only 0 becomes level 0

/// JSON that is safe inside a <script>: without "<" nothing can end the element or open a comment.
std::string script_json(const Json& json) {
  const std::string plain = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string text;
  for (const char c : plain) c == '<' ? text += "\\u003c" : text += c;
  return text;
}

double to_ms(double seconds) { return std::round(seconds * 1000) / 1000; }  // shortens the file; the eye sees no difference

// ---- timelines ----

using SampleValue = double (*)(const LoadSample& sample);

/// The mean of `value` over each of kTimelineColumns equal spans of [0, total_s). A sample holds until the next one.
std::vector<double> column_means(const InstanceTimeline& samples, double total_s, SampleValue value) {
  std::vector<double> means(kTimelineColumns, 0);
  const double column_s = total_s / kTimelineColumns;
  if (!(column_s > 0)) return means;
  for (size_t i = 0; i < samples.size(); ++i) {
    double from_s = std::max(samples[i].time_s, 0.0);
    const double until_s = std::min(i + 1 < samples.size() ? samples[i + 1].time_s : total_s, total_s);
    if (!(from_s < until_s)) continue;
    auto column = static_cast<int64_t>(from_s / column_s);
    for (; from_s < until_s && column < kTimelineColumns; ++column) {
      const double end_s = std::min(until_s, static_cast<double>(column + 1) * column_s);
      means[static_cast<size_t>(column)] += value(samples[i]) * (std::max(end_s, from_s) - from_s) / column_s;
      from_s = std::max(end_s, from_s);
    }
  }
  return means;
}

/// Two characters per value, high 6 bits first; the page's script reads them back.
std::string level_text(std::span<const double> values, double most) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string text;
  for (const double value : values) {
    // Only 0 is shown as 0: an idle instance differs from one with little to do.
    const double level = most > 0 ? std::clamp(std::round(value / most * kLevels), value > 0 ? 1.0 : 0.0, kLevels) : 0;
    const auto bits = static_cast<size_t>(level);
    text += kDigits[bits >> 6];
    text += kDigits[bits & 63];
  }
  return text;
}

/// {"most": what the highest level stands for, "rows": one text per instance}.
Json timeline_json(const SimRun& run, SampleValue value) {
  std::vector<std::vector<double>> rows;
  double most = 0;
  for (const InstanceTimeline& samples : run.instances) {
    rows.push_back(column_means(samples, run.total_s, value));
    most = std::max(most, std::ranges::max(rows.back()));
  }
  Json texts = Json::array();
  for (const std::vector<double>& row : rows) texts.push_back(level_text(row, most));
  return {{"most", most}, {"rows", std::move(texts)}};
}

/// Times at which equal shares of the requests were done; at most kCompletionPoints of them.
Json completions_json(const SimRun& run) {
  std::vector<double> times_s = run.completions_s;
  std::ranges::sort(times_s);
  const int64_t count = std::ssize(times_s);
  const int64_t points = std::min(count, kCompletionPoints);
  Json shown = Json::array();
  for (int64_t i = 1; i <= points; ++i)
    shown.push_back(to_ms(times_s[static_cast<size_t>((i * count + points - 1) / points - 1)]));
  return shown;
}

// ---- what the script draws ----

Json interval_json(const Interval& interval) { return {interval.mean, interval.ci95}; }

Json policy_json(const SimFigures& f, const SimRun& shown, size_t colour) {
  return {
      {"name", f.policy},
      {"colour", colour},
      {"synchronous", f.is_synchronous},
      {"total", interval_json(f.total_s)},
      {"tail", interval_json(f.tail_s)},
      {"speedup", interval_json(f.speedup_vs_verl)},
      {"idle", interval_json(f.idle_share)},
      {"preemptions", interval_json(f.preemptions)},
      {"migrations", interval_json(f.migrations)},
      {"reprefill", interval_json(f.reprefill_tokens)},
      {"estimate", interval_json(f.estimate_error)},
      {"shown", {{"seed", std::to_string(shown.seed)}, {"total", to_ms(shown.total_s)}, {"tail", to_ms(shown.tail_s)}}},
      {"completions", completions_json(shown)},
      {"running", timeline_json(shown, [](const LoadSample& s) { return static_cast<double>(s.running); })},
      {"kv", timeline_json(shown, [](const LoadSample& s) { return s.kv_used_share; })}};
}

/// A policy has the same colour in every workload: its index among all policies.
size_t colour_of(const std::string& policy, std::vector<std::string>& seen) {
  const auto found = std::ranges::find(seen, policy);
  const auto place = static_cast<size_t>(found - seen.begin());
  if (found == seen.end()) seen.push_back(policy);
  return place;
}

/// The figures of one workload, next to each other in what sim_figures() gives.
using Workload = std::span<const SimFigures>;

std::vector<Workload> by_workload(std::span<const SimFigures> figures) {
  std::vector<Workload> workloads;
  for (size_t begin = 0, end = 0; begin < figures.size(); begin = end) {
    while (end < figures.size() && figures[end].workload == figures[begin].workload) ++end;
    workloads.push_back(figures.subspan(begin, end - begin));
  }
  return workloads;
}

Json page_json(std::span<const Workload> workloads, std::span<const SimRun> runs) {
  std::vector<std::string> seen;
  Json list = Json::array();
  for (const Workload& workload : workloads) {
    double bound_s = kUnknown, shown_bound_s = kUnknown;  // of all seeds, and of those whose completions are shown
    Json policies = Json::array();
    for (const SimFigures& f : workload) {
      bound_s = std::fmin(bound_s, f.bound_total_s.mean);  // fmin of a number and NaN is the number
      const auto shown = std::ranges::find_if(
          runs, [&](const SimRun& run) { return run.workload == f.workload && run.policy == f.policy; });
      if (shown->is_synchronous) shown_bound_s = std::fmin(shown_bound_s, shown->bound_total_s);
      policies.push_back(policy_json(f, *shown, colour_of(f.policy, seen)));
    }
    list.push_back({{"name", workload.front().workload},
                    {"bound", bound_s},
                    {"bound_shown", shown_bound_s},
                    {"policies", std::move(policies)}});
  }
  return list;
}

// ---- the parts of the page that need no script ----

std::string cell_html(const std::string& text) {  // "MEAN ±CI95": the interval is set smaller
  const size_t interval = text.find(" ±");
  if (interval == std::string::npos) return "<td>" + escaped(text) + "</td>";
  return "<td>" + escaped(text.substr(0, interval)) + " <small>" + escaped(text.substr(interval + 1)) + "</small></td>";
}

std::string summary_html(const SimRows& all, const std::string& workload) {
  std::string html = "<div class=wide><table class=summary><thead><tr><th>policy</th>";
  const auto is_known = [&](size_t column) {
    return std::ranges::any_of(all.rows, [&](const SimRow& row) {
      return row.workload == workload && row.cells[column] != "-" && !row.cells[column].empty();
    });
  };
  std::vector<size_t> shown;
  for (size_t column = 0; column < all.titles.size(); ++column)
    if (is_known(column)) shown.push_back(column);
  for (const size_t column : shown) html += "<th>" + escaped(all.titles[column]) + "</th>";
  html += "</tr></thead><tbody>\n";
  for (const SimRow& row : all.rows) {
    if (row.workload != workload) continue;
    html += row.is_bound ? "<tr class=bound>" : "<tr>";
    html += "<th scope=row>" + escaped(row.policy) + (row.is_synchronous ? "" : " *") + "</th>";
    for (const size_t column : shown) html += cell_html(row.cells[column]);
    html += "</tr>\n";
  }
  html += "</tbody></table></div>\n";
  if (!std::ranges::all_of(all.rows, [&](const SimRow& r) { return r.workload != workload || r.is_synchronous; }))
    html += "<p class=about>* not strictly synchronous: it ends before every request is finished</p>\n";
  return html;
}

/// One sentence: which synchronous policy is fastest, by how much, and how far it is from the bound.
std::string finding_html(const Workload& workload) {
  const SimFigures* best = nullptr;
  for (const SimFigures& f : workload)
    if (f.is_synchronous && (best == nullptr || f.total_s.mean < best->total_s.mean)) best = &f;
  if (best == nullptr) return "";
  std::string html = "<p class=finding>Fastest that is strictly synchronous: <b>" + escaped(best->policy) + "</b>, " +
                     figure_text(best->total_s.mean) + " s in all, of which tail " + figure_text(best->tail_s.mean) +
                     " s";
  if (std::isfinite(best->speedup_vs_verl.mean) && best->policy != kSimBaseline)
    html += "; <b>" + decimal_text(best->speedup_vs_verl.mean, 2) + "x</b> the tokens/s of " + kSimBaseline;
  if (std::isfinite(best->bound_share.mean))
    html += "; " + share_text(best->bound_share.mean) + " of the speed that the lower bound allows";
  return html + ".</p>\n";
}

std::string runs_html(std::span<const SimRun> runs, const std::string& workload) {
  // Only simulated runs can be repeated exactly.
  const bool has_hashes = std::ranges::any_of(runs, [](const SimRun& run) { return run.events_hash != 0; });
  std::string html =
      "<details><summary>Every run</summary><div class=wide><table><thead><tr><th>policy</th><th>seed</th>"
      "<th>requests</th><th>output tokens</th><th>total, s</th><th>tail, s</th><th>tokens/s</th><th>preemptions</th>"
      "<th>migrations</th><th>yields</th><th>prefilled again</th>";
  html += has_hashes ? "<th>hash of its events</th>" : "";
  html += "</tr></thead><tbody>\n";
  for (const SimRun& run : runs) {
    if (run.workload != workload) continue;
    html += "<tr><th scope=row>" + escaped(run.policy) + "</th>";
    for (const std::string& cell :
         {std::to_string(run.seed), count_text(run.requests), count_text(run.output_tokens),
          decimal_text(run.total_s, 2), decimal_text(run.tail_s, 2), figure_text(run.tokens_per_s),
          count_text(run.preemptions), count_text(run.migrations), count_text(run.yields),
          count_text(run.reprefill_tokens)})
      html += "<td>" + cell + "</td>";
    if (has_hashes)
      html += "<td class=hash>" + formatted("%016llx", static_cast<unsigned long long>(run.events_hash)) + "</td>";
    html += "</tr>\n";
  }
  return html + "</tbody></table></div></details>\n";
}

std::string workload_html(const Workload& workload, const SimRows& all, std::span<const SimRun> runs) {
  const std::string& name = workload.front().workload;
  // The script fills .charts and .instances, in the order of the workloads.
  return "<section class=workload>\n<h2>" + escaped(name) + "</h2>\n" + finding_html(workload) +
         summary_html(all, name) + "<div class=charts></div>\n<div class=instances></div>\n" + runs_html(runs, name) +
         "</section>\n";
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

std::string html_head(std::string_view title, std::string_view policy) {
  return cat("<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n"
             "<meta name=viewport content=\"width=device-width, initial-scale=1\">\n"
             "<meta http-equiv=Content-Security-Policy content=\"", policy, "\">\n<title>", escaped(title), "</title>\n<style>",
             kSimHtmlStyle, "</style>\n</head>\n<body>\n");
}

std::string sim_html(std::span<const SimRun> runs, std::string_view made_by, std::string_view title) {
  const std::vector<SimFigures> figures = sim_figures(runs);
  const std::vector<Workload> workloads = by_workload(figures);
  const SimRows all = sim_rows(figures);
  std::string html = html_head(cat("Seer: ", title), "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'");
  html += "<main>\n<header><h1>" + escaped(title) + "</h1>\n<p class=made>" + escaped(made_by) +
          "</p></header>\n";
  for (const Workload& workload : workloads) html += workload_html(workload, all, runs);
  html += kSimHtmlGlossary;
  html += "</main>\n<div id=tip hidden></div>\n<script type=\"application/json\" id=data>" +
          script_json(page_json(workloads, runs)) + "</script>\n<script>";
  html += kSimHtmlScript;
  return html + "</script>\n</body>\n</html>\n";
}

}  // namespace seer
