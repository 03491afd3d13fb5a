// Measures how long a free slot waits for its next chunk while 10 000 requests wait. 8 processes are the machines of a cluster,
// with 8 instances each; this process owns the rollout, as `seer rollout --cluster` does. They talk over TCP on the loopback,
// through the gates of a real cluster. Only the engines are simulated: their steps take --step-ms of real time and no CPU
// (real_time_engine.h).
//
// Figures, after --warmup seconds, over all chunks that began in --seconds:
//   delay_ms      from the ChunkDone that frees a slot, as it leaves the instance, until the RunChunk that fills the slot arrives
//   idle_ms       the same from the end of the chunk's last step on the engine. Before ChunkDone the tail of the chunk's KV goes to
//                 the pool; the engine copies it after the next step, which adds about --step-ms
//   controller_cpu_us_per_placement   CPU time of this process, of all its threads
// Prints one JSON line. Usage: bench_schedule [--nodes 8] [--instances 8] [--rows 8] [--waiting 10000] [--chunk-tokens 100]
// [--step-ms 20] [--warmup 15] [--seconds 30] [--policy seer]
//
// The machines end when their standard input does, so none is left when this process is interrupted or killed.
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "actors/cluster_actor.h"
#include "actors/fleet.h"
#include "bench/cluster/chunk_relays.h"
#include "bench/cluster/machine_process.h"
#include "bench/cluster/real_time_engine.h"
#include "cli/cluster_dial.h"
#include "cli/cluster_net.h"
#include "cli/machine_parts.h"
#include "protocols/cpu_time.h"
#include "protocols/hash.h"

namespace {

using namespace seer;

constexpr uint32_t kGroupSize = 16;
constexpr int64_t kPromptTokens = 64;
constexpr int64_t kOutputTokensMin = 200, kOutputTokensMax = 2000;
constexpr uint32_t kBlockTokens = 16;
constexpr int64_t kBlockBytes = kSimTokenBytes * kBlockTokens;
constexpr int32_t kVocab = 32'000;
constexpr int64_t kDramBytes = 64 << 20;
constexpr int64_t kReceiveUs = 20'000;

struct Options {
  uint32_t nodes = 8, instances = 8;  // instances of each node
  int32_t rows = 8;                   // of each instance
  int64_t waiting = 10'000;
  int64_t chunk_tokens = 100;
  double step_ms = 20;
  int64_t warmup_s = 15, seconds = 30;
  std::string policy = "seer";
  int node = -1;     // of a machine's process: its name
  std::string join;  // and the controller's address
};

// ---- a machine's process ---------------------------------------------------------------------------------------------------

class TimesOfInstances final : public ChunkWatcher {
 public:
  void add(InstanceId id) { times_.emplace(id, std::make_shared<ChunkTimes>()); }
  const std::shared_ptr<ChunkTimes>& of(InstanceId id) const { return times_.at(id); }
  void chunk_came(InstanceId id, const RunChunk& chunk) override {
    const int64_t left = chunk.log.prompt_tokens() + chunk.sampling.max_tokens - chunk.log.size();
    of(id)->chunk_came(chunk.seed, chunk.log.size() + std::min(chunk.max_new_tokens, left));
  }
  void chunk_done(InstanceId id, const ChunkDone&) override { of(id)->end_told(); }
  void print_samples() const {
    for (const auto& [id, times] : times_)
      for (const ChunkTimes::Sample& s : times->samples()) std::cout << s.at << ' ' << s.idle << ' ' << s.delay << '\n';
  }

