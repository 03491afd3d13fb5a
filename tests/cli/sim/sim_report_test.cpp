#include "cli/sim/sim_report.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

using namespace seer;
using Json = nlohmann::json;

namespace {

SimRun some_run(const char* workload, const char* policy, uint64_t seed, double total_s, double tail_s) {
  SimRun run{.workload = workload, .policy = policy, .seed = seed, .total_s = total_s, .tail_s = tail_s};
  run.requests = 800;
  run.output_tokens = 1'000'000;
  run.tokens_per_s = 1e6 / total_s;
  run.bound_total_s = 80;
  run.idle_share = 0.25;
  run.events_hash = 0x8000000000000001 + seed;
  return run;
}

// verl 200 and 400 s, seer 100 and 160 s: speedups 2 and 2.5.
std::vector<SimRun> some_runs() {
  std::vector<SimRun> runs{some_run("moonlight", "verl", 1, 200, 90), some_run("moonlight", "seer", 1, 100, 10),
                           some_run("moonlight", "verl", 2, 400, 110), some_run("moonlight", "seer", 2, 160, 20)};
  runs[0].preemptions = 13000;
  runs[2].preemptions = 14372;
  runs[1].estimate_error = 0.125;
  return runs;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("sim report: the interval is Student's, from n = 1 to many") {
  const std::vector<double> two{1, 3}, five{2, 4, 4, 4, 6};
  CHECK(mean_interval(two).mean == 2);
  CHECK(mean_interval(two).ci95 == doctest::Approx(12.7062));  // deviation sqrt(2), over sqrt(2)
  CHECK(mean_interval(five).mean == 4);
  CHECK(mean_interval(five).ci95 == doctest::Approx(1.75595));  // 2.7764 x sqrt(2) / sqrt(5)
  std::vector<double> many(20);
  std::iota(many.begin(), many.end(), 1);
  CHECK(mean_interval(many).mean == 10.5);
  CHECK(mean_interval(many).ci95 == doctest::Approx(2.76878));  // 2.0930 x sqrt(35) / sqrt(20)
  many.resize(41);
  std::iota(many.begin(), many.end(), -20);
  CHECK(mean_interval(many).ci95 == doctest::Approx(3.78123).epsilon(1e-4));  // 2.02108 x sqrt(143.5) / sqrt(41)
  CHECK(mean_interval(std::vector{7.0, 7.0, 7.0}).ci95 == 0);
  CHECK(mean_interval(std::vector{5.0}).mean == 5);
  CHECK(std::isnan(mean_interval(std::vector{5.0}).ci95));
  CHECK(std::isnan(mean_interval({}).mean));
}

TEST_CASE("sim report: unknown values are left out of the mean") {
  CHECK(mean_interval(std::vector{1.0, kUnknown, 3.0}).mean == 2);
  CHECK(mean_interval(std::vector{1.0, kUnknown, 3.0}).ci95 == doctest::Approx(12.7062));
  CHECK(std::isnan(mean_interval(std::vector{kUnknown, kUnknown}).mean));
}

TEST_CASE("sim report: speedups are ratios within a seed, then the mean") {
  const std::vector<SimFigures> figures = sim_figures(some_runs());
  REQUIRE(figures.size() == 2);
  CHECK(figures[0].policy == "verl");
  CHECK(figures[0].speedup_vs_verl.mean == 1);
  CHECK(figures[0].speedup_vs_verl.ci95 == 0);
  CHECK(figures[1].speedup_vs_verl.mean == doctest::Approx(2.25));  // not 300 / 130
  CHECK(figures[1].speedup_vs_verl.ci95 == doctest::Approx(12.7062 * 0.25));
  CHECK(figures[1].seeds == std::vector<uint64_t>{1, 2});
  CHECK(figures[1].bound_share.mean == doctest::Approx((0.8 + 0.5) / 2));
  CHECK(figures[1].bound_speedup_vs_verl.mean == doctest::Approx((200. / 80 + 400. / 80) / 2));
  CHECK(figures[1].estimate_error.mean == 0.125);
  CHECK(std::isnan(figures[1].estimate_error.ci95));
  CHECK(std::isnan(figures[0].estimate_error.mean));
}

TEST_CASE("sim report: without verl under the same workload and seed there is no speedup") {
  const std::vector<SimRun> runs{some_run("a", "seer", 1, 100, 1), some_run("a", "verl", 2, 100, 1),
                                 some_run("b", "verl", 1, 100, 1)};
  CHECK(std::isnan(sim_figures(runs)[0].speedup_vs_verl.mean));
}

TEST_CASE("sim report: a run that is not synchronous has no share of the bound") {
  SimRun partial = some_run("a", "partial", 1, 50, 1);
  partial.is_synchronous = false;
  const std::vector<SimFigures> figures = sim_figures(std::vector{partial});
  CHECK(std::isnan(figures[0].bound_share.mean));
  CHECK(!figures[0].is_synchronous);
  CHECK(!contains(sim_table(figures), "(lower bound)"));
}

TEST_CASE("sim report: workloads and their policies stand together, in the order of appearance") {
  const std::vector<SimRun> runs{some_run("b", "verl", 1, 9, 1), some_run("a", "verl", 1, 9, 1),
                                 some_run("b", "seer", 1, 9, 1), some_run("a", "context", 1, 9, 1),
                                 some_run("b", "verl", 2, 9, 1)};
  std::string order;
  for (const SimFigures& f : sim_figures(runs)) order += f.workload + ":" + f.policy + " ";
  CHECK(order == "b:verl b:seer a:verl a:context ");
}

TEST_CASE("sim report: the JSON holds every figure with its interval, what is not known as null") {
  const Json list = Json::parse(sim_report_json(sim_figures(some_runs())));
  REQUIRE(list.size() == 2);
  CHECK(list[0]["workload"] == "moonlight");
  CHECK(list[1]["policy"] == "seer");
  CHECK(list[1]["seeds"] == Json{1, 2});
  CHECK(list[1]["events_hashes"] == Json{"8000000000000002", "8000000000000003"});
  CHECK(list[1]["is_synchronous"] == true);
  for (const char* name : {"total_s", "tail_s", "tokens_per_s", "speedup_vs_verl", "preemptions", "idle_share",
                           "bound_share", "late_start_share", "migrations", "yields", "reprefill_tokens", "estimate_error", "requests",
                           "output_tokens", "bound_total_s", "bound_tokens_per_s", "bound_speedup_vs_verl"}) {
    REQUIRE_MESSAGE(list[1].contains(name), name);
    CHECK(list[1][name].contains("mean"));
    CHECK(list[1][name].contains("ci95"));
  }
  CHECK(list[1]["total_s"]["mean"] == 130.0);
  CHECK(list[1]["estimate_error"] == Json{{"mean", 0.125}, {"ci95", nullptr}});
  CHECK(list[0]["estimate_error"]["mean"].is_null());
  CHECK(sim_report_json({}) == "[]\n");
}

TEST_CASE("sim report: names with quotes or broken UTF-8 keep the JSON whole") {
  const std::vector<SimRun> runs{some_run("a\"b\n", "\xff", 1, 9, 1)};
  const Json list = Json::parse(sim_report_json(sim_figures(runs)));
  CHECK(list[0]["workload"] == "a\"b\n");
}

TEST_CASE("sim report: the CSV has a line per workload and policy, with as many cells as the header") {
  std::vector<SimRun> runs = some_runs();
  const std::string csv = sim_csv(sim_figures(runs));
  CHECK(csv.starts_with("workload,policy,is_synchronous,seeds,total_s_mean,total_s_ci95,tail_s_mean,"));
  CHECK(contains(csv, "\nmoonlight,seer,true,2,130,381.186,15,"));
  const std::string header = csv.substr(0, csv.find('\n')), last = csv.substr(csv.rfind('\n', csv.size() - 2) + 1);
  CHECK(std::ranges::count(header, ',') == std::ranges::count(last, ','));
  CHECK(std::ranges::count(csv, '\n') == 3);
  runs[0].workload = "a,\"b\"";
  CHECK(contains(sim_csv(sim_figures(runs)), "\n\"a,\"\"b\"\"\",verl,true,1,200,,90,,"));
}

TEST_CASE("sim report: the table is aligned, with the bound as a row of its own and partial marked") {
  std::vector<SimRun> runs = some_runs();
  runs.push_back(some_run("moonlight", "partial", 1, 125, 5));
  runs.back().is_synchronous = false;
  CHECK('\n' + sim_table(sim_figures(runs)) == R"(
moonlight
  policy           total, s       vs verl   tail, s       tokens/s   of the bound         idle
  verl           300 ±1 271   1.00x ±0.00  100 ±127  3 750 ±15 883  30.0 % ±127.1  25.0 % ±0.0
  seer             130 ±381   2.25x ±3.18  15 ±63.5  8 125 ±23 824  65.0 % ±190.6  25.0 % ±0.0
  partial *             125         1.60x         5          8 000              -       25.0 %
  (lower bound)       80 ±0  3.75x ±15.88         -      12 500 ±0              -            -
  policy           preemptions  estimate off  seeds
  verl           13 686 ±8 716             -      2
  seer                    0 ±0        12.5 %      2
  partial *                  0             -      1
  (lower bound)              -             -
±: half of the 95 % confidence interval over seeds
*: not strictly synchronous: it ends before every request is finished
)");
}

TEST_CASE("sim report: the table fits 100 columns, each workload under its name, nothing lost") {
  std::vector<SimRun> runs;
  for (const char* workload : {"a", "b"})
    for (const char* policy : {"verl", "streamrl-oracle+sd"})
      for (uint64_t seed = 1; seed <= 2; ++seed) {
        runs.push_back(some_run(workload, policy, seed, 10000.0 * static_cast<double>(seed), 4000));
        SimRun& run = runs.back();
        run.preemptions = run.migrations = run.reprefill_tokens = 1'000'000'000 * static_cast<int64_t>(seed);
        run.estimate_error = run.acceptance_length = static_cast<double>(seed);
      }
  const std::string table = sim_table(sim_figures(runs));
  size_t widest = 0;
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);)
    widest = std::max(widest, static_cast<size_t>(std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; })));
  CHECK(widest <= 100);
  CHECK(table.starts_with("a\n  policy "));
  CHECK(table.find("total, s") < table.find("vs verl"));
  CHECK(table.find("vs verl") < table.find("tail, s"));
  CHECK(contains(table, "\nb\n"));
  for (const char* title : {"tail, s", "tokens/s", "of the bound", "idle", "preemptions", "migrations", "prefilled again",
                            "estimate off", "acceptance length", "seeds"})
    CHECK_MESSAGE(contains(table, title), title);
}

TEST_CASE("sim report: figures have three or four digits") {
  CHECK(figure_text(12202.4) == "12 202");
  CHECK(figure_text(999.6) == "1 000");
  CHECK(figure_text(278.44) == "278");
  CHECK(figure_text(61.53) == "61.5");
  CHECK(figure_text(1.904) == "1.90");
  CHECK(figure_text(0) == "0");
  CHECK(figure_text(kUnknown) == "-");
}
