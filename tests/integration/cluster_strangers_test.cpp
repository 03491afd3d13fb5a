// A cluster of real processes among strangers, who connect to its port and must change nothing.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <deque>
#include <filesystem>
#include <random>
#include <string>

#include "integration/cluster.h"
#include "protocols/unique_fd.h"

using namespace seer;

namespace {

constexpr size_t kStrangers = 10'000;
constexpr size_t kSpareFiles = 100;  // of this process, for what is no connection of a stranger

/// How many connections this process may have at a time, which it raises first.
size_t connections_max() {
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  files.rlim_cur = files.rlim_max;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &files) == 0);
  return std::min<size_t>(files.rlim_cur - kSpareFiles, kStrangers);
}

/// Connections to a port of this host. In turn they say nothing, random bytes, and half of a greeting.
class Strangers {
 public:
  explicit Strangers(const std::string& address) { port_ = static_cast<uint16_t>(std::stoi(address.substr(address.find(':') + 1))); }
  void come(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      REQUIRE(fd >= 0);
      open_.emplace_back(fd);
      sockaddr_in at{};
      at.sin_family = AF_INET;
      at.sin_port = htons(port_);
      at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
      const std::string bytes = what_to_say(++came_);
      ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);  // fails if the other side has ended already
    }
  }
  void leave() { open_.clear(); }
  size_t came() const { return came_; }

 private:
  std::string what_to_say(size_t turn) {
    if (turn % 3 == 0) return {};
    if (turn % 3 == 1) return "seer/";
    std::string bytes(1 + random_() % 200, ' ');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }
  uint16_t port_ = 0;
  size_t came_ = 0;
  std::mt19937_64 random_{1};
  std::deque<UniqueFd> open_;
};

/// What a process has taken of the system.
struct Taken {
  int64_t resident_bytes = 0, files = 0;
};
Taken taken_by(const ChildProcess& process) {
  const std::string folder = "/proc/" + std::to_string(process.pid());
  Taken taken;
  std::ifstream sizes(folder + "/statm");
  int64_t all_pages = 0, resident_pages = 0;
  sizes >> all_pages >> resident_pages;
  taken.resident_bytes = resident_pages * ::sysconf(_SC_PAGESIZE);
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(folder + "/fd")) ++taken.files;
  return taken;
}

}  // namespace

TEST_CASE("cluster strangers: ten thousand connections of garbage change no bit, keep no machine out, and leave nothing behind") {
  const size_t at_once = connections_max();
  const ScratchFolder folder;
  Cluster cluster;
  const auto start_rollout = [&](const std::string& out) {
    return std::make_unique<ChildProcess>(rollout(out, {"--cluster", cluster.address}));
  };
  const std::string quiet = folder.path("a.jsonl"), disturbed = folder.path("b.jsonl");
  const Responses right = responses_of_run(*start_rollout(quiet), quiet);
  const Taken before = taken_by(*cluster.nodes[0]);

  const auto seer = start_rollout(disturbed);
  Strangers strangers(cluster.address);
  strangers.come(at_once);
  CHECK(taken_by(*cluster.nodes[0]).files > before.files + 100);
  cluster.join(1);
  CHECK_FALSE(seer->wait(0));
  while (strangers.came() < kStrangers) {
    strangers.leave();
    strangers.come(std::min(at_once, kStrangers - strangers.came()));
  }
  CHECK(status_of(cluster)["nodes"].size() == 2);
  CHECK_FALSE(seer->wait(0));
  CHECK(responses_of_run(*seer, disturbed) == right);

  strangers.leave();
  cluster.nodes[1]->send(SIGTERM);
  REQUIRE(cluster.nodes[1]->wait(kWaitMs));
  Taken after = taken_by(*cluster.nodes[0]);
  for (int left = 100; left > 0 && after.files > before.files + 8; --left) {
    status_of(cluster);
    after = taken_by(*cluster.nodes[0]);
  }
  CHECK(after.files <= before.files + 8);
  CHECK(after.resident_bytes <= before.resident_bytes + (16 << 20));
}