 private:
  std::map<InstanceId, std::shared_ptr<ChunkTimes>> times_;
};

int32_t token(uint64_t seed, int64_t position) {
  return 2 + static_cast<int32_t>(hash_pair(seed, static_cast<uint64_t>(position)) % (kVocab - 2));
}

SimEngineConfig engine_config(const Options& options) {
  const int64_t blocks_of_request = (kPromptTokens + kOutputTokensMax) / kBlockTokens + 2;
  const auto step_us = static_cast<int64_t>(1000 * options.step_ms);
  return {.info = {.model = "simulated", .vocab_size = kVocab, .context_tokens_max = kPromptTokens + kOutputTokensMax,
                   .block_tokens = kBlockTokens, .block_bytes = kBlockBytes,
                   .device_blocks = static_cast<int32_t>(2 * options.rows * blocks_of_request),
                   .kv_layout = 1, .kv_hash = 1},
          .step_us_base = step_us};
}

/// As node_command() does it, with these makers and with relays.
Status run_node(const Options& options) {
  const NodeId id{static_cast<uint32_t>(options.node)};
  const std::atomic<bool> never{false};
  Timer timer;
  const auto times = std::make_shared<TimesOfInstances>();
  NodeConfig config{.node = id, .kv_node = {.node = id}};
  for (uint32_t i = 0; i < options.instances; ++i) {
    const InstanceId instance = node_instance(id, i);
    config.instances.push_back({.id = instance, .rows_max = options.rows});
    times->add(instance);
  }

  SEER_ASSIGN_OR_RETURN(const std::unique_ptr<ClusterNet> net, ClusterNet::create({}));
  rt::system& system = net->system();
  ClusterHandle controller;
  if (options.join.empty()) {
    controller = rt::spawn<ClusterActor>(system, uint64_t{1}, EventLog{});
    SEER_ASSIGN_OR_RETURN(const uint16_t port, net->listen(controller, "127.0.0.1", 0));
    std::cout << "127.0.0.1:" << port << std::endl;
  } else {
    SEER_ASSIGN_OR_RETURN(controller, dial_cluster(*net, options.join, "--join", never));
  }
  SlowWork aside({}, [](std::function<void()>& f) { f(); });
  rt::Inbox<> inbox(system);
  SEER_ASSIGN_OR_RETURN(const ClusterTransport transport, make_cluster_transport(true));
  NodeMakers makers;
  makers.transport = transport.transport;
  makers.aside = [&aside](std::function<void()> f) { aside.put(std::move(f)); };
  makers.make_engine = [&options, &timer, times](InstanceId instance) -> Result<std::shared_ptr<Engine>> {
    const auto oracle = [](uint64_t seed, int64_t position, std::span<SampledToken> sampled) {
      for (SampledToken& next : sampled) next.token = token(seed, position++);
    };
    return std::shared_ptr<Engine>(std::make_shared<RealTimeEngine>(engine_config(options), oracle, timer, times->of(instance)));
  };
  makers.make_arena = [slabs = transport.slabs](NodeId) {
    return HostArena::create({.dram_bytes = kDramBytes, .block_bytes = kBlockBytes}, slabs);
  };
  const auto shared_makers = std::make_shared<const NodeMakers>(std::move(makers));
  SEER_ASSIGN_OR_RETURN(NodeMachinery machinery, make_machinery(config, *shared_makers));
  const auto entered = inbox.ask<ClusterEntered>(
      controller, EnterCluster{id, instance_identity(machinery.instances.begin()->second.engine->info(), 0)}, {.error = "no answer"});
  if (!entered.error.empty()) return fail(Code::kUnavailable, entered.error);
  config.epoch = entered.epoch;
  const NodeHandle node = start_node(system, config, shared_makers, std::move(machinery), entered.directory);
  const NodeHandle relay = rt::spawn<NodeRelay>(system, node, std::shared_ptr<ChunkWatcher>(times));
  SEER_ASSIGN_OR_RETURN(const uint16_t port, net->listen(relay, "127.0.0.1", 0));
  rt::post(controller, NodeReady{{id, "127.0.0.1", port}, relay, options.instances});
  std::map<NodeId, NodeHandle> others;
  const auto joined = [&](const NodeAddress& at, NodeHandle handle, uint32_t) { return others[at.node] = std::move(handle), Status(); };
  ClusterWatch watch(*net, controller, {.address = {}, .self = id, .wait_s = 0},
                     {.joined = joined, .left = [&](const PartLost& lost) { others.erase(lost.node); }, .enter_again = {}});
  std::cout << "up" << std::endl;

  // What comes on the input tells to give the samples; its end, to end.
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  char byte = 0;
  while (::poll(&input, 1, 50) == 0) watch.follow();
  if (::read(STDIN_FILENO, &byte, 1) == 1) times->print_samples();
  std::cout << "over" << std::endl;
  ::_exit(0);  // the other processes end too: nobody is told
}

// ---- the rollout's process ---------------------------------------------------------------------------------------------------

std::vector<GroupSpec> make_groups(const Options& options, RolloutId rollout) {
  const int64_t requests = options.waiting + int64_t{options.nodes} * options.instances * options.rows * 3;
  std::vector<GroupSpec> groups;
  for (uint32_t g = 0; g * int64_t{kGroupSize} < requests; ++g) {
    GroupSpec group;
    group.id = GroupId{g, rollout};
    for (int64_t i = 0; i < kPromptTokens; ++i) group.prompt_ids.push_back(token(g, i));
    group.samples = kGroupSize;
    group.sampling.max_tokens = kOutputTokensMin + static_cast<int64_t>(mix64(g) % (kOutputTokensMax - kOutputTokensMin));
    group.sampling.ignore_eos = true;
    for (uint32_t s = 0; s < kGroupSize; ++s) group.seeds.push_back(sample_seed(1, g, s));
    groups.push_back(std::move(group));
  }
  return groups;
}

nlohmann::ordered_json quantiles(std::vector<int64_t> ns) {
  std::ranges::sort(ns);
  const auto at = [&](double share) {
    const auto i = static_cast<size_t>(share * static_cast<double>(ns.size() - 1));
    return static_cast<double>(ns[i] / 1000) / 1000;
  };
  return {{"p50", at(0.5)}, {"p90", at(0.9)}, {"p99", at(0.99)}, {"max", at(1)}};
}

/// The controller's machine is the first. Errors: one did not start.
Status start_machines(const Options& options, std::vector<std::unique_ptr<MachineProcess>>& machines,
                      std::string& address) {
  for (uint32_t node = 0; node < options.nodes; ++node) {
    std::vector<std::string> arguments{"/proc/self/exe", "--node", cat(node), "--instances", cat(options.instances),
                                       "--rows", cat(options.rows), "--step-ms", cat(options.step_ms)};
    if (node > 0) arguments.insert(arguments.end(), {"--join", address});
    machines.push_back(std::make_unique<MachineProcess>(arguments));
    if (node == 0) address = machines[0]->line().value_or("");
    if (machines[node]->line() != "up") return fail(Code::kUnavailable, "machine ", node, " did not start");
  }
  return {};
}

struct Counted {
  int64_t waiting_min = INT64_MAX, requests_done = 0;
  int64_t cpu_ns = 0, from_ns = 0, to_ns = 0;
};

/// Runs the rollout for the time.
Result<Counted> run_rollout(const Options& options, const std::string& address) {
  const std::atomic<bool> never{false};
  SEER_ASSIGN_OR_RETURN(const std::unique_ptr<ClusterNet> net, ClusterNet::create({}));
  SEER_ASSIGN_OR_RETURN(const ClusterHandle controller, dial_cluster(*net, address, "--cluster", never));
  SEER_ASSIGN_OR_RETURN(const RolloutEntered entered, enter_rollout(*net, address, controller));
  Fleet fleet(net->system(), entered.directory, {});
  ClusterWatch watch(*net, controller, {.address = address, .wait_s = 0},
                     {.joined = [&](const NodeAddress& at, NodeHandle node, uint32_t) { return fleet.add_node(at.node, std::move(node)); },
                      .left = [&](const PartLost& lost) { fleet.lose_node(lost); },
                      .enter_again = {}});
  RolloutConfig config{.id = entered.id, .version = entered.version,
                       .instances_expected = size_t{options.nodes} * options.instances};
  config.scheduler.policy = options.policy;
  config.scheduler.chunk_tokens = options.chunk_tokens;
  rt::Inbox<RolloutEvents> events(net->system());
  const RolloutHandle rollout = fleet.start_rollout(config, {make_groups(options, entered.id)}, events.handle());
  rt::post(controller, RolloutStarted{entered.id, rollout});

  Counted counted;
  bool started = false, over = false;
  const RolloutListener listener{.response = {},
                                 .progress =
                                     [&](const RolloutProgress& progress) {
                                       counted.waiting_min = std::min(counted.waiting_min, progress.waiting);
                                       counted.requests_done = progress.done;
                                       started = started || progress.running > 0;
                                     },
                                 .commits = {},
                                 .summary = [&](RolloutSummary&) { over = true; }};
  const auto run_for = [&](int64_t ns) {
    for (const int64_t end = monotonic_ns() + ns; !over && monotonic_ns() < end;) {
      watch.follow();
      receive_event(events, kReceiveUs, listener);
    }
  };
  while (!started && !over) run_for(kReceiveUs * 1000);
  run_for(options.warmup_s * 1'000'000'000);
  counted = {.cpu_ns = -cpu_ns(CLOCK_PROCESS_CPUTIME_ID), .from_ns = monotonic_ns()};
  run_for(options.seconds * 1'000'000'000);
  counted.cpu_ns += cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
  counted.to_ns = monotonic_ns();
  if (over) return fail(Code::kUnavailable, "the rollout ended too early");
  return counted;
}

Status run_bench(const Options& options) {
  std::vector<std::unique_ptr<MachineProcess>> machines;
  std::string address;
  SEER_RETURN_IF_ERROR(start_machines(options, machines, address));
  SEER_ASSIGN_OR_RETURN(const Counted counted, run_rollout(options, address));
  std::vector<int64_t> idle, delay;
  for (const auto& machine : machines) {
    machine->write('s');
    for (auto line = machine->line(); line && line != "over"; line = machine->line()) {
      std::istringstream fields(*line);
      ChunkTimes::Sample sample;
      fields >> sample.at >> sample.idle >> sample.delay;
      if (sample.at < counted.from_ns || sample.at > counted.to_ns) continue;
      idle.push_back(sample.idle);
      delay.push_back(sample.delay);
    }
  }
  if (idle.empty()) return fail(Code::kUnavailable, "no chunk ended");
  const double seconds = static_cast<double>(counted.to_ns - counted.from_ns) / 1e9, chunks = static_cast<double>(idle.size());
  const nlohmann::ordered_json line = {{"bench", "schedule"},
                                       {"policy", options.policy},
                                       {"step_ms", options.step_ms},
                                       {"chunk_tokens", options.chunk_tokens},
                                       {"processes", options.nodes},
                                       {"instances", options.nodes * options.instances},
                                       {"rows", options.nodes * options.instances * static_cast<uint32_t>(options.rows)},
                                       {"waiting_min", counted.waiting_min},
                                       {"placements", idle.size()},
                                       {"placements_per_s", chunks / seconds},
                                       {"delay_ms", quantiles(delay)},
                                       {"idle_ms", quantiles(idle)},
                                       {"controller_cpu_us_per_placement", static_cast<double>(counted.cpu_ns) / 1000 / chunks},
                                       {"controller_cpu_share", static_cast<double>(counted.cpu_ns) / 1e9 / seconds}};
  std::cout << line.dump() << std::endl;
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"scheduling delay of a cluster of processes"};
  app.add_option("--nodes", options.nodes)->check(CLI::Range(1, 64));
  app.add_option("--instances", options.instances, "of each node")->check(CLI::Range(1, 64));
  app.add_option("--rows", options.rows, "of each instance")->check(CLI::Range(1, 1024));
  app.add_option("--waiting", options.waiting)->check(CLI::Range(1, 10'000'000));
  app.add_option("--chunk-tokens", options.chunk_tokens)->check(CLI::Range(1, 100'000));
  app.add_option("--step-ms", options.step_ms)->check(CLI::Range(0.1, 10'000.0));
  app.add_option("--warmup", options.warmup_s)->check(CLI::Range(0, 3600));
  app.add_option("--seconds", options.seconds)->check(CLI::Range(1, 3600));
  app.add_option("--policy", options.policy);
  app.add_option("--node", options.node, "of a machine's process")->group("");
  app.add_option("--join", options.join, "likewise")->group("");
  CLI11_PARSE(app, argc, argv);
  const Status done = options.node >= 0 ? run_node(options) : run_bench(options);
  if (!done.ok()) std::cerr << done.error().detail << "\n";
  return done.ok() ? 0 : 1;
}
