// How fast a rollout recovers from a machine that dies: a cluster of real `seer node` processes on this machine, with a model on
// the CPU; this process owns a rollout that fills them, as `seer rollout --cluster` does. In each round one machine other than the
// controller's is killed (SIGKILL) or falls silent (SIGSTOP), and a new one is started at that moment; or the controller's is
// killed, the KV directory with it, and started again. No request waits: the other machines have room for the lost chunks, so the
// figures measure recovery and not a queue.
//
// Figures, in ms from the signal, for kills, for stops and for kills of the controller:
//   known         the rollout knows that the machine's instance is lost
//   told          the controller has told this process that the machine is gone
//   entered       for the controller: the rollout has entered again and uses the new KV directory
//   placed        the last lost chunk was sent to another machine (it runs after its KV was computed again)
//   first, last   the first tokens of the first and of the last of these chunks came
//   joined        the new machine's instance is known to the rollout; its model was loaded meanwhile
//   working       the first tokens from it
// Each is the median of the rounds, with the lowest and the highest. Prints one JSON line per signal.
//
// With --keepers, a machine that only keeps KV is killed instead, and another is started. The others have little memory for KV, and
// half of the requests wait, so that their KV is on that machine (kept_mib). Its loss ends no chunk, but requests whose turn comes
// next have to compute their KV again. For these: told, joined, and, of the chunks whose first tokens came within 2 s of the kill,
// how many there were (resumed), and the median and the longest time from RunChunk to these tokens (resume, resume_max; of the 2 s
// before the kill: resume_before, resume_before_max).
// Usage: bench_recovery [--model deploy/models/scratchpad-1m8] [--nodes 3] [--requests 48] [--kills 10] [--stops 3]
//                       [--controllers 5] [--keepers 0]
//
// The machines end with this process.
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/fleet.h"
#include "bench/cluster/chunk_relays.h"
#include "bench/cluster/machine_process.h"
#include "cli/cluster_dial.h"
#include "cli/cluster_net.h"
#include "gpu/model/model_config.h"
#include "protocols/hash.h"

namespace {

using namespace seer;

constexpr int64_t kReceiveUs = 1000;
constexpr int64_t kSteadyNs = 3'000'000'000;   // between two rounds
constexpr int64_t kRoundNsMax = 60'000'000'000;
constexpr int64_t kPromptTokens = 64;

struct Options {
  std::string model = "deploy/models/scratchpad-1m8";
  uint32_t nodes = 3;
  uint32_t requests = 48;  // that run at a time, on all machines
  int64_t output_tokens = 900, chunk_tokens = 128;
  int kills = 10, stops = 3, controllers = 5;
  int keepers = 0;  // instead of these
};

/// Where each request runs, and when what was seen of it. Told by the relays; thread-safe.
class RunWatcher final : public ChunkWatcher {
 public:
  struct Seen {
    int64_t up = 0, lost = 0, tokens = 0;  // of an instance: when it was told of, lost, and first gave tokens; 0: not yet
  };
  struct Run {
    InstanceId instance;
    int64_t sent = 0, tokens = 0;  // when its last chunk was sent, and gave its first tokens
  };

  void instance_up(InstanceId id) override {
    const std::lock_guard lock(mutex_);
    instances_[id] = {.up = monotonic_ns(), .lost = instances_[id].lost};
  }
  void instance_lost(InstanceId id) override {
    const std::lock_guard lock(mutex_);
    instances_[id].lost = monotonic_ns();
  }
  void chunk_came(InstanceId id, const RunChunk& chunk) override {
    const std::lock_guard lock(mutex_);
    runs_[chunk.request] = {id, monotonic_ns(), 0};
    requests_[chunk.chunk] = chunk.request;
  }
  void tokens_came(InstanceId id, const ChunkTokens& part) override {
    const std::lock_guard lock(mutex_);
    note_tokens(id, part);
  }
  void chunk_done(InstanceId id, const ChunkDone& done) override {
    const std::lock_guard lock(mutex_);
    note_tokens(id, done.last);
    const auto request = requests_.extract(done.chunk);
    if (!request.empty() && is_over(done.end)) over_.insert(request.mapped());
  }

