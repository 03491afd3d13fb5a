// A cluster of real processes: whatever machines come, leave and die, a rollout on them gives the bits of one within a process.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/scratch.h"
#include "gpu/tiny_model.h"
#include "integration/child_process.h"
#include "integration/optional_parts.h"

using namespace seer;
using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

namespace {

const std::string kModel = SEER_SOURCE_DIR "/deploy/models/scratchpad-1m8";
const std::string kPrompts = SEER_SOURCE_DIR "/deploy/examples/scratchpad/prompts.jsonl";
constexpr int kWaitMs = 120'000;

/// Waits until the process has printed something that starts with `words`, and returns what follows in that line.
std::string wait_for_line(ChildProcess& process, const std::string& words) {
  for (int waited = 0; waited < kWaitMs; waited += 10) {
    const std::string out = process.out();
    if (const size_t at = out.find(words); at != std::string::npos && out.find('\n', at) != std::string::npos)
      return out.substr(at + words.size(), out.find('\n', at) - at - words.size());
    const bool has_ended = process.wait(10);
    REQUIRE_MESSAGE(!has_ended, process.err());
  }
  FAIL("no line \"", words, "\" came: ", process.out());
  return {};
}

/// The machines of a cluster, node 0 its controller.
struct Cluster {
  Cluster() {
    start(0, {{"--listen", "127.0.0.1:0"}});
    address = wait_for_line(*nodes[0], "node 0 is the controller, with 1 instances, at ");
  }
  void start(uint32_t name, std::map<std::string, std::string> flags = {}) {
    flags.insert({{"--model", kModel}, {"--name", std::to_string(name)}, {"--instances", "1"}, {"--threads-per-instance", "1"},
                  {"--kv-bytes", "2MiB"}, {"--dram-bytes", "64MiB"}});
    if (name > 0) flags.insert({"--join", address});
    Arguments all{SEER_PROGRAM, "node"};
    for (const auto& [flag, value] : flags) all.insert(all.end(), {flag, value});
    nodes[name] = std::make_unique<ChildProcess>(all);
  }
  void join(uint32_t name) {
    start(name);
    wait_for_line(*nodes[name], "node " + std::to_string(name) + " has joined, with 1 instances, at ");
  }
  std::string address;
  std::map<uint32_t, std::unique_ptr<ChildProcess>> nodes;
};

Arguments rollout(const std::string& out, const Arguments& more) {
  Arguments all{SEER_PROGRAM, "rollout", "--model", kModel, "--prompts", kPrompts, "--limit", "12", "--group-size", "8",
                "--max-tokens", "800", "--policy", "seer", "--chunk-tokens", "128", "--out", out};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

using Responses = std::map<std::pair<int, int>, Json>;

/// What each response says that no machine may change.
Responses responses_of(const std::string& path) {
  Responses responses;
  std::ifstream lines(path);
  for (std::string text; std::getline(lines, text);) {
    const Json line = Json::parse(text);
    const bool once =
        responses.emplace(std::pair{line["group"], line["sample"]},
                          Json{line["output_ids"], line["logprobs"], line["finish_reason"], line["weight_version"]}).second;
    CHECK(once);
  }
  return responses;
}

Responses responses_of_run(ChildProcess& seer, const std::string& out) {
  REQUIRE(seer.wait(kWaitMs));
  REQUIRE_MESSAGE(seer.exit_code() == 0, seer.err());
  return responses_of(out);
}

Responses local_responses(const ScratchFolder& folder) {
  ChildProcess seer(rollout(folder.path("local.jsonl"), {"--instances", "1", "--threads-per-instance", "1"}));
  return responses_of_run(seer, folder.path("local.jsonl"));
}

/// Until some response is written, or the run is over.
void wait_for_response(ChildProcess& seer, const std::string& out) {
  const std::string partial = out + ".partial";
  std::error_code missing;
  while (!seer.wait(5) && (std::filesystem::file_size(partial, missing) == 0 || missing)) {
  }
}

}  // namespace

TEST_CASE("cluster: a rollout on the machines of a cluster gives the bits of one within a process, and so do several at once") {
  const ScratchFolder folder;
  const Responses right = local_responses(folder);
  REQUIRE(right.size() == 96);
  Cluster cluster;
  cluster.join(1);
  cluster.join(2);
  const std::string out = folder.path("a.jsonl"), report = folder.path("a.json"), other = folder.path("b.jsonl");
  ChildProcess first(rollout(out, {"--cluster", cluster.address, "--report", report}));
  ChildProcess second(rollout(other, {"--cluster", cluster.address}));
  CHECK(responses_of_run(first, out) == right);
  CHECK(responses_of_run(second, other) == right);
  const Json figures = Json::parse(folder.read("a.json"));
  CHECK(figures["instances"].size() == 3);
  for (const Json& instance : figures["instances"]) CHECK(instance["tokens"] > 0);
  CHECK(figures["migrations"] > 0);
  CHECK(figures["fetch_failures"] == 0);
}

TEST_CASE("cluster: requests that move find the KV of long texts at the other machine") {
  if (!has_ucx()) return;
  const ScratchFolder folder;
  Cluster cluster;
  cluster.join(1);
  // Who moves when is a matter of time, and less than 512 tokens are not worth fetching: some run has a request that is.
  int64_t fetched_bytes = 0;
  for (int seed = 1; fetched_bytes == 0 && seed <= 40; ++seed) {
    CAPTURE(seed);
    const auto run = [&](const std::string& out, const Arguments& more) {
      Arguments all{SEER_PROGRAM, "rollout", "--model", kModel, "--prompts", kPrompts, "--limit", "3", "--group-size", "4",
                    "--max-tokens", "900", "--ignore-eos", "--policy", "seer", "--chunk-tokens", "128", "--seed",
                    std::to_string(seed), "--out", out, "--report", folder.path("report.json")};
      all.insert(all.end(), more.begin(), more.end());
      ChildProcess seer(all);
      return responses_of_run(seer, out);
    };
    const Responses moved = run(folder.path("a.jsonl"), {"--cluster", cluster.address});
    const Json figures = Json::parse(folder.read("report.json"));
    fetched_bytes = figures["fetched_bytes"];
    CHECK(figures["fetch_failures"] == 0);
    CHECK(moved == run(folder.path("b.jsonl"), {"--instances", "1", "--threads-per-instance", "1"}));
  }
  CHECK(fetched_bytes > 0);
}

TEST_CASE("cluster: machines that are killed and others that come during a rollout change no bit") {
  const ScratchFolder folder;
  const Responses right = local_responses(folder);
  Cluster cluster;
  cluster.join(1);
  cluster.join(2);
  const std::string out = folder.path("a.jsonl");
  ChildProcess seer(rollout(out, {"--cluster", cluster.address, "--log-level", "info"}));
  wait_for_response(seer, out);
  cluster.nodes.at(1)->send(SIGKILL);
  cluster.join(3);
  cluster.nodes.at(2)->send(SIGKILL);
  REQUIRE(cluster.nodes.at(1)->wait(kWaitMs));
  cluster.start(1);  // its name is free again
  CHECK(responses_of_run(seer, out) == right);
  CHECK(seer.err().find(" warn instance_lost rollout=1 instance=") != std::string::npos);
}

TEST_CASE("cluster: who does not fit is refused with a sentence, and the others go on") {
  Cluster cluster;
  const auto refused = [&](const std::map<std::string, std::string>& flags) {
    cluster.start(7, flags);
    ChildProcess& node = *cluster.nodes.at(7);
    REQUIRE(node.wait(kWaitMs));
    CHECK(node.exit_code() != 0);
    return node.err();
  };
  CHECK(refused({{"--name", "0"}}) ==
        "seer: node 0 is refused: a node of that name is in the cluster, expected another name for each machine\n");
  const TestFolder other;
  write_tiny_model(other.path(), tiny_config("qwen3"), "BF16", 1);
  CHECK(refused({{"--model", other.path().string()}}).find("seer: node 7 is refused: its model is \"seer_test_") == 0);
  CHECK(refused({{"--kv-dtype", "f32"}}).find("seer: node 7 is refused: its KV layout is ") == 0);
  CHECK(refused({{"--weight-version", "2"}}) == "seer: node 7 is refused: its weight version is 2, expected 1\n");
  CHECK(refused({{"--join", "nowhere"}}) == "seer: --join nowhere: expected HOST:PORT, as 127.0.0.1:7000\n");
  CHECK(refused({{"--listen", "10.0.0.1:0"}}) ==
        "seer: --listen 10.0.0.1:0: expected 127.0.0.1 as the host: machines of a cluster are processes of one machine as yet\n");
  CHECK(refused({{"--listen", cluster.address}}).find("seer: cannot listen on " + cluster.address) == 0);
  cluster.join(2);

  cluster.nodes.at(0)->send(SIGTERM);
  REQUIRE(cluster.nodes.at(0)->wait(kWaitMs));
  CHECK(cluster.nodes.at(0)->exit_code() == 0);
  REQUIRE(cluster.nodes.at(2)->wait(kWaitMs));
  CHECK(cluster.nodes.at(2)->err() == "seer: the controller at " + cluster.address + " is gone\n");
  CHECK(refused({}).find("seer: --join " + cluster.address + ": no controller answers there, in 20 tries over 5 s") == 0);
}
