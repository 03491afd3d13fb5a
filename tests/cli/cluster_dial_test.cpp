#include "cli/cluster_dial.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <chrono>
#include <future>

#include "protocols/unique_fd.h"

using namespace seer;

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

/// A port of this host that takes connections and says nothing, as one behind a firewall, or of a process that hangs.
struct SilentPort {
  UniqueFd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in at{};
  SilentPort() {
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), size) == 0);
    REQUIRE(::listen(fd.get(), 64) == 0);
    REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
  }
  std::string address() const { return cat("127.0.0.1:", ntohs(at.sin_port)); }
  UniqueFd accept() const { return UniqueFd(::accept(fd.get(), nullptr, nullptr)); }
};

}  // namespace

TEST_CASE("cluster dial: a port that says nothing is given up after five seconds, and the sentence says so") {
  const auto net = *ClusterNet::create({});
  const SilentPort silent;
  const std::atomic<bool> never{false};
  const auto begin = Clock::now();
  const auto found = dial_cluster(*net, silent.address(), "--join", never);
  const auto took = Clock::now() - begin;
  REQUIRE_FALSE(found.ok());
  CHECK(found.error().code == Code::kUnavailable);
  CHECK(took >= seconds(4));
  CHECK(took < ClusterGate::kHandshakeMax);
  CHECK(found.error().detail == cat("--join ", silent.address(), ": no controller answers there, in ", std::chrono::round<seconds>(took).count(),
                                    " s, or it wants --tls-cert, --tls-key and --tls-ca"));
}

TEST_CASE("cluster dial: a request to stop is seen while a port says nothing") {
  const auto net = *ClusterNet::create({});
  const SilentPort silent;
  std::atomic<bool> stop{false};
  auto found = std::async(std::launch::async, [&] { return dial_cluster(*net, silent.address(), "--join", stop); });
  const UniqueFd dialled = silent.accept();
  const auto begin = Clock::now();
  stop.store(true);
  const auto ended = found.get();
  REQUIRE_FALSE(ended.ok());
  CHECK(ended.error().code == Code::kCancelled);
  CHECK(Clock::now() - begin < seconds(4));
}