  Seen seen(InstanceId id) const {
    const std::lock_guard lock(mutex_);
    const auto at = instances_.find(id);
    return at == instances_.end() ? Seen{} : at->second;
  }
  /// Requests that have given tokens on this instance and run there.
  std::vector<RequestId> running_on(InstanceId id) const {
    const std::lock_guard lock(mutex_);
    std::vector<RequestId> found;
    for (const auto& [request, run] : runs_)
      if (run.instance == id && run.tokens > 0 && !over_.contains(request)) found.push_back(request);
    return found;
  }
  Run run(RequestId request) const {
    const std::lock_guard lock(mutex_);
    return runs_.at(request);
  }
  /// From RunChunk to the first tokens, of chunks whose first tokens came between these times, in ms; the shortest first.
  std::vector<double> resumes(int64_t from, int64_t to) const {
    const std::lock_guard lock(mutex_);
    std::vector<double> found;
    for (const Run& run : begun_)
      if (run.tokens >= from && run.tokens < to) found.push_back(static_cast<double>(run.tokens - run.sent) / 1e6);
    std::ranges::sort(found);
    return found;
  }

 private:
  void note_tokens(InstanceId id, const ChunkTokens& part) {
    const auto request = requests_.find(part.chunk);
    if (request == requests_.end() || part.output.empty()) return;
    const int64_t now = monotonic_ns();
    Run& run = runs_.at(request->second);
    if (run.instance == id && run.tokens == 0) {
      run.tokens = now;
      begun_.push_back(run);
    }
    if (Seen& seen = instances_[id]; seen.tokens == 0) seen.tokens = now;
  }

  mutable std::mutex mutex_;
  std::map<InstanceId, Seen> instances_;
  std::map<RequestId, Run> runs_;
  std::vector<Run> begun_;                 // chunks that gave tokens
  std::map<ChunkId, RequestId> requests_;  // of open chunks
  std::set<RequestId> over_;
};

/// The machines of a cluster, the controller's first.
class Machines {
 public:
  explicit Machines(const Options& options) : options_(options) {}

  Status start_first() {
    SEER_RETURN_IF_ERROR(start(0));
    const std::string words = "node 0 is the controller, with 1 instances, at ";
    const std::string line = machines_.at(0)->line().value_or("");
    if (!line.starts_with(words)) return fail(Code::kUnavailable, "the controller did not start");
    address_ = line.substr(words.size());
    const uint32_t all = options_.nodes + (options_.keepers > 0 ? 1 : 0);
    for (uint32_t name = 1; name < all; ++name) SEER_RETURN_IF_ERROR(start(name));
    for (uint32_t name = 1; name < all; ++name)
      if (!machines_.at(name)->line()) return fail(Code::kUnavailable, "machine ", name, " did not start");
    return {};
  }
  Status start(uint32_t name) {
    const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "seer";
    if (!std::filesystem::exists(program)) return fail(Code::kNotFound, "no program ", program.string(), ": build it too");
    const bool only_keeps = options_.keepers > 0 && name >= options_.nodes, keeps_little = options_.keepers > 0 && !only_keeps;
    const uint32_t batch = keeps_little ? std::max(1u, options_.requests / (2 * options_.nodes)) : options_.requests;
    std::vector<std::string> arguments{program, "node", "--name", cat(name), "--dram-bytes", keeps_little ? "2MiB" : "64MiB"};
    if (only_keeps)
      arguments.insert(arguments.end(), {"--roles", "kv"});
    else
      arguments.insert(arguments.end(), {"--model", options_.model, "--instances", "1", "--threads-per-instance", "1", "--max-batch",
                                         cat(batch), "--kv-bytes", "64MiB", "--drafting", "off"});
    if (name > 0) arguments.insert(arguments.end(), {"--join", address_});
    if (name == 0 && !address_.empty()) arguments.insert(arguments.end(), {"--listen", address_});
    machines_[name] = std::make_unique<MachineProcess>(std::move(arguments));
    return {};
  }
  /// Kills it first.
  Status start_again(uint32_t name) {
    machines_.erase(name);
    return start(name);
  }
  const MachineProcess& at(uint32_t name) const { return *machines_.at(name); }
  void forget(uint32_t name) { machines_.erase(name); }
  const std::string& address() const { return address_; }

