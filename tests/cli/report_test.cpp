#include "cli/report.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

using namespace seer;
using Json = nlohmann::json;

namespace {

RolloutReport some_report(const char* policy, double tokens_per_s, double tail_s) {
  RolloutReport r;
  r.policy = policy;
  r.requests = r.finished = 1600;
  r.output_tokens = 1234567;
  r.wall_s = 61.5;
  r.tokens_per_s = tokens_per_s;
  r.tail_s = tail_s;
  r.kv_peak_bytes = 3 << 19;
  r.length_icc = 0.75;
  r.instances = {{40, 10, 1000000, 500}, {50, 0, 234567, 600}};
  return r;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("report: the JSON holds every field, what is not known as null") {
  const Json r = Json::parse(report_json(some_report("seer", 20000, 5)));
  for (const char* name :
       {"policy",          "requests",       "finished",         "output_tokens",    "wall_s",        "tokens_per_s",  "tail_s",
        "preemptions",     "migrations",     "reprefill_tokens", "kv_peak_bytes", "spilled_bytes", "length_icc",
        "estimate_error",  "yields",         "chunks",           "prompt_tokens", "cpu_engine_s",  "cpu_total_s",
        "actor_cpu_share", "weight_version", "cold_failures",    "instances_lost", "instances",
        "fetch_failures",  "failed_requests"})
    CHECK_MESSAGE(r.contains(name), name);
  CHECK(r["policy"] == "seer");
  CHECK(r["length_icc"] == 0.75);
  CHECK(r["estimate_error"].is_null());
  CHECK(r["instances"].size() == 2);
  CHECK(r["instances"][1] == Json{{"busy_s", 50.0}, {"idle_s", 0.0}, {"tokens", 234567}, {"steps", 600}});
}

TEST_CASE("report: drafts by class and shape and over time, their times beside what was predicted") {
  RolloutReport report = some_report("seer", 20000, 5);
  CHECK(Json::parse(report_json(report))["drafting"]["high"]["acceptance_length"].is_null());
  DraftFigures& d = report.drafting;
  d.probe_paths = {10, 20, 5};
  d.other_paths = {10, 30, 15};
  d.other_trees = {20, 240, 40};
  d.draft_us = 1'230'000;  // of 2 x 61.5 s
  d.drafting_steps = {100, 2000, 3'000'000, 2'500'000};
  d.history = {.slice_us = 500'000, .slices = {{20, 50, 20}, {20, 240, 40}}};
  const Json r = Json::parse(report_json(report));
  CHECK(r["verifies"] == 40);
  CHECK(r["acceptance_length"] == 2.5);
  const Json& drafting = r["drafting"];
  CHECK(drafting["high"]["acceptance_length"] == 1.5);
  CHECK(drafting["low"]["drafted_per_verify"] == 9.0);
  CHECK(drafting["path"]["verifies"] == 20);
  CHECK(drafting["tree"]["acceptance_length"] == 3.0);
  CHECK(drafting["draft_share"] == doctest::Approx(0.01));
  CHECK(drafting["drafting_steps"]["ratio"] == doctest::Approx(1.2));
  CHECK(drafting["plain_steps"]["ratio"].is_null());
  REQUIRE(drafting["over_time"].size() == 2);
  CHECK(drafting["over_time"][1]["start_s"] == 0.5);
  CHECK(drafting["over_time"][1]["acceptance_length"] == 3.0);
  const std::string table = report_table(report);
  CHECK(contains(table, "  T_SD, of predicted             120.0 %\n"));
  CHECK(contains(table, "  time making drafts               1.0 %\n"));
}

TEST_CASE("report: a policy that was chosen is named, with why") {
  RolloutReport named = some_report("seer", 20000, 5), chosen = named;
  chosen.policy_choice = "a batch of 53 costs 1.22 of one of 26 per token; seer+ below 0.95";
  CHECK(Json::parse(report_json(named))["policy_choice"].is_null());
  const Json r = Json::parse(report_json(chosen));
  CHECK(r["policy"] == "seer");
  CHECK(r["policy_choice"] == chosen.policy_choice);
  CHECK(contains(report_table(chosen), "  chosen: a batch of 53 costs 1.22 of one of 26 per token; seer+ below 0.95\n"));
  CHECK(!contains(report_table(named), "chosen"));
  CHECK(contains(compare_table(std::vector<RolloutReport>{chosen, some_report("verl", 1, 2)}), " seer (auto) "));
}

TEST_CASE("report: a comparison is a list, in the order of the runs") {
  const std::vector<RolloutReport> reports{some_report("verl", 1, 2), some_report("seer", 3, 4)};
  const Json list = Json::parse(report_json(reports));
  REQUIRE(list.size() == 2);
  CHECK(list[0]["policy"] == "verl");
  CHECK(list[1]["tokens_per_s"] == 3.0);
}

TEST_CASE("report: the table groups digits, scales bytes and shows each instance") {
  const std::string table = report_table(some_report("seer", 20074, 5));
  CHECK(contains(table, "1 234 567\n"));
  CHECK(contains(table, "1.5 MiB\n"));
  CHECK(contains(table, "90.0 %\n"));  // busy: 90 of 100 s
  CHECK(contains(table, "  length estimate error                -\n"));
  CHECK(contains(table, "  1                                50.00          0.00       234 567           600\n"));
}

TEST_CASE("report: ratios are against the first policy, and no tail at all has none") {
  const std::string table = compare_table(
      std::vector{some_report("verl", 1000, 8), some_report("divided", 1250, 4), some_report("seer", 1500, 2)});
  CHECK(contains(table, "  policy                            verl       divided          seer\n"));
  CHECK(contains(table, "  tokens/s, ratio                  1.00x         1.25x         1.50x\n"));
  CHECK(contains(table, "  tail, ratio                      1.00x         0.50x         0.25x\n"));
  CHECK(contains(compare_table(std::vector{some_report("verl", 1, 0), some_report("seer", 1, 2)}),
                 "  tail, ratio                          -             -\n"));
}
