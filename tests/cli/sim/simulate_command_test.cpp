// tests/integration/simulate_test.cpp runs the command through the program, with a report of every figure.
#include "cli/sim/simulate_command.h"

#include <doctest/doctest.h>

#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/scratch.h"
#include "cli/sim/captured_stream.h"
#include "gpu/step_profile.h"

using namespace seer;
using Json = nlohmann::json;

namespace {

const std::string kGpus = "gpu = \"H800\"\nmodel = \"Moonlight\"\n";
const std::string kWork =
    "groups = 6\ngroup-size = 4\nprompt-tokens = 20\nmax-gen = 400\navg-gen = 150\nsigma = 0.5\nicc = 0.5\n";

/// A simulation whose files are in a folder of its own.
class Simulation {
 public:
  explicit Simulation(const std::string& workload) {
    options.workload = folder.write("w.toml", "[workload]\n" + workload);
    options.policies = {"divided"};
    options.seeds = 1;
    options.report = folder.path("report.json");
    options.log.level = LogLevel::kOff;
  }
  /// A profile in which each step takes 1000 us.
  void measure_steps() {
    StepProfile profile;
    profile.threads = 1;
    profile.block_tokens = 16;
    profile.cost.us[0] = 1000;
    StepShape shape;
    shape.add(1, 1, 1);
    profile.points.push_back({"decode", shape, 1000, false});
    options.profile = folder.write("profile.json", step_profile_json(profile));
    options.kv_tokens = 100'000;
    options.instances = 1;
  }

  Status run(bool is_stopped = false) {
    const CapturedStream out(std::cout), err(std::cerr);
    const std::atomic<bool> stop{is_stopped};
    return simulate_command(options, stop);
  }
  /// The report's rows. REQUIRES: the simulation succeeds.
  Json report() {
    const Status status = run();
    REQUIRE_MESSAGE(status.ok(), status.error().detail);
    return Json::parse(folder.read("report.json"));
  }
  std::string error() {
    const Status status = run();
    REQUIRE(!status.ok());
    CHECK(!folder.has("report.json"));
    return status.error().detail;
  }

  ScratchFolder folder;
  SimulateOptions options;
};

}  // namespace

TEST_CASE("simulate command: a cluster that is not known in full names what is missing") {
  Simulation trace("instances = 0\n");
  trace.options.workload =
      trace.folder.write("t.jsonl", "{\"group\": 0, \"sample\": 0, \"prompt_tokens\": 5, \"tokens\": 9}\n");
  CHECK(trace.error() == "--profile is missing: " + trace.options.workload + " names no GPU and model, so it does not say how long a step takes");
  trace.measure_steps();
  trace.options.instances = 0;
  CHECK(trace.error() == "--instances is missing: " + trace.options.workload + " does not say how many there are");
  trace.options.kv_tokens = 0;
  CHECK(trace.error() == "--kv-tokens is missing: a profile does not say how much KV an instance holds");

  Simulation gpus(kGpus + "instances = 1\n" + kWork);
  gpus.options.step_gap_us = 5;
  CHECK(gpus.error() == "--step-gap-us 5: expected --profile beside it; a hardware model has its own gap between steps");
}

TEST_CASE("simulate command: a simulation that would not fit in memory is refused before it begins") {
  Simulation simulation(kGpus + "instances = 2\n" + kWork);
  simulation.options.kv_tokens = int64_t{1} << 60;
  CHECK(simulation.error().find("simulating 2 instances with KV of 1152921504606846976 tokens each") != std::string::npos);
}

TEST_CASE("simulate command: the first whole groups of the workload are run, at least one") {
  Simulation drawn(kGpus + "instances = 1\n" + kWork), traced("");
  traced.measure_steps();
  std::string lines;
  for (const auto& [group, samples] : {std::pair{0, 2}, {1, 4}, {2, 2}})
    for (int sample = 0; sample < samples; ++sample)
      lines += Json{{"group", group}, {"sample", sample}, {"prompt_tokens", 5}, {"tokens", 9}}.dump() + "\n";
  traced.options.workload = traced.folder.write("t.jsonl", lines);
  const struct {
    int64_t asked, of_drawn, of_traced;
  } table[] = {{0, 24, 8}, {1, 4, 2}, {5, 4, 2}, {6, 4, 6}, {8, 8, 8}, {1000, 24, 8}};
  for (const auto& row : table) {
    CAPTURE(row.asked);
    drawn.options.requests = traced.options.requests = row.asked;
    CHECK(drawn.report()[0]["requests"]["mean"] == row.of_drawn);
    CHECK(traced.report()[0]["requests"]["mean"] == row.of_traced);
  }
}

TEST_CASE("simulate command: with a profile the steps take the times measured, and the gap comes after each") {
  Simulation simulation("");
  simulation.measure_steps();
  simulation.options.workload =
      simulation.folder.write("t.jsonl", "{\"group\": 0, \"sample\": 0, \"prompt_tokens\": 5, \"tokens\": 500}\n");
  const double total_s = simulation.report()[0]["total_s"]["mean"];
  CHECK(total_s >= 0.5);  // a step for each token
  CHECK(total_s < 0.6);
  simulation.options.step_gap_us = 1000;
  const double with_gaps_s = simulation.report()[0]["total_s"]["mean"];
  CHECK(with_gaps_s - total_s >= 0.5);
  CHECK(with_gaps_s - total_s < 0.6);
}