 private:
  const Options& options_;
  std::map<uint32_t, std::unique_ptr<MachineProcess>> machines_;
  std::string address_;
};

/// A rollout that goes on and on: a new group comes for each that is over.
class EndlessRollout {
 public:
  EndlessRollout(const Options& options, ClusterNet& net, const std::string& address, const ClusterHandle& controller,
                 const RolloutEntered& entered)
      : options_(options),
        entered_(entered),
        fleet_(net.system(), entered.directory, {}),
        system_(net.system()),
        watch_(net, controller, {.address = address},
               {.joined = [this](const NodeAddress& at, NodeHandle node, uint32_t) { return join(at.node, std::move(node)); },
                .left = [this](const PartLost& lost) { leave(lost); },
                .enter_again = [this, &net, address](const ClusterHandle& again) { return enter_again(net, address, again); }}),
        events_(net.system()) {
    RolloutConfig config{.id = entered.id, .version = entered.version, .instances_expected = options.nodes};
    config.scheduler.policy = "seer";
    config.scheduler.chunk_tokens = options.chunk_tokens;
    config.open = true;
    rollout_ = fleet_.start_rollout(config, {}, events_.handle());
    rt::post(controller, RolloutStarted{entered.id, rollout_});
    for (uint32_t i = 0; i < options.requests; ++i) add_request();
  }
  ~EndlessRollout() { rt::post(rollout_, StopRollout{}); }

  /// False: it has ended, or that was not so in time.
  template <class Until>
  bool run_until(int64_t ns, const Until& until) {
    const RolloutListener listener{.response = [this](Response&) { add_request(); },
                                   .progress = {},
                                   .commits = {},
                                   .summary = [this](RolloutSummary&) { over_ = true; }};
    for (const int64_t end = monotonic_ns() + ns; !over_ && monotonic_ns() < end;) {
      watch_.follow();
      receive_event(events_, kReceiveUs, listener);
      if (until()) return true;
    }
    return false;
  }
  const RunWatcher& watcher() const { return *watcher_; }
  double kept_mib(NodeId node) {
    rt::Inbox<> inbox(system_);
    for (const KvNodeReport& kept : inbox.ask<std::vector<KvNodeReport>>(fleet_.directory(), GetReport{}))
      if (kept.node == node) return static_cast<double>(kept.dram_used_bytes) / (1 << 20);
    return 0;
  }
  /// When it came in again last; 0: never.
  int64_t entered_ns() const { return entered_ns_; }
  /// When this process was told that the machine is gone; 0: not yet.
  int64_t told_ns(NodeId node) const {
    const auto at = left_.find(node);
    return at == left_.end() ? 0 : at->second;
  }
  /// When this process reached the machine; 0: not yet.
  int64_t joined_ns(NodeId node) const {
    const auto at = joined_.find(node);
    return at == joined_.end() ? 0 : at->second;
  }

 private:
  Status join(NodeId id, NodeHandle node) {
    joined_[id] = monotonic_ns();
    nodes_[id] = rt::spawn<NodeRelay>(system_, std::move(node), std::shared_ptr<ChunkWatcher>(watcher_));
    return fleet_.add_node(id, nodes_[id]);
  }
  Status enter_again(ClusterNet& net, const std::string& address, const ClusterHandle& controller) {
    SEER_ASSIGN_OR_RETURN(const RolloutEntered again, enter_rollout(net, address, controller, {.id = entered_.id, .identity = {}}));
    fleet_.use_directory(again.directory);
    rt::post(controller, RolloutStarted{entered_.id, rollout_});
    entered_ns_ = monotonic_ns();
    return {};
  }
  void leave(const PartLost& lost) {
    left_[lost.node] = monotonic_ns();
    fleet_.lose_node(lost);
  }
  void add_request() {
    GroupSpec group;
    for (int64_t i = 0; i < kPromptTokens; ++i) group.prompt_ids.push_back(2 + static_cast<int32_t>(hash_pair(groups_, i) % 50));
    group.samples = 1;
    group.sampling.max_tokens = options_.output_tokens / 2 + static_cast<int64_t>(mix64(groups_) % (options_.output_tokens / 2));
    group.sampling.ignore_eos = true;
    group.seeds = {groups_++};
    rt::post(rollout_, AddGroups{{group}});
  }

