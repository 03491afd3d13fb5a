#include "cli/serve/metrics.h"

#include <doctest/doctest.h>

#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "cli/serve/example_figures.h"

using namespace seer;

namespace {

ServedModel model() {
  ServedModel served;
  served.name = "tiny \"\\\n";
  served.instances_expected = [] { return 2; };
  return served;
}
Response response() {
  Response r;
  r.finish = FinishReason::kStop;
  r.output.ids.resize(100);
  r.run_us = 2'000'000;
  r.first_token_us = 500'000;
  return r;
}

/// Values by name and labels, as written.
std::map<std::string, std::string> values(const std::string& text) {
  std::map<std::string, std::string> found;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with('#')) continue;
    const size_t space = line.rfind(' ');
    CHECK_MESSAGE(found.emplace(line.substr(0, space), line.substr(space + 1)).second, line);
  }
  return found;
}

std::string text_of(const ServeFigures& figures) {
  const Result<std::string> text = metrics_text(figures, example_loads(), model(), 7, false);
  return text.ok() ? *text : text.error().detail;
}

}  // namespace

TEST_CASE("metrics: where prometheus-cpp is missing one sentence says so") {
  if (!has_metrics()) CHECK(text_of({}) == "metrics need prometheus-cpp, but this build was made without it");
  CHECK(metrics_text({}, {}, model(), 0).ok() == has_metrics());
}

TEST_CASE("metrics: figures of the gateway, the instances, the pool and the answers have their names") {
  if (!has_metrics()) return;
  ServeFigures figures;
  figures.take(example_report(), 0);
  figures.count_answer("/generate", 200);
  figures.count_answer("/nothing\"} 1\nforged 1", 404);
  const auto found = values(text_of(figures));
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"seer_http_requests_total{path=\"/generate\",status=\"2xx\"}", "1"},
           {"seer_http_requests_total{path=\"other\",status=\"4xx\"}", "1"},
           {"seer_http_connections", "7"},
           {"seer_gateway_open_responses{state=\"held\"}", "5"},
           {"seer_gateway_open_responses{state=\"queued\"}", "3"},
           {"seer_gateway_open_responses{state=\"running\"}", "6"},
           {"seer_gateway_responses_total{finish=\"stop\"}", "12"},
           {"seer_gateway_responses_total{finish=\"length\"}", "8"},
           {"seer_gateway_responses_total{finish=\"abort\"}", "2"},
           {"seer_gateway_responses_total{finish=\"error\"}", "1"},
           {"seer_gateway_weight_version", "3"},
           {"seer_fleet_instances_up", "2"},
           {"seer_fleet_instances_expected", "2"},
           {"seer_fleet_restarts_total{node=\"0\"}", "1"},
           {"seer_instance_busy_seconds_total{engine=\"1024\"}", "2.5"},
           {"seer_instance_chunks{engine=\"0\"}", "3"},
           {"seer_draft_accepted_tokens_total{engine=\"0\"}", "6"},
           {"seer_kv_used_bytes{tier=\"device\"}", "500"},
           {"seer_kv_capacity_bytes{tier=\"dram\"}", "500"},
           {"seer_pool_spilled_bytes_total{node=\"0\"}", "9"},
       }) {
    CAPTURE(name);
    REQUIRE(found.contains(name));
    CHECK(found.at(name) == value);
  }
  CHECK_FALSE(found.contains("forged"));
}

TEST_CASE("metrics: where there is a journal they say whether it can be written") {
  if (!has_metrics()) return;
  const auto found = [](std::optional<bool> journal_fails) { return values(metrics_text({}, {}, model(), 0, journal_fails).value()); };
  CHECK_FALSE(found({}).contains("seer_journal_failed"));
  CHECK(found(false).at("seer_journal_failed") == "0");
  CHECK(found(true).at("seer_journal_failed") == "1");
}

TEST_CASE("metrics: those of SGLang's names mean what they mean there") {
  if (!has_metrics()) return;
  ServeFigures figures;
  GatewayReport report = example_report();
  figures.take(report, 0);
  report.nodes[0].instances[0].output_tokens += 500;
  report.nodes[0].instances[0].cached_tokens += 30;
  report.nodes[0].instances[0].prefill_tokens += 10;
  figures.take(report, 1'000'000);
  const auto found = values(text_of(figures));
  std::map<std::string, std::string> aliases;
  for (const auto& [name, value] : found)
    if (name.starts_with("sglang:")) {
      CHECK(name.ends_with("{model_name=\"tiny \\\"\\\\\\n\"}"));
      aliases[name.substr(0, name.find('{'))] = value;
    }
  CHECK(aliases == std::map<std::string, std::string>{{"sglang:num_running_reqs", "6"},
                                                      {"sglang:num_queue_reqs", "8"},
                                                      {"sglang:token_usage", "0.25"},
                                                      {"sglang:gen_throughput", "500"},
                                                      {"sglang:cache_hit_rate", "0.75"},
                                                      {"sglang:spec_accept_length", "2.5"}});
}

TEST_CASE("metrics: a histogram's buckets are cumulative and end with infinity") {
  if (!has_metrics()) return;
  ServeFigures figures;
  figures.count_response(response(), 2'000'000);
  figures.count_response(response(), 20'000'000'000);
  const auto found = values(text_of(figures));
  CHECK(found.at("seer_response_latency_seconds_bucket{le=\"1\"}") == "0");
  CHECK(found.at("seer_response_latency_seconds_bucket{le=\"2\"}") == "1");
  CHECK(found.at("seer_response_latency_seconds_bucket{le=\"5000\"}") == "1");
  CHECK(found.at("seer_response_latency_seconds_bucket{le=\"+Inf\"}") == "2");
  CHECK(found.at("seer_response_latency_seconds_count") == "2");
  CHECK(found.at("seer_response_latency_seconds_sum") == "20002");
  CHECK(found.at("seer_response_first_token_seconds_bucket{le=\"1\"}") == "1");
  CHECK(found.at("seer_response_output_tokens_sum") == "200");
}

TEST_CASE("metrics: each has a help and a type, and a name that says what it is of") {
  if (!has_metrics()) return;
  ServeFigures figures;
  figures.take(example_report(), 0);
  figures.count_answer("/generate", 200);
  std::istringstream in(text_of(figures));
  std::map<std::string, std::string> types;
  std::set<std::string> helped;
  const std::regex name_form("seer_(http|gateway|response|fleet|instance|draft|kv|pool|journal)_[a-z_]+|sglang:[a-z_]+");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string hash, kind, name, type;
    words >> hash >> kind >> name >> type;
    if (hash == "#" && kind == "HELP") helped.insert(name);
    if (hash != "#" || kind != "TYPE") continue;
    CAPTURE(name);
    CHECK(types.emplace(name, type).second);
    CHECK(std::regex_match(name, name_form));
    CHECK(name.ends_with("_total") == (type == "counter"));
    CHECK(helped.contains(name));
  }
  CHECK(types.size() > 40);
}
