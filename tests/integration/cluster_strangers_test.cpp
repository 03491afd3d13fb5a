// A cluster of real processes among strangers, who connect to its port and must change nothing.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <deque>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "integration/cluster.h"
#include "protocols/cluster.h"
#include "protocols/tcp_sockets.h"
#include "protocols/unique_fd.h"

using namespace seer;

namespace {

constexpr size_t kStrangers = 10'000;
constexpr size_t kFilesAtFirst = 1024;  // what a shell gives; a node has to ask for more

/// Sets how many files this process, and those that it starts, may open. Returns how many it may ask for at most.
size_t limit_files(size_t count) {
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  files.rlim_cur = std::min<size_t>(files.rlim_max, count);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &files) == 0);
  return files.rlim_max;
}

/// Connections to ports of this host. In turn they say nothing, the protocol but not which, all of a greeting but a proof, and random
/// bytes.
class Strangers {
 public:
  void come(size_t count, uint16_t port) {
    for (size_t i = 0; i < count; ++i) {
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      REQUIRE(fd >= 0);
      open_.emplace_back(fd);
      sockaddr_in at{};
      at.sin_family = AF_INET;
      at.sin_port = htons(port);
      at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      CAPTURE(port);
      REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
      const std::string bytes = what_to_say(++came_);
      ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);  // fails if the other side has ended already
    }
  }
  void leave() { open_.clear(); }
  size_t came() const { return came_; }

 private:
  std::string what_to_say(size_t turn) {
    const size_t kind = turn % 4;
    if (kind == 0) return {};
    if (kind == 1) return "seer/";
    if (kind == 3) return noise(1 + random_() % 200);
    std::string protocol = "seer/" + std::to_string(kProtocolNumber);
    protocol.resize(16, '\0');
    return protocol + noise(32);
  }
  std::string noise(size_t count) {
    std::string bytes(count, ' ');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }
  size_t came_ = 0;
  std::mt19937_64 random_{1};
  std::deque<UniqueFd> open_;
};

uint16_t port_of(const std::string& address) { return static_cast<uint16_t>(std::stoi(address.substr(address.find(':') + 1))); }

/// The TCP ports that a process listens at.
std::vector<uint16_t> ports_of(const ChildProcess& process) {
  std::vector<uint16_t> ports;
  for (const TcpSocket& socket : tcp_sockets(process.pid())) {
    if (socket.state != TCP_LISTEN) continue;
    ports.push_back(static_cast<uint16_t>(std::stoi(socket.local.substr(socket.local.find(':') + 1), nullptr, 16)));
  }
  return ports;
}

}  // namespace

TEST_CASE("cluster strangers: ten thousand connections of garbage change no bit, keep no machine out, and leave nothing behind") {
  const size_t files_max = limit_files(kFilesAtFirst);
  const ScratchFolder folder;
  Cluster cluster;
  limit_files(files_max);
  const size_t at_once = std::min(files_max / 2, kStrangers);
  const std::string quiet = folder.path("a.jsonl"), disturbed = folder.path("b.jsonl");
  ChildProcess alone(rollout(quiet, {"--cluster", cluster.address}));
  const Responses right = responses_of_run(alone, quiet);
  const Taken before = taken_by(*cluster.nodes[0]);

  HeldPrompts prompts;
  ChildProcess seer(HeldPrompts::rollout(disturbed, {"--cluster", cluster.address}), prompts.fd());
  Strangers strangers;
  strangers.come(at_once, port_of(cluster.address));
  const auto wait_for_files = [&](auto are_right) {  // the node takes its time to accept, and to see that others have gone
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kWaitMs);
    Taken taken = taken_by(*cluster.nodes[0]);
    while (!are_right(taken.files) && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      taken = taken_by(*cluster.nodes[0]);
    }
    return taken;
  };
  CHECK(wait_for_files([&](int64_t files) { return files > before.files + 100; }).files > before.files + 100);
  cluster.join(1);
  while (strangers.came() < kStrangers) {
    strangers.leave();
    strangers.come(std::min(at_once, kStrangers - strangers.came()), port_of(cluster.address));
  }
  const std::vector<uint16_t> ports = ports_of(*cluster.nodes[0]);
  CHECK(ports.size() >= 2);  // the controller's and the machine's; with UCX one for KV
  for (const uint16_t port : ports) {
    strangers.leave();
    strangers.come(std::min(at_once, 2 * kFilesAtFirst), port);
  }
  CHECK(status_of(cluster)["nodes"].size() == 2);
  CHECK_FALSE(seer.wait(0));
  prompts.end();
  CHECK(responses_of_run(seer, disturbed) == right);

  strangers.leave();
  CHECK(ports_of(*cluster.nodes[0]) == ports);
  cluster.nodes[1]->send(SIGTERM);
  REQUIRE(cluster.nodes[1]->wait(kWaitMs));
  const Taken after = wait_for_files([&](int64_t files) { return files <= before.files + 8; });
  CHECK(after.files <= before.files + 8);
  CHECK(after.resident_bytes <= before.resident_bytes + (16 << 20));
}

