// seer simulate end to end, through the program: the report's fields, the same seed twice, a trace of lengths with a
// measured profile, and the answers to bad input.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "cli/scratch.h"
#include "integration/child_process.h"

using namespace seer;
using Json = nlohmann::json;

namespace {

constexpr int kPatienceMs = 600'000;  // then it hangs, on any machine

const std::string kSmall = R"([workload]
gpu = "H800"
model = "Moonlight"
instances = 4
gpus-per-instance = 1
tp = 1
dp = 1
ep = 1
groups = 20
group-size = 4
prompt-tokens = 200
max-gen = 8192
avg-gen = 2000
sigma = 0.7
icc = 0.7
temperature = 1.0
)";

struct Said {
  int exit_code;
  std::string out, err;
};
Said simulate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {SEER_PROGRAM, "simulate"});
  ChildProcess seer(std::move(arguments));
  REQUIRE(seer.wait(kPatienceMs));
  return {seer.exit_code(), seer.out(), seer.err()};
}

}  // namespace

TEST_CASE("simulate: a report with every figure, the same twice") {
  const ScratchFolder folder;
  const std::string workload = folder.write("w.toml", kSmall);
  std::vector<std::string> texts;
  for (const char* name : {"a", "b"}) {
    const Said said =
        simulate({"--workload", workload, "--policies", "verl,divided,seer", "--seeds", "2", "--report",
                  folder.path(std::string(name) + ".json"), "--csv", folder.path(std::string(name) + ".csv"), "--html",
                  folder.path(std::string(name) + ".html")});
    CAPTURE(said.err);
    REQUIRE(said.exit_code == 0);
    CHECK(said.out.find("lower bound") != std::string::npos);
    texts.push_back(folder.read(std::string(name) + ".json"));
  }
  CHECK(texts[0] == texts[1]);
  CHECK(folder.read("a.html") == folder.read("b.html"));
  const Json report = Json::parse(texts[0]);
  REQUIRE(report.size() == 3);
  for (const Json& row : report) {
    for (const char* figure :
         {"total_s", "tail_s", "tokens_per_s", "speedup_vs_verl", "preemptions", "idle_share", "bound_share"}) {
      CAPTURE(figure);
      REQUIRE(row.contains(figure));
      CHECK(row[figure].contains("mean"));
      CHECK(row[figure].contains("ci95"));
    }
    CHECK(row["bound_share"]["mean"] > 0.1);
    CHECK(row["bound_share"]["mean"] <= 1.0);
  }
}

TEST_CASE("simulate: with faults every run is exact, and the same twice") {
  const ScratchFolder folder;
  const std::string workload = folder.write("w.toml", kSmall);
  const std::vector<std::string> arguments{"--workload", workload, "--policies", "verl,seer,seer+sd", "--seeds",
                                           "3",          "--faults", "--requests", "12"};
  const Said said = simulate(arguments), again = simulate(arguments);
  CAPTURE(said.err);
  REQUIRE(said.exit_code == 0);
  CHECK(said.out == again.out);
  CHECK(said.err == "");
  CHECK(std::count(said.out.begin(), said.out.end(), '\n') == 9);
  for (const char* words : {"w verl seed 1: 12 requests exact", "w seer seed 3: 12 requests exact",
                            "w seer+sd seed 3: 12 requests exact", "crash"}) {
    CAPTURE(words);
    CHECK(said.out.find(words) != std::string::npos);
  }
  std::vector<std::string> logged = arguments;
  logged.insert(logged.end(), {"--log-level", "info", "--log-file", folder.path("f.log")});
  CHECK(simulate(logged).out == said.out);
  const std::string lines = folder.read("f.log");
  for (const char* words : {"0.000000 info simulation_started workload=w policy=seer+sd seed=3\n", " warn instance_restarted instance="}) {
    CAPTURE(words);
    CHECK(lines.find(words) != std::string::npos);
  }
  // Accepted drafts change the times of events, and so the hash of the events.
  const auto hash_of = [&](const std::string& policy) {
    const size_t line = said.out.find(policy + " seed 1:");
    return said.out.substr(said.out.find("events ", line), std::string("events 0123456789abcdef").size());
  };
  CHECK(hash_of("seer") != hash_of("seer+sd"));
}