TEST_CASE("simulate command: whole-group policies have the workload's KV block size, unless a flag gives one") {
  // A block of 4096 tokens for each request: 4 blocks of KV run 4 requests at a time, not all 24.
  const std::string workload = kGpus + "instances = 1\nverl-block-tokens = 4096\n" + kWork;
  const auto total_s = [&](const std::string& policy, int64_t block_tokens) -> double {
    Simulation simulation(workload);
    simulation.options.kv_tokens = 4 * 4096;
    simulation.options.policies = {policy};
    simulation.options.block_tokens = block_tokens;
    return simulation.report()[0]["total_s"]["mean"];
  };
  CHECK(total_s("verl", 0) > 1.5 * total_s("verl", 256));
  CHECK(total_s("divided", 0) == total_s("divided", 256));
}

TEST_CASE("simulate command: every policy runs with every seed, and the seed alone makes the figures") {
  Simulation simulation(kGpus + "instances = 2\n" + kWork);
  simulation.options.policies = {"verl", "seer"};
  simulation.options.seeds = 2;
  simulation.options.csv = simulation.folder.path("r.csv");
  const Json both = simulation.report();
  REQUIRE(both.size() == 2);
  CHECK(both[0]["policy"] == "verl");
  CHECK(both[1]["policy"] == "seer");
  CHECK(!simulation.folder.read("r.csv").empty());
  simulation.options.policies = {"seer"};
  simulation.options.seeds = 1;
  const double first_s = simulation.report()[0]["total_s"]["mean"];
  simulation.options.seed = 2;
  const double second_s = simulation.report()[0]["total_s"]["mean"];
  CHECK(first_s != second_s);
  CHECK(both[1]["total_s"]["mean"].get<double>() == doctest::Approx((first_s + second_s) / 2));
}

TEST_CASE("simulate command: a trace is run once, since its lengths are given, with the limit that its run had") {
  Simulation traced("");
  traced.measure_steps();
  traced.options.seeds = 3;
  std::string lines;
  for (int sample = 0; sample < 40; ++sample)
    lines += Json{{"group", sample / 8}, {"sample", sample % 8}, {"prompt_tokens", 5}, {"tokens", 20 + 97 * sample % 500}}.dump() + "\n";
  traced.options.workload = traced.folder.write("t.jsonl", lines);
  traced.options.kv_tokens = 4096;
  traced.options.policies = {"seer"};
  const Json longest = traced.report();
  CHECK(longest[0]["seeds"] == Json{1});
  CHECK(longest[0]["total_s"]["ci95"].is_null());
  traced.options.max_tokens = 2000;
  CHECK(traced.report()[0]["total_s"]["mean"] > longest[0]["total_s"]["mean"]);  // more KV is promised to each
  CHECK(traced.run().ok());

  Simulation low("");
  low.measure_steps();
  low.options.workload = low.folder.write("t.jsonl", lines);
  low.options.max_tokens = 100;
  CHECK(low.error() == "--max-tokens is 100: a response of t has 512 tokens");
  Simulation drawn(kGpus + "instances = 1\n" + kWork);
  drawn.options.max_tokens = 100;
  CHECK(drawn.error() == "--max-tokens is 100: expected a trace; other workloads say their own, max-gen");
}

TEST_CASE("simulate command: a request that no instance holds is refused at once, however long it is") {
  Simulation traced("");
  traced.measure_steps();
  traced.options.workload = traced.folder.write("t.jsonl", R"({"group": 0, "sample": 0, "prompt_tokens": 5, "tokens": 99999999999999})" "\n");
  CHECK(traced.error().starts_with("an instance holds KV of 100000 tokens"));
}

TEST_CASE("simulate command: sizes in bytes need a profile's bytes per token, and machines have the network of their GPUs") {
  Simulation measured("");
  measured.measure_steps();
  measured.options.workload = measured.folder.write("t.jsonl", "{\"group\": 0, \"sample\": 0, \"prompt_tokens\": 5, \"tokens\": 9}\n");
  measured.options.dram_bytes = 1 << 20;
  CHECK(measured.error() == "--kv-bytes-per-token is missing: a profile does not say how much KV --dram-bytes and --cold-bytes hold");
  measured.options.kv_bytes_per_token = 2048;
  CHECK(measured.run().ok());

  const auto total_s = [](double nic_gb_per_s) -> double {
    Simulation simulation("gpu = \"G\"\nmodel = \"Moonlight\"\nhardware-file = \"h.json\"\ninstances = 4\ngroups = 16\ngroup-size = 8\n"
                          "prompt-tokens = 200\nmax-gen = 4000\navg-gen = 1500\nsigma = 0.8\nicc = 0.5\n");
    Json gpu;
    for (const auto& [constant, value] : std::map<std::string, double>{{"hbm_gb", 80}, {"hbm_tb_per_s", 3.35}, {"bf16_tflops", 989}, {"fp8_tflops", 0},
                                                                       {"nvlink_gb_per_s", 200}, {"nic_gb_per_s", nic_gb_per_s}})
      gpu[constant] = {{"value", value}, {"source", "made up"}};
    gpu["gpus_per_node"] = {{"value", 1}, {"source", "made up"}};
    simulation.folder.write("h.json", Json{{"gpus", {{"G", gpu}}}}.dump());
    simulation.options.kv_tokens = 8192;
    simulation.options.scheduler.chunk_tokens = 500;
    return simulation.report()[0]["total_s"]["mean"];
  };
  CHECK(total_s(0.01) > 2 * total_s(50));
}

TEST_CASE("simulate command: stopped on request it writes no file") {
  Simulation simulation(kGpus + "instances = 1\n" + kWork);
  for (const bool faults : {false, true}) {
    simulation.options.faults = faults;
    const Status stopped = simulation.run(true);
    REQUIRE(!stopped.ok());
    CHECK(stopped.error().code == Code::kCancelled);
    CHECK(!simulation.folder.has("report.json"));
  }
}
