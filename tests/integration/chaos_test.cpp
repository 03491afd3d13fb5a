// Rollouts on a cluster whose processes are killed and stopped at random. Whatever happens, each gives the bits of a rollout
// within one process, every response once, and leaves no KV in the pools and no connection open. SEER_CHAOS_ROUNDS and
// SEER_CHAOS_SEED try more.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/cluster_actor.h"
#include "integration/cluster.h"
#include "integration/free_rows.h"
#include "integration/optional_parts.h"
#include "protocols/number_from_environment.h"
#include "protocols/tcp_sockets.h"
#include "protocols/text.h"

using namespace seer;

namespace {

// Nodes 0 to 2 have all roles, 0 the controller's too; 3 only keeps KV, 4 only serves drafts.
constexpr uint32_t kNodes = 5;
enum Victim : uint8_t { kController, kNode1, kNode2, kKvNode, kDraftNode, kRollout, kCluster, kVictims };
struct Act {
  Victim victim;
  bool stops;  // until it counts as lost, by SIGSTOP; otherwise SIGKILL
  int times;   // in ten rounds
};
// Stops are noticed only after seconds, and a new cluster takes seconds to start, so both are rarer.
constexpr std::array<Act, 13> kActs{{{kController, false, 4}, {kNode1, false, 6}, {kNode2, false, 6}, {kKvNode, false, 5}, {kDraftNode, false, 4},
                                     {kRollout, false, 6}, {kCluster, false, 2}, {kController, true, 1}, {kNode1, true, 2}, {kNode2, true, 1},
                                     {kKvNode, true, 1}, {kDraftNode, true, 1}, {kRollout, true, 1}}};
constexpr std::array<const char*, kVictims> kNames{"controller", "node 1", "node 2", "KV node", "draft node", "rollout", "cluster"};
constexpr std::chrono::milliseconds kStopFor(9500);  // a silent process counts as lost after 8 s

class Chaos {
 public:
  Chaos(const ScratchFolder& folder, unsigned seed) : folder_(folder), random_(seed) { start_cluster(); }

