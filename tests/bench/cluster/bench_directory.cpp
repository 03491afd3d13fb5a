// Measures how many messages a KV directory takes, to compare with what a rollout asks of it. The directory is in this process;
// another one plays all KV nodes and talks to it over TCP on the loopback. Each request lives as one that moves once: a node keeps its
// blocks, another node looks for them and keeps them too, and the end of the request releases both. So the directory gets 4 messages
// and sends 3. Figures:
//   messages_per_s      that it got
//   cpu_us_per_message  CPU time of the directory's process, for a message that it got and what it sent for it
// Prints one JSON line. Usage: bench_directory [--nodes 64] [--requests 10000] [--window 256] [--seconds 10]
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "actors/kv_directory_actor.h"
#include "cli/cluster_net.h"

namespace {

using namespace seer;

struct Options {
  uint32_t nodes = 64;
  uint32_t requests = 10'000;  // that keep KV all the time, beside those that come and go
  uint32_t window = 256;       // requests that are looked for at a time
  int64_t seconds = 10;
};

double process_cpu_s() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6; };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

struct QuietNode {
  using handle = KvNodeHandle;
  static constexpr const char* kActorName = "quiet_node";
  explicit QuietNode(rt::self_ptr<QuietNode>) {}
  handle::behavior_type make_behavior() {
    return {[](const ReserveBlocks&) {}, [](const OpenBlocks&) {}, [](const KvSeal&) {}, [](const KvAbort&) {},
            [](const KvClose&) {}, [](const KvRelease&) {}, [](const KvBump&) {}, [](const WorkReady&) {},
            [](const KvHolders&) {}, [](const TakeBlocks&) {}, [](const KvRoomFound&) {}, [](const KvReserved&) {},
            [](const KvOpened&) {}, [](const KvRefused&) {}, [](const DirectoryUp&) {}, [](const Tick&) {},
            [](const GetReport&) { return KvNodeReport{}; }};
  }
};

/// Lets requests live, `window` at a time. The count is read by main().
struct Requests {
  using handle = KvHoldersSink;
  static constexpr const char* kActorName = "requests";
  Requests(rt::self_ptr<Requests> self_in, KvDirectoryHandle directory_in, Options options_in, std::atomic<int64_t>* done_in)
      : self(self_in), directory(std::move(directory_in)), options(options_in), done(done_in) {
    for (uint32_t i = 0; i < options.requests; ++i) rt::tell(self, directory, KvHolds{node_of(i), owner_of(RequestId{GroupId{i}, 0})});
    for (uint32_t i = 0; i < options.window; ++i) begin();
  }
  handle::behavior_type make_behavior() {
    return {[this](const KvHolders& found) {
      const KvOwner owner = owner_of(request(found.op));
      if (found.sources.size() != 1) std::abort();
      rt::tell(self, directory, KvHolds{node_of(found.op + 1), owner});
      rt::tell(self, directory, KvRelease{owner});
      ++*done;
      begin();
    }};
  }
  void begin() {
    const uint64_t op = ++last;
    rt::tell(self, directory, KvHolds{node_of(op), owner_of(request(op))});
    rt::tell(self, directory, FindHolders{op, node_of(op + 1), owner_of(request(op)), handle{self}});
  }
  NodeId node_of(uint64_t i) const { return NodeId{static_cast<uint32_t>(i % options.nodes)}; }
  RequestId request(uint64_t op) const { return {GroupId{options.requests + static_cast<uint32_t>(op % 1'000'000'000)}, 0}; }

  rt::self_ptr<Requests> self;
  KvDirectoryHandle directory;
  Options options;
  std::atomic<int64_t>* done;
  uint64_t last = 0;
};

void play_nodes(const Options& options, int port_from, int counts_to) {
  uint16_t port = 0;
  if (::read(port_from, &port, sizeof port) != sizeof port) ::_exit(1);
  const auto net = *ClusterNet::create({});
  rt::system& system = net->system();
  const auto directory = net->dial<KvDirectoryHandle>("127.0.0.1", port);
  if (!directory.ok()) ::_exit(1);
  std::vector<KvNodeHandle> nodes;
  for (uint32_t n = 0; n < options.nodes; ++n) {
    nodes.push_back(rt::spawn<QuietNode>(system));
    rt::post(*directory, KvNodeUp{NodeId{n}, nodes.back()});
  }
  std::atomic<int64_t> done = 0;
  const auto requests = rt::spawn<Requests>(system, *directory, options, &done);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const int64_t before = done;
  char go = 1;
  if (::write(counts_to, &go, 1) != 1) ::_exit(1);
  std::this_thread::sleep_for(std::chrono::seconds(options.seconds));
  const int64_t lived = done - before;
  if (::write(counts_to, &lived, sizeof lived) != sizeof lived) ::_exit(1);
  ::_exit(0);
}

int measure(const Options& options) {
  int ports[2], counts[2];
  if (::pipe(ports) != 0 || ::pipe(counts) != 0) return 1;
  const pid_t child = ::fork();
  if (child == 0) play_nodes(options, ports[0], counts[1]);
  const auto net = *ClusterNet::create({});
  rt::system& system = net->system();
  const auto directory = rt::spawn<KvDirectoryActor>(system);
  const auto port = net->listen(directory, "127.0.0.1", 0);
  char go = 0;
  int64_t lived = 0;
  if (!port.ok() || ::write(ports[1], &*port, sizeof(uint16_t)) != sizeof(uint16_t) || ::read(counts[0], &go, 1) != 1) return 1;
  const double cpu_before = process_cpu_s();
  if (::read(counts[0], &lived, sizeof lived) != sizeof lived) return 1;
  const double cpu_s = process_cpu_s() - cpu_before;
  ::waitpid(child, nullptr, 0);
  const auto messages = static_cast<double>(4 * lived);
  std::cout << nlohmann::json{{"bench", "directory"},
                              {"messages_per_s", messages / static_cast<double>(options.seconds)},
                              {"cpu_us_per_message", cpu_s * 1e6 / messages},
                              {"nodes", options.nodes},
                              {"requests", options.requests}}
                   .dump()
            << std::endl;
  rt::stop(directory);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"KV directory: messages per second"};
  app.add_option("--nodes", options.nodes)->check(CLI::Range(2, 4096));
  app.add_option("--requests", options.requests)->check(CLI::Range(0, 1'000'000));
  app.add_option("--window", options.window)->check(CLI::Range(1, 100'000));
  app.add_option("--seconds", options.seconds)->check(CLI::Range(1, 3600));
  CLI11_PARSE(app, argc, argv);
  return measure(options);
}
