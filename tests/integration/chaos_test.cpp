// Rollouts on a cluster whose processes are killed and stopped at random. Whatever happens, each gives the bits of a rollout
// within one process, every response once, and leaves nothing in the pools. SEER_CHAOS_ROUNDS and SEER_CHAOS_SEED try more.
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>

#include "integration/cluster.h"
#include "integration/optional_parts.h"

using namespace seer;

namespace {

enum Act : uint8_t { kKillNode, kStopNode, kKillRollout, kKillController, kKillCluster, kActs };

int number_from_environment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

class Chaos {
 public:
  Chaos(const ScratchFolder& folder, unsigned seed) : folder_(folder), random_(seed) { start_cluster(); }

  /// A rollout to its end, through `acts` of these. Returns its responses.
  Responses run(int round, int acts) {
    const std::string out = folder_.path("out-" + std::to_string(round) + ".jsonl");
    int processes = 0;
    while (true) {
      REQUIRE(++processes < 20);
      ChildProcess seer(rollout(out, {"--cluster", cluster_->address, "--journal", folder_.path("journal"), "--resume"}));
      bool was_cut_off = false;
      int waits = 0;
      while (!was_cut_off && !seer.wait(300 + static_cast<int>(random_() % 500))) {
        REQUIRE_MESSAGE(++waits < kWaitsMax, "it does not end: ", seer.err());
        start_missing_nodes();
        if (acts > 0) was_cut_off = act(seer), --acts;
      }
      REQUIRE(seer.wait(kWaitMs));
      if (seer.exit_code() == 0) return responses_of(out);
      REQUIRE_MESSAGE(was_cut_off, seer.err());
    }
  }
  /// Requests that the pools keep, once all expected machines are there.
  int64_t kept_requests() {
    int64_t kept = 0;
    for (const Json& node : status_of(*cluster_)["nodes"]) kept += node.value("kept_requests", 0);
    return kept;
  }
  int count(Act act) const { return counts_[act]; }
  int count_all() const { return std::accumulate(counts_.begin(), counts_.end(), 0); }

 private:
  static constexpr uint32_t kNodes = 3;
  static constexpr int kWaitsMax = 300;  // of 0.3 to 0.8 s: a rollout takes some seconds, a stopped machine is given up after 8

  void start_cluster() {
    cluster_.reset();
    cluster_ = std::make_unique<Cluster>();
    for (uint32_t name = 1; name < kNodes; ++name) cluster_->join(name);
    stopped_ = 0;
  }
  /// One that was killed comes back under its name once the controller has seen that it is gone; until then it is refused.
  void start_missing_nodes() {
    for (uint32_t name = 1; name < kNodes; ++name)
      if (cluster_->nodes.at(name)->wait(0)) cluster_->start(name);
  }
  /// True: the rollout's process is dead, or will be.
  bool act(ChildProcess& seer) {
    // Stops are noticed only after seconds, and a new cluster takes seconds to start, so both are rarer.
    static constexpr std::array<Act, 12> kDrawn{kKillNode,    kKillNode,    kKillNode,    kKillNode,       kKillNode,       kKillRollout,
                                                kKillRollout, kKillRollout, kStopNode,    kKillController, kKillController, kKillCluster};
    const Act drawn = kDrawn[random_() % kDrawn.size()];
    const uint32_t name = 1 + random_() % (kNodes - 1);
    ChildProcess& node = *cluster_->nodes.at(name);
    switch (drawn) {
      case kKillNode:
        node.send(SIGKILL);
        break;
      case kStopNode:
        if (stopped_ != 0) return false;  // one at a time
        node.send(SIGSTOP);
        stopped_ = name;
        break;
      case kKillRollout:
        seer.send(SIGKILL);
        go_on(stopped_);
        break;
      case kKillController:
        cluster_->nodes.at(0)->send(SIGKILL);
        REQUIRE(cluster_->nodes.at(0)->wait(kWaitMs));
        cluster_->start_controller_again();
        // KV of a rollout that dies before it has entered again is released only a minute later.
        while (!seer.wait(20) && status_of(*cluster_)["rollouts"].empty()) {
        }
        break;
      default:
        seer.send(SIGKILL);
        start_cluster();
    }
    ++counts_[drawn];
    return drawn == kKillRollout || drawn == kKillCluster;
  }
  void go_on(uint32_t name) {
    if (name != 0) cluster_->nodes.at(name)->send(SIGCONT);
    stopped_ = 0;
  }

  const ScratchFolder& folder_;
  std::mt19937 random_;
  std::unique_ptr<Cluster> cluster_;
  uint32_t stopped_ = 0;  // 0: none
  std::array<int, kActs> counts_{};
};

}  // namespace

TEST_CASE("chaos: rollouts whose processes are killed and stopped at random end with the right responses, each once, and keep nothing") {
  if (!has_rocksdb()) return;
  const int rounds = number_from_environment("SEER_CHAOS_ROUNDS", 10);
  const auto seed = static_cast<unsigned>(number_from_environment("SEER_CHAOS_SEED", 1));
  CAPTURE(seed);
  const ScratchFolder folder;
  const Responses right = local_responses(folder);
  REQUIRE(right.size() == 96);
  Chaos chaos(folder, seed);
  // A rollout that ends before all of its acts leaves some to rounds of their own.
  for (int round = 0; round < rounds || (chaos.count_all() < 3 * rounds && round < 2 * rounds); ++round) {
    CAPTURE(round);
    CHECK(chaos.run(round, 4) == right);
    CHECK(chaos.kept_requests() == 0);
  }
  MESSAGE(chaos.count(kKillNode), " nodes killed, ", chaos.count(kStopNode), " stopped, ", chaos.count(kKillRollout),
          " rollouts, ", chaos.count(kKillController), " controllers and ", chaos.count(kKillCluster), " clusters killed");
  CHECK(chaos.count_all() >= 3 * rounds);
}