  /// A rollout to its end, through `acts` of these, or fewer if it ends before. Returns its responses.
  Responses run(int round, int acts) {
    const std::string out = folder_.path("out-" + std::to_string(round) + ".jsonl");
    ran_all_of_it_.clear();
    for (const auto& [name, process] : cluster_->nodes) ran_all_of_it_.insert(process->pid());
    int processes = 0;
    while (true) {
      REQUIRE(++processes < 20);
      ChildProcess seer(rollout(out, {"--cluster", cluster_->address, "--journal", folder_.path("journal"), "--resume"}));
      bool was_cut_off = false;
      int waits = 0;
      while (!was_cut_off && !has_ended_before_next(seer, out)) {
        REQUIRE_MESSAGE(++waits < kWaitsMax, "it does not end: ", seer.err());
        wake_up_if_due();
        start_missing_nodes();
        if (acts > 0) was_cut_off = act(seer), --acts;
      }
      REQUIRE(seer.wait(kWaitMs));
      if (seer.exit_code() == 0) return responses_of(out);
      REQUIRE_MESSAGE(was_cut_off, seer.err());
    }
  }
  /// Waits, for a minute at most, until no machine keeps KV, files that it did not have open before, or connections that are over. Returns
  /// what is left. A controller that was started again may keep KV of rollouts of before for kReturnUs.
  std::string kept() {
    const auto until = std::max(Clock::now(), returned_ + std::chrono::microseconds(ClusterActor::kReturnUs)) + std::chrono::seconds(60);
    std::string kept;
    while (Clock::now() < until) {
      wake_up();
      start_missing_nodes();
      kept.clear();
      const Json status = status_of(*cluster_);
      const auto up = std::ranges::count_if(status["nodes"], [](const Json& node) { return node["state"] == "up"; });
      if (up != kNodes) kept = cat(up, " machines are up; ");
      for (const Json& node : status["nodes"])
        for (const char* const what : {"kept_requests", "dram_used_bytes", "cold_used_bytes"})
          if (const int64_t count = node.value(what, int64_t{0}); count != 0)
            kept += cat("node ", node["node"].get<int>(), ": ", what, " ", count, "; ");
      if (kept.empty()) kept = files_kept();
      if (kept.empty()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return kept;
  }
  int count(Victim victim, bool stops) const { return counts_[victim][stops]; }
  int count_all() const {
    int all = 0;
    for (const auto& [kills, stops] : counts_) all += kills + stops;
    return all;
  }

 private:
  static constexpr int kFilesMore = 4;   // that may not have been there before
  static constexpr int kConnectionsMax = 4;  // of two machines: of actors and of KV, either of them from both sides
  static constexpr int kWaitsMax = 300;  // of 0.8 s at most: a rollout takes some seconds, a stopped machine is given up after 8

  std::map<std::string, std::string> flags_of(uint32_t name) const {
    if (name == kKvNode) return {{"--roles", "kv"}};
    if (name == kDraftNode) return {{"--roles", "draft"}};
    std::map<std::string, std::string> flags{{"--drafting", "grouped"}, {"--draft-profile", kFreeRows}};
    if (name != kController) flags.insert({{"--dram-bytes", "512KiB"}, {"--cold-dir", folder_.path("cold-" + std::to_string(name))}});
    return flags;
  }
  void start_cluster() {
    cluster_.reset();
    cluster_ = std::make_unique<Cluster>(std::map<std::string, std::string>{}, flags_of(kController));
    for (uint32_t name = 1; name < kNodes; ++name) cluster_->start(name, flags_of(name));
    for (uint32_t name = 1; name < kNodes; ++name) wait_for_line(*cluster_->nodes.at(name), cat("node ", name, " has joined, with "));
    stopped_ = 0;
    returned_ = {};
  }
  /// Waits 0.3 to 0.8 s, or on a fast machine until 12 to 24 more responses are there, of 96. True: the rollout has ended before.
  bool has_ended_before_next(ChildProcess& seer, const std::string& out) {
    const auto until = Clock::now() + std::chrono::milliseconds(300 + random_() % 500);
    const auto written = [&] {
      std::ifstream lines(out + ".partial");
      return std::count(std::istreambuf_iterator<char>(lines), {}, '\n');
    };
    const auto enough = written() + 12 + static_cast<int64_t>(random_() % 13);
    while (!seer.wait(5))
      if (Clock::now() >= until || written() >= enough) return false;
    return true;
  }
  /// One that was killed comes back under its name once the controller has seen that it is gone; until then it is refused.
  void start_missing_nodes() {
    for (uint32_t name = 1; name < kNodes; ++name)
      if (cluster_->nodes.at(name)->wait(0)) cluster_->start(name, flags_of(name));
  }
  /// Each act comes as often as kActs says, in an order drawn anew for each ten rounds.
  Act draw() {
    if (drawn_.empty()) {
      for (const Act& act : kActs) drawn_.insert(drawn_.end(), static_cast<size_t>(act.times), act);
      std::ranges::shuffle(drawn_, random_);
    }
    const Act act = drawn_.back();
    drawn_.pop_back();
    return act;
  }
  /// True: the rollout's process is dead, or will be.
  bool act(ChildProcess& seer) {
    const Act now = draw();
    ++counts_[now.victim][now.stops];
    if (now.victim == kCluster) {
      seer.send(SIGKILL);
      start_cluster();
      return true;
    }
    ChildProcess& process = now.victim == kRollout ? seer : *cluster_->nodes.at(now.victim);
    const bool is_one_of_many = now.victim != kRollout && now.victim != kController;
    if (!now.stops) {
      process.send(SIGKILL);
      if (now.victim == kController) restart_controller(seer);
    } else if (is_one_of_many) {
      wake_up();
      process.send(SIGSTOP);
      stopped_ = now.victim;
      wakes_up_ = Clock::now() + kStopFor;
    } else {
      process.send(SIGSTOP);
      std::this_thread::sleep_for(kStopFor);
      process.send(SIGCONT);
    }
    return now.victim == kRollout && !now.stops;
  }
  void restart_controller(ChildProcess& seer) {
    REQUIRE(cluster_->nodes.at(0)->wait(kWaitMs));
    cluster_->start_controller_again(flags_of(kController));
    returned_ = Clock::now();
    // KV of a rollout that dies before it has entered again is released only a minute later.
    const auto end = Clock::now() + std::chrono::milliseconds(kWaitMs);
    while (!seer.wait(20) && status_of(*cluster_)["rollouts"].empty()) REQUIRE_MESSAGE(Clock::now() < end, "it does not enter again: ", seer.err());
  }
  /// Whoever of its peers has died and come back: a process has no connection that its peer has closed, few to each of the others, and
  /// about as many other files open after each round as after its first whole one.
  std::string files_kept() {
    std::map<uint32_t, std::vector<TcpSocket>> sockets_of;
    std::map<std::pair<std::string, std::string>, uint32_t> owners;  // by local and remote address
    for (const auto& [name, process] : cluster_->nodes)
      for (const TcpSocket& socket : sockets_of[name] = tcp_sockets(process->pid())) owners[{socket.local, socket.remote}] = name;
    std::string kept;
    for (const auto& [name, process] : cluster_->nodes) {
      std::map<std::string, int> connections;  // by who has the other end
      int64_t all_connections = 0;
      for (const TcpSocket& socket : sockets_of[name]) {
        if (socket.state == TCP_CLOSE_WAIT) kept += cat("node ", name, ": a connection that its peer has closed; ");
        if (socket.state != TCP_ESTABLISHED) continue;
        const auto peer = owners.find({socket.remote, socket.local});
        ++connections[peer == owners.end() ? "others" : cat("node ", peer->second)];
        ++all_connections;
      }
      for (const auto& [peer, count] : connections)
        if (count > kConnectionsMax) kept += cat("node ", name, ": ", count, " connections with ", peer, "; ");
      if (!ran_all_of_it_.contains(process->pid())) continue;
      const int64_t files = taken_by(*process).files - all_connections;
      int64_t& fewest = fewest_files_.insert({process->pid(), files}).first->second;
      fewest = std::min(fewest, files);
      if (files > fewest + kFilesMore) kept += cat("node ", name, ": ", files, " files, ", fewest, " before; ");
    }
    return kept;
  }
  void wake_up_if_due() {
    if (stopped_ != 0 && Clock::now() >= wakes_up_) wake_up();
  }
  void wake_up() {
    if (stopped_ != 0 && !cluster_->nodes.at(stopped_)->wait(0)) cluster_->nodes.at(stopped_)->send(SIGCONT);
    stopped_ = 0;
  }

  using Clock = std::chrono::steady_clock;
  const ScratchFolder& folder_;
  std::mt19937 random_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<Act> drawn_;
  std::set<pid_t> ran_all_of_it_;          // processes from before the round
  std::map<pid_t, int64_t> fewest_files_;  // after a round, by process
  uint32_t stopped_ = 0;  // 0: none
  Clock::time_point wakes_up_;
  Clock::time_point returned_;  // the controller of this cluster, when it was started again last
  std::array<std::array<int, 2>, kVictims> counts_{};
};

}  // namespace

TEST_CASE("chaos: rollouts whose processes are killed and stopped at random end with the right responses, each once, and keep nothing") {
  if (!has_rocksdb()) return;
  const auto rounds = static_cast<int>(number_from_environment("SEER_CHAOS_ROUNDS").value_or(10));
  const auto seed = static_cast<unsigned>(number_from_environment("SEER_CHAOS_SEED").value_or(1));
  CAPTURE(seed);
  const ScratchFolder folder;
  const Responses right = local_responses(folder);
  REQUIRE(right.size() == 96);
  Chaos chaos(folder, seed);
  // A rollout that ends before all of its acts leaves some to rounds of their own.
  for (int round = 0; round < rounds || (chaos.count_all() < 3 * rounds && round < 10 * rounds); ++round) {
    CAPTURE(round);
    CHECK(chaos.run(round, 4) == right);
    CHECK(chaos.kept() == "");
  }
  std::string counts;
  for (const Act& act : kActs) counts += cat(act.stops ? "stop " : "kill ", kNames[act.victim], " ", chaos.count(act.victim, act.stops), ", ");
  MESSAGE(counts);
  CHECK(chaos.count_all() >= 3 * rounds);
}
