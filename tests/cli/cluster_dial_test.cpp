#include "cli/cluster_dial.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

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

/// A controller that says nothing and counts who asks to watch.
struct CountingController {
  using handle = ClusterHandle;
  static constexpr const char* kActorName = "counting_controller";
  CountingController(rt::self_ptr<CountingController>, std::shared_ptr<std::atomic<int>> watches_in) : watches(std::move(watches_in)) {}
  handle::behavior_type make_behavior() {
    return {[](const Tick&) {}, [](const EnterCluster&) { return ClusterEntered{}; }, [](const NodeReady&) {},
            [](const EnterRollout&) { return RolloutEntered{}; }, [](const RolloutStarted&) {}, [this](const WatchCluster&) { ++*watches; },
            [](const ClusterWeights&) {}, [](const WeightsUpdated&) {}, [](const DrainMachine&) { return Drained{}; },
            [](const GetReport&) { return ClusterReport{}; }};
  }
  std::shared_ptr<std::atomic<int>> watches;
};

}  // namespace

TEST_CASE("cluster dial: a controller that came back is asked for its machines again and again, for it may forget who watches") {
  const auto there = *ClusterNet::create({}), here = *ClusterNet::create({});
  const auto watches = std::make_shared<std::atomic<int>>(0), before = std::make_shared<std::atomic<int>>(0);
  const auto returned = rt::spawn<CountingController>(there->system(), watches);
  const auto dead = rt::spawn<CountingController>(here->system(), before);
  const auto port = there->listen(returned, "127.0.0.1", 0);
  REQUIRE(port.ok());
  ClusterWatch watch(*here, dead, {.address = cat("127.0.0.1:", *port)},
                     {.joined = [](const NodeAddress&, NodeHandle, uint32_t) { return Status(); },
                      .left = [](const PartLost&) {},
                      .enter_again = [](const ClusterHandle&) { return Status(); }});
  rt::kill(dead);
  const auto end = Clock::now() + seconds(60);
  while (*watches < 3 && Clock::now() < end) {
    watch.follow();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(watches->load() >= 3);
  CHECK(before->load() <= 1);
  rt::stop(returned);
}

TEST_CASE("cluster dial: a port that says nothing is given up after five seconds, and the sentence says so") {
  const auto net = *ClusterNet::create({});
  const SilentPort silent;
  const std::atomic<bool> never{false};
  const auto begin = Clock::now();
  const auto found = dial_cluster(*net, silent.address(), "--join", never);
  CHECK(Clock::now() - begin >= seconds(5));
  REQUIRE_FALSE(found.ok());
  CHECK(found.error().code == Code::kUnavailable);
  const std::string& said = found.error().detail;
  const std::string before = cat("--join ", silent.address(), ": no controller answers there, in ");
  REQUIRE_MESSAGE(said.starts_with(before), said);
  size_t digits = 0;
  CHECK(std::stoi(said.substr(before.size()), &digits) >= 5);  // more on a machine that stalls
  CHECK(said.substr(before.size() + digits) == " s, or it wants --tls-cert, --tls-key and --tls-ca");
}

TEST_CASE("cluster dial: a request to stop is seen while a port says nothing") {
  const auto net = *ClusterNet::create({});
  // Unseen, each try takes five seconds. Seen, a try takes so long only if the machine stalls.
  Clock::duration least = seconds(60);
  for (int tries = 0; tries < 10 && least >= seconds(4); ++tries) {
    const SilentPort silent;
    std::atomic<bool> stop{false};
    auto found = std::async(std::launch::async, [&] { return dial_cluster(*net, silent.address(), "--join", stop); });
    const UniqueFd dialled = silent.accept();
    const auto begin = Clock::now();
    stop.store(true);
    const auto ended = found.get();
    least = std::min(least, Clock::now() - begin);
    REQUIRE_FALSE(ended.ok());
    CHECK(ended.error().code == Code::kCancelled);
  }
  CHECK(least < seconds(4));
}