TEST_CASE("simulate: the log has the virtual time of each event, the same twice, and changes nothing else") {
  const ScratchFolder folder;
  const std::string workload = folder.write("w.toml", kSmall);
  const std::vector<std::string> arguments{"--workload", workload, "--policies", "verl,seer+", "--seeds", "1"};
  const Said plain = simulate(arguments);
  REQUIRE(plain.exit_code == 0);
  for (const char* name : {"a.log", "b.log"}) {
    std::vector<std::string> logged = arguments;
    logged.insert(logged.end(), {"--log-level", "info", "--log-file", folder.path(name)});
    const Said said = simulate(logged);
    CAPTURE(said.err);
    REQUIRE(said.exit_code == 0);
    CHECK(said.out == plain.out);
  }
  const std::string lines = folder.read("a.log");
  CAPTURE(lines);
  CHECK(lines == folder.read("b.log"));
  for (const char* words : {"0.000000 info simulation_started workload=w policy=verl seed=1\n",
                            "0.000000 info simulation_started workload=w policy=seer+ seed=1\n",
                            " info rollout_started rollout=0 policy=seer+ requests=80 groups=20 instances=4 ",
                            " info rollout_ended rollout=0 complete=true finished=80 requests=80 failed=0 "}) {
    CAPTURE(words);
    CHECK(lines.find(words) != std::string::npos);
  }
}

TEST_CASE("simulate: bad input gets one sentence and leaves no file") {
  const ScratchFolder folder;
  const std::string workload = folder.write("w.toml", kSmall);
  const std::string trace =
      folder.write("t.jsonl", "{\"group\": 0, \"sample\": 0, \"prompt_tokens\": 5, \"tokens\": 9}\n");
  const std::string bad_trace = folder.write("bad.jsonl", "{\"group\": 0, \"sample\": 0, \"prompt_tokens\": 5}\n");
  const std::string bad_toml = folder.write("bad.toml", kSmall + "gpus = 3\n");
  const std::string bad_profile = folder.write("bad.json", "{}\n");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--workload", folder.path("none.toml")}, "none.toml"},
      {{"--workload", "moonshine"}, "moonshine"},
      {{"--workload", bad_toml}, "gpus"},
      {{"--workload", bad_trace}, "bad.jsonl:1"},
      {{"--workload", trace}, "--profile is missing"},
      {{"--workload", trace, "--profile", bad_profile, "--kv-tokens", "4096"}, "bad.json"},
      {{"--workload", workload, "--kv-tokens", "4096"}, "holds KV of 4096 tokens"},
      {{"--workload", workload, "--policies", "verl,verl"}, "--policies names verl twice"},
      {{"--workload", workload, "--policies", "fifo"}, "--policies fifo: expected"},
      {{"--workload", workload, "--seeds", "0"}, "--seeds 0"},
      {{"--workload", workload, "--log-level", "loud"}, "--log-level loud: expected one of off, error, warn, info, debug"},
      {{"--workload", workload, "--log-file", folder.path("none/seer.log")}, "none/seer.log: No such file or directory"},
      {{"--workload", workload, "--requests", "-1"}, "--requests -1"},
      {{"--workload", workload, "--faults", "--policies", "partial+sd"}, "--policies partial+sd does not go with --faults"},
      {{"--workload", workload, "--faults"}, "--report does not go with --faults"},
      {{"--workload", workload, "--faults", "--html", folder.path("h.html")}, "does not go with --faults"},
      {{"--workload", workload, "--report", folder.path("no/such/r.json")}, "no/such/r.json"},
  };
  for (const auto& [arguments, words] : cases) {
    CAPTURE(words);
    std::vector<std::string> all = arguments;
    if (std::find(all.begin(), all.end(), "--report") == all.end())
      all.insert(all.end(), {"--report", folder.path("report.json")});
    const Said said = simulate(all);
    CAPTURE(said.err);
    CHECK(said.exit_code != 0);
    CHECK(said.err.starts_with("seer: "));
    CHECK(std::count(said.err.begin(), said.err.end(), '\n') == 1);
    CHECK(said.err.find(words) != std::string::npos);
    CHECK(!folder.has("report.json"));
    MESSAGE(said.err);
  }
}
