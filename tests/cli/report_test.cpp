#include "cli/report.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

using namespace seer;
using Json = nlohmann::json;

namespace {

/// tokens_per_s: about.
RolloutReport some_report(const char* policy, double tokens_per_s, double tail_s) {
  RolloutReport r;
  r.policy = policy;
  RolloutSummary& s = r.rollout;
  s.requests = s.finished = 1600;
  s.wall_us = 61'500'000;
  s.output_tokens = std::llround(tokens_per_s * s.wall_s());
  s.tail_s = tail_s;
  s.length_icc = 0.75;
  s.estimate_error = kUnknown;
  s.instances = {{.busy_us = 49'200'000, .steps = 500, .output_tokens = 1000000, .kv_blocks_peak = 24, .kv_block_bytes = 1 << 16},
                 {.busy_us = 61'500'000, .steps = 600, .output_tokens = 234567}};
  return r;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("report: the JSON holds every field, what is not known as null") {
  const Json r = Json::parse(report_json(some_report("seer", 20000, 5)));
  for (const char* name :
       {"policy",          "requests",       "finished",         "output_tokens",    "wall_s",        "tokens_per_s",  "tail_s",
        "preemptions",     "migrations",     "reprefill_tokens", "reprefilled_chunks", "kv_peak_bytes", "spilled_bytes", "length_icc",
        "estimate_error",  "yields",         "chunks",           "prompt_tokens", "cpu_engine_s",  "cpu_total_s",
        "actor_cpu_share", "weight_version", "cold_failures",    "instances_lost", "instances",
        "fetch_failures",  "failed_requests", "fetched_bytes", "moved_bytes", "parts_lost"})
    CHECK_MESSAGE(r.contains(name), name);
  CHECK(r["policy"] == "seer");
  CHECK(r["length_icc"] == 0.75);
  CHECK(r["estimate_error"].is_null());
  CHECK(r["instances"].size() == 2);
  CHECK(r["instances"][1] == Json{{"busy_s", 61.5}, {"idle_s", 0.0}, {"tokens", 234567}, {"steps", 600}});
}

TEST_CASE("report: of a cluster only the engines' CPU time is known") {
  RolloutReport report = some_report("seer", 20000, 5);
  report.rollout.instances[0].engine_cpu_us = 9'000'000;
  report.cpu_total_s = report.actor_cpu_share = kUnknown;
  const Json json = Json::parse(report_json(report));
  CHECK(json["cpu_engine_s"] == 9.0);
  CHECK((json["cpu_total_s"].is_null() && json["actor_cpu_share"].is_null()));
  const std::string table = report_table(report);
  CHECK(contains(table, "CPU of engines, s"));
  CHECK_FALSE(contains(table, "CPU in all, s"));
  CHECK_FALSE(contains(table, "CPU of actors"));
}

TEST_CASE("report: of servers that report no steps it is not known how long they computed") {
  RolloutReport report = some_report("seer", 20000, 5);
  report.rollout.instances[0] = {.output_tokens = 1000000};
  CHECK(Json::parse(report_json(report))["instances"][0] == Json{{"busy_s", nullptr}, {"idle_s", nullptr}, {"tokens", 1000000}, {"steps", 0}});
  CHECK(contains(report_table(report), "  0                                   -            -    1 000 000            0\n"));
  CHECK(report.idle_share() == 0.0);  // of the other one
  report.rollout.instances[1] = {.output_tokens = 234567};
  CHECK(std::isnan(report.idle_share()));
}

TEST_CASE("report: drafts by class and shape and over time, their times beside what was predicted") {
  RolloutReport report = some_report("seer", 20000, 5);
  CHECK(Json::parse(report_json(report))["drafting"]["high"]["acceptance_length"].is_null());
  DraftFigures& d = report.rollout.instances[0].drafting;
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
  CHECK(contains(table, "  T_SD, of predicted             120.0 %  "));
  CHECK(contains(table, "  time making drafts               1.0 %  "));
}

TEST_CASE("report: a chosen policy is named, with the reason") {
  RolloutReport named = some_report("seer", 20000, 5), chosen = named;
  chosen.is_auto = true;
  chosen.reserve = 0.5;
  chosen.policy_choice = "a batch of 53 costs 1.22 of one of 26 per token; seer+ below 0.95";
  CHECK(Json::parse(report_json(named))["policy_choice"].is_null());
  const Json r = Json::parse(report_json(chosen));
  CHECK(r["policy"] == "seer");
  CHECK(r["policy_choice"] == chosen.policy_choice);
  CHECK(r["reserve"] == 0.5);
  CHECK(contains(report_table(chosen), "  chosen: a batch of 53 costs 1.22 of one of 26 per token; seer+ below 0.95\n"));
  CHECK(!contains(report_table(named), "chosen"));
  CHECK(contains(compare_table(std::vector<RolloutReport>{chosen, some_report("verl", 1, 2)}), " seer (auto) "));
}

TEST_CASE("report: a comparison is a list, in the order of the runs") {
  const std::vector<RolloutReport> reports{some_report("verl", 1, 2), some_report("seer", 3, 4)};
  const Json list = Json::parse(report_json(reports));
  REQUIRE(list.size() == 2);
  CHECK(list[0]["policy"] == "verl");
  CHECK(list[1]["tokens_per_s"] == doctest::Approx(3).epsilon(0.01));
}

TEST_CASE("report: the table groups digits, scales bytes and shows each instance") {
  const std::string table = report_table(some_report("seer", 20074, 5));
  CHECK(contains(table, "1 234 551\n"));  // 20074 x 61.5
  CHECK(contains(table, "  peak                           1.5 MiB  most in use"));
  CHECK(contains(table, "  idle                            10.0 %  "));  // 12.3 of 123 s
  CHECK(contains(table, "  1                               61.50         0.00      234 567          600\n"));
}

TEST_CASE("report: the table has sections, and no empty row or section") {
  RolloutReport report = some_report("seer", 20074, 0);
  const std::string bare = report_table(report);
  CHECK(contains(bare, "\nresult\n  requests                         1 600\n"));
  CHECK(contains(bare, "  tail, s                           0.00  "));  // no tail is a result
  for (const char* absent : {"migrations", "preemptions", "drafting", "drafted tokens", "cold tier", "written to disk",
                             "cost", "instances lost", "estimate off"})
    CHECK_MESSAGE(!contains(bare, absent), absent);
  report.rollout.migrations = 12;
  report.pool = {{.cold_failures = 1}, {.cold_failures = 2}};
  report.rollout.instances[1].drafting.probe_paths = {10, 20, 5};
  const std::string table = report_table(report);
  CHECK(contains(table, "\nscheduling\n  migrations                          12  chunks on another instance"));
  CHECK(contains(table, "  cold tier failures                   3  "));
  CHECK(contains(table, "\ndrafting\n  drafted tokens                      20\n"));
}

TEST_CASE("report: a rollout that was stopped says how many requests of all were done") {
  RolloutReport report = some_report("seer", 20074, 5);
  report.rollout.requests = 320;
  report.rollout.finished = 7;
  CHECK(contains(report_table(report), "  requests                      7 of 320\n"));
  CHECK(Json::parse(report_json(report))["finished"] == 7);
}

TEST_CASE("report: tables fit 80 columns, with everything in them and names of policies of any length") {
  RolloutReport full = some_report("streamrl-oracle", 1, 86399.99);
  RolloutSummary& s = full.rollout;
  s.wall_us = 86'399'990'000;
  s.prompt_tokens = s.output_tokens = 123'456'789'012;
  s.chunks = s.migrations = s.yields = s.preemptions = s.reprefill_tokens = s.reprefilled_chunks = 123'456'789;
  s.instances_lost = full.past_groups = full.unkept_groups = 123'456;
  s.parts_lost.resize(1000);
  s.estimate_error = s.length_icc = 0.5;
  InstanceReport& first = s.instances[0];
  first.kv_blocks_peak = 1 << 20;
  first.kv_block_bytes = 1 << 30;
  first.engine_cpu_us = 123'456'780'000;
  first.drafting = {.probe_paths = {1, 123'456'789'012, 0},
                    .probe_trees = {1, 2, 1},
                    .draft_us = 1'000'000,
                    .drafting_steps = {100, 2000, 3'000'000, 2'500'000}};
  full.pool = {{.spilled_bytes = int64_t{1} << 50, .fetched_bytes = int64_t{1} << 50, .moved_bytes = int64_t{1} << 50, .fetch_failures = 123'456, .cold_failures = 123'456}};
  full.cpu_total_s = 123'456.78;
  full.actor_cpu_share = 0.03;
  full.version = WeightVersion{12};
  const auto widest = [](const std::string& text) {
    size_t width = 0;
    for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
      width = std::max(width, end - begin);
    return width;
  };
  CHECK(widest(report_table(full)) <= 80);
  CHECK(widest(compare_table(std::vector(7, full))) <= 80);
  // Every row is there.
  for (const char* row : {"chunks", "yields", "prefilled again", "instances lost", "length ICC", "fetches failed",
                          "acceptance length", "T_SD", "groups not kept", "CPU of actors", "weight version"})
    CHECK_MESSAGE(contains(report_table(full), std::string("\n  ") + row), row);
}

TEST_CASE("report: headings are bold where there is colour, and nothing else changes") {
  const RolloutReport report = some_report("seer", 20074, 5);
  const std::string coloured = report_table(report, true);
  CHECK(contains(coloured, "\x1b[1mresult\x1b[0m\n"));
  std::string stripped = coloured;
  for (const char* code : {"\x1b[1m", "\x1b[0m"})
    for (size_t at; (at = stripped.find(code)) != std::string::npos;) stripped.erase(at, std::string(code).size());
  CHECK(stripped == report_table(report));
}

TEST_CASE("report: ratios are against the first policy, and no tail at all has none") {
  const std::string table = compare_table(
      std::vector{some_report("verl", 1000, 8), some_report("divided", 1250, 4), some_report("seer", 1500, 2)});
  CHECK(contains(table, "  policy                        verl   divided      seer\n"));
  CHECK(contains(table, "  tokens/s vs verl             1.00x     1.25x     1.50x\n"));
  CHECK(contains(table, "  tail vs verl                 1.00x     0.50x     0.25x\n"));
  CHECK(contains(table, "  tail, s                   after 90 % of the requests were done\n"));  // what it means, once
  CHECK(contains(compare_table(std::vector{some_report("verl", 1, 0), some_report("seer", 1, 2)}),
                 "  tail vs verl                     -         -\n"));
}

TEST_CASE("report: policies that do not fit side by side follow below, against the same first one") {
  std::vector<RolloutReport> reports;
  for (const char* policy : {"verl", "divided", "las", "seer", "seer+", "oracle"}) reports.push_back(some_report(policy, 1000, 8));
  reports.back().rollout.output_tokens *= 3;
  const std::string table = compare_table(reports);
  CHECK(contains(table, "verl   divided       las      seer     seer+\n"));
  CHECK(contains(table, "\n  policy                      oracle\n  tokens/s vs verl             3.00x\n"));
}
