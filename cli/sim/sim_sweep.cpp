#include "cli/sim/sim_sweep.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "cli/option.h"
#include "cli/sim/sim_html.h"
#include "cli/sim/sim_policy.h"

namespace seer {
namespace {

constexpr double kBlockS = 12e-6;       // of simulating a KV block of output; measured: 4 to 14 (docs/simulation.md)
constexpr double kDraftingFactor = 1.6; // a run with drafting takes as many times as long; measured: 1.3 to 2
constexpr int64_t kUsualBlockTokens = 256;

/// A key: how its values are read, and what they set.
struct SweepKey {
  const char* name;
  Result<int64_t> (*read)(std::string_view text);
  Status (*apply)(int64_t value, Workload& workload, SimulateOptions& options);
};

template <int64_t low, int64_t high>
Result<int64_t> read_count(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high)
    return fail(Code::kInvalidArgument, "a whole number from ", low, " to ", high);
  return value;
}

template <int64_t low>
Result<int64_t> read_size(std::string_view text) {
  const Result<int64_t> bytes = parse_size(text);
  if (!bytes.ok() || *bytes < low || text.find(' ') != text.npos) return fail(Code::kInvalidArgument, "a size such as 1TiB");
  return *bytes;
}

Status apply_tp(int64_t tp, Workload& w, SimulateOptions& o) {
  if (!w.hardware || !o.profile.empty())
    return fail(Code::kInvalidArgument, "--sweep tp: the step times are measured, not from a model of GPUs");
  const bool spreads_experts = w.hardware->ep > 1;
  w.hardware->tp = tp;
  w.hardware->gpus_per_instance = tp * w.hardware->dp;
  if (spreads_experts) w.hardware->ep = w.hardware->gpus_per_instance;
  return {};
}

Status apply_group_size(int64_t size, Workload& w, SimulateOptions&) {
  if (!w.trace.empty()) return fail(Code::kInvalidArgument, "--sweep group-size: the groups are those of a trace");
  if (w.groups * w.group_size % size != 0)
    return fail(Code::kInvalidArgument, "--sweep group-size: ", size, ": expected a divisor of the ", w.groups * w.group_size, " requests");
  w.groups = w.groups * w.group_size / size;
  w.group_size = size;
  return {};
}

template <int64_t SimulateOptions::*field>
Status apply_option(int64_t value, Workload&, SimulateOptions& o) {
  o.*field = value;
  return {};
}

Status apply_chunk(int64_t tokens, Workload&, SimulateOptions& o) {
  o.scheduler.chunk_tokens = tokens;
  return {};
}

constexpr int64_t kCountMax = 1 << 24;
constexpr SweepKey kKeys[] = {  // with the ranges of the flags
    {"instances", read_count<1, 100'000>, apply_option<&SimulateOptions::instances>},
    {"tp", read_count<1, kCountMax>, apply_tp},
    {"dram", read_size<1>, apply_option<&SimulateOptions::dram_bytes>},
    {"cold", read_size<0>, apply_option<&SimulateOptions::cold_bytes>},
    {"group-size", read_count<1, kCountMax>, apply_group_size},
    {"max-batch", read_count<1, 65'536>, apply_option<&SimulateOptions::max_batch>},
    {"chunk-tokens", read_count<0, kCountMax>, apply_chunk},
};

const SweepKey* find_key(std::string_view name) {
  const auto found = std::ranges::find_if(kKeys, [&](const SweepKey& key) { return name == key.name; });
  return found == std::end(kKeys) ? nullptr : found;
}

Result<SweepAxis> parse_axis(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos)
    return fail(Code::kInvalidArgument, "--sweep ", text, ": expected KEY=VALUE,VALUE with a key of ", sweep_keys());
  SweepAxis axis{text.substr(0, equals), {}};
  const SweepKey* key = find_key(axis.key);
  if (key == nullptr)
    return fail(Code::kInvalidArgument, "--sweep ", text, ": unknown key ", axis.key, ": expected one of ", sweep_keys());
  std::istringstream values(text.substr(equals + 1) + ",");
  for (std::string value; std::getline(values, value, ',');) {
    if (const Result<int64_t> read = key->read(value); !read.ok())
      return fail(Code::kInvalidArgument, "--sweep ", text, ": ", axis.key, " is \"", value, "\": expected ", read.error().detail);
    if (std::ranges::find(axis.values, value) != axis.values.end())
      return fail(Code::kInvalidArgument, "--sweep ", text, ": ", value, " is given twice");
    axis.values.push_back(value);
  }
  return axis;
}

std::string duration_text(double s) {
  if (s < 90) return cat(std::llround(s), " s");
  return s < 5400 ? cat(std::llround(s / 60), " min") : cat(std::llround(s / 3600), " h");
}

/// "instances 16, tp 4".
std::string settings_text(std::span<const SweepAxis> axes, const std::string& workload) {
  std::istringstream words(workload);
  std::string text, word;
  for (const SweepAxis& axis : axes) {
    words >> word;
    text += cat(text.empty() ? "" : ", ", axis.key, " ", word);
  }
  return text;
}

const SimFigures* least_of(std::span<const SimFigures> figures, Interval SimFigures::*figure) {
  const SimFigures* least = nullptr;
  for (const SimFigures& f : figures)
    if (f.is_synchronous && std::isfinite((f.*figure).mean) && (least == nullptr || (f.*figure).mean < (least->*figure).mean))
      least = &f;
  return least;
}

}  // namespace

std::string sweep_keys() {
  std::string names;
  for (const SweepKey& key : kKeys) names += cat(names.empty() ? "" : ", ", key.name);
  return names;
}

Result<std::vector<SweepAxis>> parse_sweep(std::span<const std::string> texts) {
  std::vector<SweepAxis> axes;
  for (const std::string& text : texts) {
    SEER_ASSIGN_OR_RETURN(SweepAxis axis, parse_axis(text));
    if (std::ranges::find(axes, axis.key, &SweepAxis::key) != axes.end())
      return fail(Code::kInvalidArgument, "--sweep names ", axis.key, " twice: expected all its values in one list");
    axes.push_back(std::move(axis));
  }
  return axes;
}

std::vector<SweepPoint> sweep_points(std::span<const SweepAxis> axes) {
  std::vector<SweepPoint> points{{}};
  for (const SweepAxis& axis : axes) {
    std::vector<SweepPoint> longer;
    for (const SweepPoint& point : points)
      for (const std::string& value : axis.values) {
        longer.push_back(point);
        longer.back().push_back(value);
      }
    points = std::move(longer);
  }
  return points;
}

std::string point_name(const SweepPoint& point) {
  std::string name;
  for (const std::string& value : point) name += (name.empty() ? "" : " ") + value;
  return name;
}

Status apply_point(std::span<const SweepAxis> axes, const SweepPoint& point, Workload& workload, SimulateOptions& options) {
  for (size_t i = 0; i < axes.size(); ++i) {
    const SweepKey& key = *find_key(axes[i].key);
    SEER_ASSIGN_OR_RETURN(const int64_t value, key.read(point[i]));
    SEER_RETURN_IF_ERROR(key.apply(value, workload, options));
  }
  return {};
}

double run_estimate_s(const Workload& workload, const SimulateOptions& options, const std::string& policy) {
  const int64_t block_tokens = options.block_tokens > 0 ? options.block_tokens : kUsualBlockTokens;
  const double blocks = static_cast<double>(requests_of(workload)) * (workload.lengths.avg_gen / static_cast<double>(block_tokens) + 1);
  return blocks * kBlockS * (sim_policy(policy).drafts ? kDraftingFactor : 1);
}

int64_t seeds_of(const Workload& workload, const SimulateOptions& options) {
  return workload.trace.empty() || options.faults ? options.seeds : 1;
}

Status check_runs(std::span<const SweepAxis> axes, const Workload& workload, const SimulateOptions& options) {
  constexpr int64_t kPointsMax = 1'000'000'000;  // more are counted as these
  int64_t points = 1;
  for (const SweepAxis& axis : axes) points = std::min(points * std::ssize(axis.values), kPointsMax);
  const auto each = static_cast<int64_t>(options.policies.size()) * seeds_of(workload, options);
  const int64_t runs = points * each;
  if (runs <= options.sweep_runs_max) return {};
  double all_s = 0;
  for (const std::string& policy : options.policies)
    all_s += run_estimate_s(workload, options, policy) * static_cast<double>(seeds_of(workload, options) * points);
  return fail(Code::kInvalidArgument, "--sweep has ", points, " points x ", options.policies.size(), " policies x ",
              seeds_of(workload, options), " seeds = ", runs, " runs, which would take about ", duration_text(all_s), ": expected at most ",
              options.sweep_runs_max, ", or a larger --sweep-runs-max");
}

std::string sweep_html(std::span<const SimFigures> figures, std::span<const SweepAxis> axes, const std::string& workload,
                       const std::string& made_by) {
  const SimRows all = sim_rows(figures);
  std::string html = html_head(cat("Seer: sweep of ", workload), "default-src 'none'; style-src 'unsafe-inline'");
  html += "<main>\n<header><h1>" + escaped(cat("Sweep of ", workload)) + "</h1>\n<p class=made>" + escaped(made_by) + "</p></header>\n";
  const SimFigures* const fastest = least_of(figures, &SimFigures::total_s);
  const SimFigures* const cheapest = least_of(figures, &SimFigures::gpu_hours);
  if (fastest != nullptr)
    html += "<p class=finding>Fastest rollout that is strictly synchronous: <b>" + escaped(settings_text(axes, fastest->workload)) +
            "</b>, " + escaped(fastest->policy) + ", " + figure_text(fastest->total_s.mean) + " s.</p>\n";
  if (cheapest != nullptr)
    html += "<p class=finding>Fewest GPU hours: <b>" + escaped(settings_text(axes, cheapest->workload)) + "</b>, " +
            escaped(cheapest->policy) + ", " + figure_text(cheapest->gpu_hours.mean) + ".</p>\n";
  html += "<div class=wide><table class=summary><thead><tr>";
  for (const SweepAxis& axis : axes) html += "<th>" + escaped(axis.key) + "</th>";
  html += "<th>policy</th><th>total</th>";
  std::vector<size_t> shown;
  for (size_t column = 0; column < all.titles.size(); ++column)
    if (std::ranges::any_of(all.rows, [&](const SimRow& row) { return !row.is_bound && row.cells[column] != "-"; })) shown.push_back(column);
  for (const size_t column : shown) html += "<th>" + escaped(all.titles[column]) + "</th>";
  html += "</tr></thead><tbody>\n";
  double longest_s = 0;
  for (const SimFigures& f : figures) longest_s = std::max(longest_s, f.total_s.mean);
  size_t next = 0;  // rows are in the order of the figures, with bounds among them
  for (const SimRow& row : all.rows) {
    if (row.is_bound) continue;
    const SimFigures& f = figures[next++];
    html += "<tr>";
    std::istringstream words(row.workload);
    for (std::string word; words >> word;) html += "<td>" + escaped(word) + "</td>";
    html += "<th scope=row>" + escaped(row.policy) + (row.is_synchronous ? "" : " *") + "</th>";
    const int64_t percent = longest_s > 0 ? std::llround(100 * f.total_s.mean / longest_s) : 0;
    html += cat("<td><div style=\"width:100px\"><div style=\"width:", percent, "px;height:8px;background:currentColor\"></div></div></td>");
    for (const size_t column : shown) html += "<td>" + escaped(row.cells[column]) + "</td>";
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n</main>\n</body>\n</html>\n";
}

}  // namespace seer
