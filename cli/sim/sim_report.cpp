#include "cli/sim/sim_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

namespace seer {
namespace {

using Json = nlohmann::ordered_json;  // a number that is not finite becomes null

// Texts of a column.
std::string interval_text(const Interval& i);
std::string factor_text(const Interval& i);
std::string accepted_text(const Interval& i);
std::string percent_text(const Interval& i);

/// A column of the table and the page.
struct Column {
  int index = -1;  // from the left
  const char* title = "";
  std::string (*text)(const Interval& interval) = nullptr;
  Interval SimFigures::*of_bound = nullptr;       // the figure of the lower bound's row, if any
  Interval SimFigures::*of_work_bound = nullptr;  // likewise of the bound by work alone
};

/// A figure: its name in JSON and CSV, its field, its value in a run, and its column, if any. `baseline` is the run of
/// kSimBaseline with the same workload and seed, or nullptr.
struct Figure {
  const char* name;
  Interval SimFigures::*kept;
  double (*value)(const SimRun& run, const SimRun* baseline);
  Column column = {};
};

double ratio(double value, double to) { return to > 0 ? value / to : kUnknown; }
double real(int64_t count) { return static_cast<double>(count); }
/// Seconds of a bound on the time of the run; unknown if the run is not synchronous, because it does less.
double bound_s(const SimRun& run, double SimRun::*total_s) { return run.is_synchronous ? run.*total_s : kUnknown; }
double bound_share(const SimRun& run, double SimRun::*total_s) { return ratio(bound_s(run, total_s), run.total_s); }
double bound_tokens_per_s(const SimRun& run, double SimRun::*total_s) {
  return ratio(real(run.output_tokens), bound_s(run, total_s));
}
double bound_speedup(const SimRun& run, double SimRun::*total_s, const SimRun* verl) {
  return verl ? ratio(bound_tokens_per_s(run, total_s), verl->tokens_per_s) : kUnknown;
}

using F = SimFigures;
using R = SimRun;
constexpr std::array<Figure, 31> kFigures{{
    {"total_s", &F::total_s, [](const R& r, const R*) { return r.total_s; },
     {0, "total, s", interval_text, &F::bound_total_s, &F::work_bound_total_s}},
    {"tail_s", &F::tail_s, [](const R& r, const R*) { return r.tail_s; },
     {2, "tail, s", interval_text}},
    {"tokens_per_s", &F::tokens_per_s, [](const R& r, const R*) { return r.tokens_per_s; },
     {3, "tokens/s", interval_text, &F::bound_tokens_per_s, &F::work_bound_tokens_per_s}},
    {"speedup_vs_verl", &F::speedup_vs_verl,
     [](const R& r, const R* verl) { return verl ? ratio(r.tokens_per_s, verl->tokens_per_s) : kUnknown; },
     {1, "vs verl", factor_text, &F::bound_speedup_vs_verl, &F::work_bound_speedup_vs_verl}},
    {"preemptions", &F::preemptions, [](const R& r, const R*) { return real(r.preemptions); },
     {6, "preemptions", interval_text}},
    {"idle_share", &F::idle_share, [](const R& r, const R*) { return r.idle_share; },
     {5, "idle", percent_text}},
    {"bound_share", &F::bound_share, [](const R& r, const R*) { return bound_share(r, &R::bound_total_s); },
     {4, "of the bound", percent_text}},
    {"gap_idle", &F::gap_idle, [](const R& r, const R*) { return r.gap.idle; }},
    {"gap_waiting", &F::gap_waiting, [](const R& r, const R*) { return r.gap.waiting; }},
    {"gap_early", &F::gap_early, [](const R& r, const R*) { return r.gap.early; }},
    {"gap_prefill", &F::gap_prefill, [](const R& r, const R*) { return r.gap.prefill; }},
    {"gap_batch", &F::gap_batch, [](const R& r, const R*) { return r.gap.batch; }},
    {"gap_mix", &F::gap_mix, [](const R& r, const R*) { return r.gap.mix; }},
    {"late_start_share", &F::late_start_share, [](const R& r, const R*) { return r.late_start_share; }},
    {"migrations", &F::migrations, [](const R& r, const R*) { return real(r.migrations); },
     {7, "migrations", interval_text}},
    {"yields", &F::yields, [](const R& r, const R*) { return real(r.yields); }},
    {"reprefill_tokens", &F::reprefill_tokens, [](const R& r, const R*) { return real(r.reprefill_tokens); },
     {8, "prefilled again", interval_text}},
    {"estimate_error", &F::estimate_error, [](const R& r, const R*) { return r.estimate_error; },
     {9, "estimate off", percent_text}},
    {"acceptance_length", &F::acceptance_length, [](const R& r, const R*) { return r.acceptance_length; },
     {10, "acceptance length", accepted_text}},
    {"drafted_per_verify", &F::drafted_per_verify, [](const R& r, const R*) { return r.drafted_per_verify; }},
    {"iteration_s", &F::iteration_s, [](const R& r, const R*) { return r.iteration_s; },
     {11, "iteration, s", interval_text}},
    {"gpu_hours", &F::gpu_hours, [](const R& r, const R*) { return r.gpu_hours; },
     {12, "GPU hours", interval_text}},
    {"requests", &F::requests, [](const R& r, const R*) { return real(r.requests); }},
    {"output_tokens", &F::output_tokens, [](const R& r, const R*) { return real(r.output_tokens); }},
    {"bound_total_s", &F::bound_total_s, [](const R& r, const R*) { return bound_s(r, &R::bound_total_s); }},
    {"bound_tokens_per_s", &F::bound_tokens_per_s,
     [](const R& r, const R*) { return bound_tokens_per_s(r, &R::bound_total_s); }},
    {"bound_speedup_vs_verl", &F::bound_speedup_vs_verl,
     [](const R& r, const R* verl) { return bound_speedup(r, &R::bound_total_s, verl); }},
    {"work_bound_share", &F::work_bound_share, [](const R& r, const R*) { return bound_share(r, &R::work_bound_total_s); }},
    {"work_bound_total_s", &F::work_bound_total_s, [](const R& r, const R*) { return bound_s(r, &R::work_bound_total_s); }},
    {"work_bound_tokens_per_s", &F::work_bound_tokens_per_s,
     [](const R& r, const R*) { return bound_tokens_per_s(r, &R::work_bound_total_s); }},
    {"work_bound_speedup_vs_verl", &F::work_bound_speedup_vs_verl,
     [](const R& r, const R* verl) { return bound_speedup(r, &R::work_bound_total_s, verl); }},
}};

constexpr int64_t kTableColumns = 100;  // of a terminal

/// The 97.5 % point of Student's t: 95 % lies between it and its negative.
double t_quantile(int64_t degrees) {
  constexpr std::array<double, 30> kTable{12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060,
                                          2.2622,  2.2281, 2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199,
                                          2.1098,  2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639,
                                          2.0595,  2.0555, 2.0518, 2.0484, 2.0452, 2.0423};
  if (degrees <= std::ssize(kTable)) return kTable[static_cast<size_t>(degrees - 1)];
  // Cornish-Fisher expansion around the normal's point z; off by less than 1e-4 from here on.
  const double z = 1.959964, z3 = z * z * z, z5 = z3 * z * z, n = real(degrees);
  return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n);
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + '"';
}
std::string csv_number(double value) { return std::isfinite(value) ? formatted("%.10g", value) : ""; }

std::string interval_text(const Interval& i) {
  return figure_text(i.mean) + (std::isfinite(i.ci95) ? " ±" + figure_text(i.ci95) : "");
}
__attribute__((format(printf, 2, 0))) std::string decimal_text(const Interval& i, const char* format) {
  if (!std::isfinite(i.mean)) return "-";
  return formatted(format, i.mean) + (std::isfinite(i.ci95) ? formatted(" ±%.2f", i.ci95) : "");
}
std::string factor_text(const Interval& i) { return decimal_text(i, "%.2fx"); }
std::string accepted_text(const Interval& i) { return decimal_text(i, "%.2f"); }
std::string percent_text(const Interval& i) {
  if (!std::isfinite(i.mean)) return "-";
  return share_text(i.mean) + (std::isfinite(i.ci95) ? formatted(" ±%.1f", 100 * i.ci95) : "");
}

constexpr int kColumns = 1 + std::ranges::max(kFigures, {}, [](const Figure& figure) { return figure.column.index; }).column.index;

/// The figures with a column, from the left.
std::array<const Figure*, kColumns> columns() {
  std::array<const Figure*, kColumns> found{};
  for (const Figure& figure : kFigures)
    if (figure.column.index >= 0) found[static_cast<size_t>(figure.column.index)] = &figure;
  return found;
}

/// The figures with the least lower bound of `workload`, which holds for all its policies; nullptr: none is known.
const SimFigures* bound_of(std::span<const SimFigures> figures, const std::string& workload) {
  const SimFigures* least = nullptr;
  for (const SimFigures& f : figures)
    if (f.workload == workload && std::isfinite(f.bound_total_s.mean) &&
        (least == nullptr || f.bound_total_s.mean < least->bound_total_s.mean))
      least = &f;
  return least;
}

SimRow policy_row(const SimFigures& f) {
  SimRow row{.workload = f.workload, .policy = f.policy, .is_synchronous = f.is_synchronous};
  for (const Figure* figure : columns()) row.cells.push_back(figure->column.text(f.*figure->kept));
  row.cells.push_back(std::to_string(f.seeds.size()));
  return row;
}

SimRow bound_row(const SimFigures& f, const char* name, Interval SimFigures::*Column::*of_bound) {
  SimRow row{.workload = f.workload, .policy = name, .is_bound = true};
  for (const Figure* figure : columns()) {
    Interval SimFigures::*const kept = figure->column.*of_bound;
    row.cells.push_back(kept != nullptr ? figure->column.text(f.*kept) : "-");
  }
  row.cells.push_back("");
  return row;
}

int64_t shown_width(const std::string& text) {  // in characters: a byte 10xxxxxx goes on with one of UTF-8
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

/// A title and its cells, of the same width when written.
struct TextColumn {
  std::vector<std::string> cells;  // the first is the title
  int64_t width = 0;
};

TextColumn text_column(std::vector<std::string> cells) {
  int64_t width = 0;
  for (const std::string& cell : cells) width = std::max(width, shown_width(cell));
  return {std::move(cells), width};
}

/// True if every cell is "0", "0 ±0", "-" or blank.
bool is_empty(const TextColumn& column) {
  return std::ranges::all_of(column.cells.begin() + 1, column.cells.end(), [](const std::string& cell) {
    return cell.empty() || cell == "-" || cell == "0" || cell == "0 ±0";
  });
}

/// `names` left-aligned, `columns` right-aligned beside them; columns that do not fit in kTableColumns follow below, with the names.
std::string packed(const TextColumn& names, std::span<const TextColumn> columns) {
  std::string text;
  const auto padding = [](int64_t width) { return std::string(static_cast<size_t>(width), ' '); };
  for (size_t begin = 0, end = 0; begin < columns.size(); begin = end) {
    int64_t width = 2 + names.width;
    while (end < columns.size() && (end == begin || width + 2 + columns[end].width <= kTableColumns))
      width += 2 + columns[end++].width;
    for (size_t line = 0; line < names.cells.size(); ++line) {
      text += "  " + names.cells[line] + padding(names.width - shown_width(names.cells[line]));
      for (const TextColumn& column : columns.subspan(begin, end - begin))
        text += "  " + padding(column.width - shown_width(column.cells[line])) + column.cells[line];
      text.erase(text.find_last_not_of(' ') + 1);
      text += '\n';
    }
  }
  return text;
}

std::string marks_text(std::span<const SimFigures> figures) {
  std::string text;
  if (std::ranges::any_of(figures, [](const SimFigures& f) { return f.seeds.size() > 1; }))
    text += "±: half of the 95 % confidence interval over seeds\n";
  if (!std::ranges::all_of(figures, &SimFigures::is_synchronous))
    text += "*: not strictly synchronous: it ends before every request is finished\n";
  return text;
}

/// The rows of one workload.
std::string workload_table(std::span<const SimRow> rows, std::span<const std::string> titles) {
  std::vector<std::string> names{"policy"};
  for (const SimRow& row : rows) names.push_back(row.policy + (row.is_synchronous ? "" : " *"));
  std::vector<TextColumn> columns;
  for (size_t i = 0; i < titles.size(); ++i) {
    std::vector<std::string> cells{titles[i]};
    for (const SimRow& row : rows) cells.push_back(row.cells[i]);
    TextColumn column = text_column(std::move(cells));
    if (!is_empty(column)) columns.push_back(std::move(column));
  }
  return rows.front().workload + '\n' + packed(text_column(std::move(names)), columns);
}

}  // namespace

Interval mean_interval(std::span<const double> values) {
  int64_t count = 0;
  double sum = 0;
  for (const double value : values)
    if (std::isfinite(value)) ++count, sum += value;
  if (count == 0) return {};
  const double mean = sum / real(count);
  if (count == 1) return {.mean = mean};
  double squares = 0;
  for (const double value : values)
    if (std::isfinite(value)) squares += (value - mean) * (value - mean);
  const double deviation = std::sqrt(squares / real(count - 1));
  return {.mean = mean, .ci95 = t_quantile(count - 1) * deviation / std::sqrt(real(count))};
}

std::vector<SimFigures> sim_figures(std::span<const SimRun> runs) {
  const auto baseline_of = [&](const SimRun& run) -> const SimRun* {
    const auto found = std::ranges::find_if(runs, [&](const SimRun& other) {
      return other.policy == kSimBaseline && other.workload == run.workload && other.seed == run.seed;
    });
    return found == runs.end() ? nullptr : &*found;
  };
  std::vector<const SimRun*> ordered;  // by the first appearance of the workload, then of the policy
  const auto first_with = [&](auto same) { return std::ranges::find_if(runs, same) - runs.begin(); };
  const auto rank = [&](const SimRun* run) {
    return std::pair{
        first_with([&](const SimRun& r) { return r.workload == run->workload; }),
        first_with([&](const SimRun& r) { return r.workload == run->workload && r.policy == run->policy; })};
  };
  for (const SimRun& run : runs) ordered.push_back(&run);
  std::ranges::stable_sort(ordered, {}, rank);

  std::vector<SimFigures> all;
  for (auto begin = ordered.begin(); begin != ordered.end();) {
    const SimRun& first = **begin;
    const auto end = std::find_if(begin, ordered.end(), [&](const SimRun* run) {
      return run->workload != first.workload || run->policy != first.policy;
    });
    SimFigures f{.workload = first.workload, .policy = first.policy, .is_synchronous = first.is_synchronous};
    for (auto run = begin; run != end; ++run) {
      f.seeds.push_back((*run)->seed);
      f.events_hashes.push_back((*run)->events_hash);
    }
    for (const Figure& figure : kFigures) {
      std::vector<double> values;
      for (auto run = begin; run != end; ++run) values.push_back(figure.value(**run, baseline_of(**run)));
      f.*figure.kept = mean_interval(values);
    }
    all.push_back(std::move(f));
    begin = end;
  }
  return all;
}

SimRows sim_rows(std::span<const SimFigures> figures) {
  SimRows all;
  for (const Figure* figure : columns()) all.titles.push_back(figure->column.title);
  all.titles.push_back("seeds");
  for (size_t i = 0; i < figures.size(); ++i) {
    all.rows.push_back(policy_row(figures[i]));
    const bool is_last = i + 1 == figures.size() || figures[i + 1].workload != figures[i].workload;
    const SimFigures* bound = bound_of(figures, figures[i].workload);
    if (!is_last || bound == nullptr) continue;
    all.rows.push_back(bound_row(*bound, "(lower bound)", &Column::of_bound));
    if (std::isfinite(bound->work_bound_total_s.mean))
      all.rows.push_back(bound_row(*bound, "(by work alone)", &Column::of_work_bound));
  }
  return all;
}

std::string sim_report_json(std::span<const SimFigures> figures) {
  Json list = Json::array();
  for (const SimFigures& f : figures) {
    Json object{{"workload", f.workload}, {"policy", f.policy}, {"seeds", f.seeds}};
    for (const Figure& figure : kFigures) {
      const Interval& interval = f.*figure.kept;
      object[figure.name] = {{"mean", interval.mean}, {"ci95", interval.ci95}};
    }
    object["is_synchronous"] = f.is_synchronous;
    // As text, because a reader that keeps numbers as doubles would lose digits.
    for (const uint64_t hash : f.events_hashes)
      object["events_hashes"].push_back(formatted("%016llx", static_cast<unsigned long long>(hash)));
    list.push_back(std::move(object));
  }
  return list.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

std::string sim_csv(std::span<const SimFigures> figures) {
  std::string text = "workload,policy,is_synchronous,seeds";
  for (const Figure& figure : kFigures) text += std::string(",") + figure.name + "_mean," + figure.name + "_ci95";
  text += '\n';
  for (const SimFigures& f : figures) {
    text += csv_cell(f.workload) + ',' + csv_cell(f.policy) + ',' + (f.is_synchronous ? "true" : "false") + ',' +
            std::to_string(f.seeds.size());
    for (const Figure& figure : kFigures) {
      const Interval& interval = f.*figure.kept;
      text += ',' + csv_number(interval.mean) + ',' + csv_number(interval.ci95);
    }
    text += '\n';
  }
  return text;
}

std::string sim_table(std::span<const SimFigures> figures) {
  const SimRows all = sim_rows(figures);
  std::string text;
  for (size_t begin = 0, end = 0; begin < all.rows.size(); begin = end) {
    while (end < all.rows.size() && all.rows[end].workload == all.rows[begin].workload) ++end;
    text += workload_table(std::span(all.rows).subspan(begin, end - begin), all.titles);
  }
  return text + marks_text(figures);
}

std::string sim_joint_table(std::span<const SimFigures> figures, std::span<const std::string> titles) {
  const SimRows all = sim_rows(figures);
  std::vector<std::vector<std::string>> words(titles.size() + 1);  // by column; the last one is the policy
  for (size_t i = 0; i < titles.size(); ++i) words[i].push_back(titles[i]);
  words.back().push_back("policy");
  std::vector<const SimRow*> rows;
  for (const SimRow& row : all.rows) {
    if (row.is_bound) continue;
    rows.push_back(&row);
    std::istringstream name(row.workload);
    for (size_t i = 0; i < titles.size(); ++i) name >> words[i].emplace_back();
    words.back().push_back(row.policy + (row.is_synchronous ? "" : " *"));
  }
  std::vector<std::string> names(rows.size() + 1);
  for (std::vector<std::string>& column : words) {
    const TextColumn text = text_column(std::move(column));
    for (size_t line = 0; line < names.size(); ++line)
      names[line] += (names[line].empty() ? "" : "  ") + text.cells[line] +
                     std::string(static_cast<size_t>(text.width - shown_width(text.cells[line])), ' ');
  }
  std::vector<TextColumn> columns;
  for (size_t i = 0; i < all.titles.size(); ++i) {
    std::vector<std::string> cells{all.titles[i]};
    for (const SimRow* row : rows) cells.push_back(row->cells[i]);
    TextColumn column = text_column(std::move(cells));
    if (!is_empty(column)) columns.push_back(std::move(column));
  }
  return packed(text_column(std::move(names)), columns) + marks_text(figures);
}

std::string figure_text(double value) {
  if (!std::isfinite(value)) return "-";
  const double size = std::abs(value);
  if (std::round(size) >= 1000) return count_text(std::llround(value));
  if (value == std::round(value)) return formatted("%.0f", value);
  return formatted(size >= 100 ? "%.0f" : size >= 10 ? "%.1f" : "%.2f", value);
}

}  // namespace seer
