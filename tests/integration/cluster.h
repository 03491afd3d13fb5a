// A cluster of real processes for tests, and rollouts on it whose responses are compared.
#pragma once
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
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

/// Waits until the log has the words this many times.
inline void wait_for_log(ChildProcess& seer, const std::string& words, int times) {
  const auto count = [&] {
    const std::string log = seer.err();
    int found = 0;
    for (size_t at = log.find(words); at != std::string::npos; at = log.find(words, at + 1)) ++found;
    return found;
  };
  int left = kWaitMs / 20;
  while (count() < times) {
    const bool has_ended = seer.wait(20);
    REQUIRE_MESSAGE((!has_ended && --left > 0), seer.err());
  }
}

/// A port of this host for a process that ends and listens there again. It never listens itself: it only keeps the system from giving
/// the port to someone else meanwhile.
class KeptPort {
 public:
  KeptPort() {
    const int yes = 1;
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    REQUIRE(::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0);  // as the process that listens has it
    REQUIRE(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&at), size) == 0);
    REQUIRE(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
    port_ = ntohs(at.sin_port);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  UniqueFd socket_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  uint16_t port_ = 0;
};

/// The machines of a cluster, node 0 its controller. `access`: flags that all of them have; `first`: flags of node 0 alone, which
/// then says `line`.
struct Cluster {
  explicit Cluster(std::map<std::string, std::string> access_in = {}, std::map<std::string, std::string> first = {},
                   const std::string& line = "node 0 is the controller, with 1 instances, at ")
      : access(std::move(access_in)) {
    first.insert({"--listen", port.address()});
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
  KeptPort port;  // of node 0
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

/// The prompts of rollout(), on a pipe. The last ones, one at least, come when the test says so, and the rollout does not end before.
class HeldPrompts {
 public:
  explicit HeldPrompts(int held = 1) {
    REQUIRE((0 < held && held < kAll));  // a rollout begins with its first prompt
    std::array<int, 2> ends{};
    REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
    reader_ = UniqueFd(ends[0]);
    writer_ = UniqueFd(ends[1]);
    while (left_ > held) write_line();
  }
  static Arguments rollout(const std::string& out, const Arguments& more) {
    Arguments all = seer::rollout(out, more);
    std::ranges::replace(all, kPrompts, std::string("-"));
    return all;
  }
  int fd() const { return reader_.get(); }
  void end() {
    while (left_ > 0) write_line();
    writer_ = UniqueFd();
  }

 private:
  static constexpr int kAll = 12;
  void write_line() {
    std::string line;
    std::getline(file_, line);
    line += '\n';
    REQUIRE(::write(writer_.get(), line.data(), line.size()) == std::ssize(line));
    --left_;
  }
  std::ifstream file_{kPrompts};
  UniqueFd reader_, writer_;
  int left_ = kAll;
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

/// Waits, for two minutes at most, until the status is so. Returns what `seer status` says then.
template <class IsSo>
Json status_when(const Cluster& cluster, IsSo is_so) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kWaitMs);
  Json status = status_of(cluster);
  while (!is_so(status) && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    status = status_of(cluster);
  }
  CHECK_MESSAGE(is_so(status), status.dump());
  return status;
}
inline bool are_up(const Json& status, ptrdiff_t machines) {
  return std::ranges::count_if(status["nodes"], [](const Json& node) { return node["state"] == "up"; }) >= machines;
}
/// Of rollouts that are over nothing is kept. Machines hear of the end after the rollout's own process.
inline bool keeps_nothing(const Json& status) {
  const auto keeps = [](const Json& node) { return node.value("kept_requests", int64_t{0}) > 0; };
  return status["rollouts"].empty() && std::ranges::none_of(status["nodes"], keeps);
}

}  // namespace seer