TEST_CASE("cluster strangers: only processes with the cluster's secret take part; others end with a sentence, and are logged there") {
  const ScratchFolder folder;
  const auto secret_file = [&](const std::string& name, const std::string& secret, int mode) {
    std::filesystem::permissions(folder.write(name, secret), std::filesystem::perms(mode));
    return folder.path(name);
  };
  const std::string ours = secret_file("ours", "the secret of this cluster\n", 0600);
  const std::string others = secret_file("others", "the secret of another one\n", 0644);
  Cluster cluster({{"--secret-file", ours}});
  cluster.join(1);
  const auto answer = [&](const Arguments& command, const Arguments& access) {
    Arguments all{SEER_PROGRAM};
    all.insert(all.end(), command.begin(), command.end());
    all.insert(all.end(), {"--cluster", cluster.address});
    all.insert(all.end(), access.begin(), access.end());
    ChildProcess seer(all);
    REQUIRE(seer.wait(kWaitMs));
    CHECK(seer.exit_code() == 2);
    return seer.err();
  };
  const std::string process = "the process at " + cluster.address;
  const std::string another = process + " has another secret, or none: expected --secret-file with that of its cluster\n";
  CHECK(answer({"status"}, {}) ==
        "seer: --cluster " + cluster.address + ": " + process + " has a secret: expected --secret-file with that of its cluster\n");
  CHECK(answer({"status"}, {"--secret-file", others}) == "seer: --cluster " + cluster.address + ": " + another);
  CHECK(answer({"status"}, {"--secret-file", folder.path("none")}) ==
        "seer: --secret-file " + folder.path("none") + ": cannot be read: No such file or directory\n");
  CHECK(answer({"serve", "--model", kModel, "--listen", "127.0.0.1:0"}, {}).find(" has a secret: expected --cluster-secret-file with ") !=
        std::string::npos);
  CHECK(answer({"drain", "--name", "7"}, {"--secret-file", ours}) == "seer: node 7 is not in the cluster\n");
  cluster.start(7, {{"--secret-file", others}});
  REQUIRE(cluster.nodes[7]->wait(kWaitMs));
  CHECK(cluster.nodes[7]->err().ends_with("seer: --join " + cluster.address + ": " + another));
  CHECK(cluster.nodes[7]->err().find(" warn secret_open_to_all file=" + others + "\n") != std::string::npos);

  const std::string out = folder.path("a.jsonl"), report = folder.path("a.json");
  HeldPrompts prompts(11);  // until both machines are in it
  ChildProcess seer(HeldPrompts::rollout(out, {"--cluster", cluster.address, "--secret-file", ours, "--report", report, "--log-level", "info"}), prompts.fd());
  wait_for_log(seer, " instance_up ", 2);
  prompts.end();
  CHECK(responses_of_run(seer, out).size() == 96);
  for (const Json& instance : Json::parse(folder.read("a.json"))["instances"]) CHECK(instance["tokens"] > 0);
  const std::string log = cluster.nodes[0]->err();
  CHECK(log.find(" warn stranger_refused address=127.0.0.1:") != std::string::npos);
  CHECK(log.find("secret_open_to_all") == std::string::npos);
}