  const Options& options_;
  const RolloutEntered entered_;
  const std::shared_ptr<RunWatcher> watcher_ = std::make_shared<RunWatcher>();
  std::map<NodeId, NodeHandle> nodes_;
  std::map<NodeId, int64_t> joined_, left_;
  int64_t entered_ns_ = 0;
  uint64_t groups_ = 0;
  bool over_ = false;
  Fleet fleet_;
  rt::system& system_;
  ClusterWatch watch_;
  rt::Inbox<RolloutEvents> events_;
  RolloutHandle rollout_;
};

using Figures = std::map<std::string, std::vector<double>>;

/// One machine gets the signal, and one of another name starts; or the controller's is killed, and starts again.
Status run_round(int signal, uint32_t victim, uint32_t next, Machines& machines, EndlessRollout& rollout, Figures& figures) {
  const RunWatcher& watcher = rollout.watcher();
  const InstanceId gone = node_instance(NodeId{victim}, 0), comes = node_instance(NodeId{next}, 0);
  const bool is_busy = rollout.run_until(kRoundNsMax, [&] { return watcher.running_on(gone).size() >= 2; });
  if (!is_busy) return fail(Code::kUnavailable, "nothing runs on machine ", victim);
  const bool is_controller = victim == 0;
  const std::vector<RequestId> hit = watcher.running_on(gone);
  const int64_t from = monotonic_ns();
  machines.at(victim).send(signal);
  SEER_RETURN_IF_ERROR(is_controller ? machines.start_again(0) : machines.start(next));
  std::map<RequestId, RunWatcher::Run> moved;  // the first run elsewhere that gave tokens
  const bool recovered = rollout.run_until(kRoundNsMax, [&] {
    for (const RequestId request : hit)
      if (const auto run = watcher.run(request); run.instance != gone && run.tokens > 0) moved.emplace(request, run);
    const bool is_told = is_controller ? rollout.entered_ns() > from : rollout.told_ns(NodeId{victim}) > 0;
    return is_told && watcher.seen(gone).lost > from && watcher.seen(comes).up > from && watcher.seen(comes).tokens > 0 &&
           moved.size() == hit.size();
  });
  if (!recovered) return fail(Code::kUnavailable, "no recovery from the end of machine ", victim);

  const auto add = [&](const char* name, int64_t at) { figures[name].push_back(static_cast<double>(at - from) / 1e6); };
  int64_t placed = 0, first = INT64_MAX, last = 0;
  for (const auto& [request, run] : moved) {
    placed = std::max(placed, run.sent);
    first = std::min(first, run.tokens);
    last = std::max(last, run.tokens);
  }
  add("known", watcher.seen(gone).lost);
  is_controller ? add("entered", rollout.entered_ns()) : add("told", rollout.told_ns(NodeId{victim}));
  add("placed", placed);
  add("first", first);
  add("last", last);
  add("joined", watcher.seen(comes).up);
  add("working", watcher.seen(comes).tokens);
  figures["chunks"].push_back(static_cast<double>(hit.size()));
  if (!is_controller) machines.forget(victim);
  return {};
}

/// The machine that only keeps KV is killed, and one of another name starts.
Status run_keeper_round(uint32_t victim, uint32_t next, Machines& machines, EndlessRollout& rollout, Figures& figures) {
  constexpr int64_t kWindowNs = 2'000'000'000;
  figures["kept_mib"].push_back(rollout.kept_mib(NodeId{victim}));
  const int64_t from = monotonic_ns();
  machines.at(victim).send(SIGKILL);
  SEER_RETURN_IF_ERROR(machines.start(next));
  const bool recovered = rollout.run_until(kRoundNsMax, [&] {
    return rollout.told_ns(NodeId{victim}) > 0 && rollout.joined_ns(NodeId{next}) > 0 && monotonic_ns() - from > kWindowNs;
  });
  if (!recovered) return fail(Code::kUnavailable, "no recovery from the end of machine ", victim);
  figures["told"].push_back(static_cast<double>(rollout.told_ns(NodeId{victim}) - from) / 1e6);
  figures["joined"].push_back(static_cast<double>(rollout.joined_ns(NodeId{next}) - from) / 1e6);
  const auto add_resumes = [&](const std::string& name, int64_t start) {
    const std::vector<double> all = rollout.watcher().resumes(start, start + kWindowNs);
    if (all.empty()) return;
    figures[name].push_back(all[all.size() / 2]);
    figures[name + "_max"].push_back(all.back());
  };
  add_resumes("resume_before", from - kWindowNs);
  add_resumes("resume", from);
  figures["resumed"].push_back(static_cast<double>(rollout.watcher().resumes(from, from + kWindowNs).size()));
  machines.forget(victim);
  return {};
}

void print(const char* who, const char* signal, Figures figures) {
  nlohmann::ordered_json line = {{"bench", "recovery"}, {"of", who}, {"signal", signal}};
  for (const char* name : {"chunks", "kept_mib", "resumed", "known", "told", "entered", "placed", "first", "last", "joined", "working",
                           "resume_before", "resume_before_max", "resume", "resume_max"}) {
    std::vector<double>& all = figures[name];
    if (all.empty()) continue;
    line["rounds"] = all.size();
    std::ranges::sort(all);
    line[name] = {{"median", all[all.size() / 2]}, {"min", all.front()}, {"max", all.back()}};
  }
  std::cout << line.dump() << std::endl;
}

Status run_bench(const Options& options) {
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<ClusterNet> made, ClusterNet::create({}));
  ClusterNet* const net = made.release();  // never ends: it would wait for relays whose handles other processes were given
  Machines machines(options);
  SEER_RETURN_IF_ERROR(machines.start_first());
  const std::atomic<bool> never{false};
  SEER_ASSIGN_OR_RETURN(const ClusterHandle controller, dial_cluster(*net, machines.address(), "--cluster", never));
  SEER_ASSIGN_OR_RETURN(const RolloutEntered entered, enter_rollout(*net, machines.address(), controller));
  EndlessRollout rollout(options, *net, machines.address(), controller, entered);
  if (options.keepers > 0) {
    Figures of_keeper;
    for (uint32_t victim = options.nodes; victim < options.nodes + static_cast<uint32_t>(options.keepers); ++victim) {
      rollout.run_until(kSteadyNs, [] { return false; });
      SEER_RETURN_IF_ERROR(run_keeper_round(victim, victim + 1, machines, rollout, of_keeper));
    }
    print("keeper", "SIGKILL", of_keeper);
    return {};
  }
  std::map<int, Figures> figures;
  for (int round = 0; round < options.kills + options.stops; ++round) {
    const int signal = round < options.kills ? SIGKILL : SIGSTOP;
    // The one that came first goes first; each has another name.
    const uint32_t victim = 1 + static_cast<uint32_t>(round), next = victim + options.nodes - 1;
    rollout.run_until(kSteadyNs, [] { return false; });
    SEER_RETURN_IF_ERROR(run_round(signal, victim, next, machines, rollout, figures[signal]));
  }
  Figures of_controller;
  for (int round = 0; round < options.controllers; ++round) {
    rollout.run_until(kSteadyNs, [] { return false; });
    SEER_RETURN_IF_ERROR(run_round(SIGKILL, 0, 0, machines, rollout, of_controller));
  }
  if (options.kills > 0) print("machine", "SIGKILL", figures[SIGKILL]);
  if (options.stops > 0) print("machine", "SIGSTOP", figures[SIGSTOP]);
  if (options.controllers > 0) print("controller", "SIGKILL", of_controller);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"recovery from machines that die"};
  app.add_option("--model", options.model);
  app.add_option("--nodes", options.nodes)->check(CLI::Range(2, 16));
  app.add_option("--requests", options.requests, "that run at a time")->check(CLI::Range(8, 1024));
  app.add_option("--output-tokens", options.output_tokens, "at most")->check(CLI::Range(100, 900));
  app.add_option("--chunk-tokens", options.chunk_tokens)->check(CLI::Range(1, 100'000));
  app.add_option("--kills", options.kills)->check(CLI::Range(0, 1000));
  app.add_option("--stops", options.stops)->check(CLI::Range(0, 1000));
  app.add_option("--controllers", options.controllers)->check(CLI::Range(0, 1000));
  app.add_option("--keepers", options.keepers)->check(CLI::Range(0, 1000));
  CLI11_PARSE(app, argc, argv);
  const Status done = run_bench(options);
  if (!done.ok()) std::cerr << done.error().detail << std::endl;
  ::_exit(done.ok() ? 0 : 1);  // with threads of the actors
}
