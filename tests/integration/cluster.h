// A cluster of real processes for tests, and rollouts on it whose responses are compared.
#pragma once
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/scratch.h"
#include "integration/child_process.h"
#include "protocols/unique_fd.h"

namespace seer {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

inline const std::string kModel = SEER_SOURCE_DIR "/deploy/models/scratchpad-1m8";
inline const std::string kPrompts = SEER_SOURCE_DIR "/deploy/examples/scratchpad/prompts.jsonl";
inline constexpr int kWaitMs = 120'000;

/// Waits until the process has printed something that starts with `words`, and returns what follows in that line.
inline std::string wait_for_line(ChildProcess& process, const std::string& words) {
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

/// The machines of a cluster, node 0 its controller. `access`: flags that all of them have; `first`: flags of node 0 alone, which
/// then says `line`.
struct Cluster {
  explicit Cluster(std::map<std::string, std::string> access_in = {}, std::map<std::string, std::string> first = {},
                   const std::string& line = "node 0 is the controller, with 1 instances, at ")
      : access(std::move(access_in)) {
    first.insert({"--listen", "127.0.0.1:0"});
    start(0, first);
    address = wait_for_line(*nodes[0], line);
  }
  void start(uint32_t name, std::map<std::string, std::string> flags = {}) {
    flags.insert({{"--model", kModel}, {"--name", std::to_string(name)}, {"--instances", "1"}, {"--threads-per-instance", "1"},
                  {"--kv-bytes", "2MiB"}, {"--dram-bytes", "64MiB"}});
    if (name > 0) flags.insert({"--join", address});
    flags.insert(access.begin(), access.end());
    Arguments all{SEER_PROGRAM, "node"};
    for (const auto& [flag, value] : flags) all.insert(all.end(), {flag, value});
    nodes[name] = std::make_unique<ChildProcess>(all);
  }
  /// Under its old address, after its end.
  void start_controller_again(std::map<std::string, std::string> flags = {}) {
    flags["--listen"] = address;
    start(0, flags);
    wait_for_line(*nodes[0], "node 0 is the controller, with 1 instances, at ");
  }
  void join(uint32_t name, const std::map<std::string, std::string>& flags = {}) {
    start(name, flags);
    wait_for_line(*nodes[name], "node " + std::to_string(name) + " has joined, with 1 instances, at ");
  }
  /// A machine that only keeps KV.
  void join_kv(uint32_t name) {
    start(name, {{"--roles", "kv"}});
    wait_for_line(*nodes[name], "node " + std::to_string(name) + " has joined, with 64.0 MiB for KV, at ");
  }
  std::map<std::string, std::string> access;
  std::string address;
  std::map<uint32_t, std::unique_ptr<ChildProcess>> nodes;
};

inline Arguments rollout(const std::string& out, const Arguments& more) {
  Arguments all{SEER_PROGRAM, "rollout", "--model", kModel, "--prompts", kPrompts, "--limit", "12", "--group-size", "8",
                "--max-tokens", "800", "--policy", "seer", "--chunk-tokens", "128", "--out", out};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// The prompts of rollout(), on a pipe. The last one comes when the test says so, and the rollout does not end before.
class HeldPrompts {
 public:
  HeldPrompts() {
    std::array<int, 2> ends{};
    REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
    reader_ = UniqueFd(ends[0]);
    writer_ = UniqueFd(ends[1]);
    for (int line = 1; line < 12; ++line) write_line();
  }
  Arguments rollout(const std::string& out, const Arguments& more) const {
    Arguments all = seer::rollout(out, more);
    std::ranges::replace(all, kPrompts, std::string("-"));
    return all;
  }
  int fd() const { return reader_.get(); }
  void end() {
    write_line();
    writer_ = UniqueFd();
  }

 private:
  void write_line() {
    std::string line;
    std::getline(file_, line);
    line += '\n';
    REQUIRE(::write(writer_.get(), line.data(), line.size()) == std::ssize(line));
  }
  std::ifstream file_{kPrompts};
  UniqueFd reader_, writer_;
};

using Responses = std::map<std::pair<int, int>, Json>;

/// The fields of each response that no machine may change.
inline Responses responses_of(const std::string& path) {
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

inline Responses responses_of_run(ChildProcess& seer, const std::string& out) {
  REQUIRE(seer.wait(kWaitMs));
  REQUIRE_MESSAGE(seer.exit_code() == 0, seer.err());
  return responses_of(out);
}

inline Responses local_responses(const ScratchFolder& folder) {
  ChildProcess seer(rollout(folder.path("local.jsonl"), {"--instances", "1", "--threads-per-instance", "1"}));
  return responses_of_run(seer, folder.path("local.jsonl"));
}

/// What a process has taken of the system, without the tables of a cold tier, which RocksDB merges in its own time.
struct Taken {
  int64_t resident_bytes = 0, files = 0;
};
inline Taken taken_by(const ChildProcess& process) {
  const std::string folder = "/proc/" + std::to_string(process.pid());
  Taken taken;
  std::ifstream sizes(folder + "/statm");
  int64_t all_pages = 0, resident_pages = 0;
  sizes >> all_pages >> resident_pages;
  taken.resident_bytes = resident_pages * ::sysconf(_SC_PAGESIZE);
  for (const auto& file : std::filesystem::directory_iterator(folder + "/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(file, gone).string().find(".sst") == std::string::npos) ++taken.files;
  }
  return taken;
}

/// What `seer status` says, as JSON.
inline Json status_of(const Cluster& cluster) {
  ChildProcess status({SEER_PROGRAM, "status", "--cluster", cluster.address, "--json"});
  REQUIRE(status.wait(kWaitMs));
  REQUIRE_MESSAGE(status.exit_code() == 0, status.err());
  return Json::parse(status.out());
}

/// Waits, for half a minute at most, until this many machines are up. Returns what `seer status` says then.
inline Json status_when_up(const Cluster& cluster, ptrdiff_t machines) {
  Json status = status_of(cluster);
  const auto is_up = [](const Json& node) { return node["state"] == "up"; };
  for (int left = 300; left > 0 && std::ranges::count_if(status["nodes"], is_up) < machines; --left) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    status = status_of(cluster);
  }
  return status;
}

}  // namespace seer
