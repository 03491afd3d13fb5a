// A gateway before simulated machines, for tests.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "actors/cluster_checks.h"
#include "actors/gateway_actor.h"

namespace seer {

/// A gateway in front of a simulated cluster; clients ask for the cluster's groups.
struct GatewayBench {
  using ChooseSchedule = decltype(GatewayFleet::choose_schedule);

  explicit GatewayBench(SimClusterOptions options = {}, GatewayConfig config = {}, ChooseSchedule choose = {}, NodeId silent = kNoNode) : cluster(std::move(options)) {
    config.rollout.scheduler = cluster.options.scheduler;
    config.rollout.instances_expected = cluster.options.instances;
    fleet = {
        .start_rollout =
            [this](RolloutConfig c, const RolloutEvents& events) {
              if (before_rollout) before_rollout(c);
              const RolloutId id = c.id;
              ++rollouts;
              RolloutHandle rollout = cluster.fleet.start_rollout(std::move(c), {}, events);
              if (rollout_started) rollout_started(id, rollout);
              return rollout;
            },
        .end_rollout = [this](RolloutId id) { cluster.fleet.end_rollout(id); },
        .update_weights =
            [this, silent](const NewWeights& weights, const WeightsSink& reply_to) {
              if (are_lazy) {
                late = {weights, reply_to};
                return node_names();
              }
              std::vector<NodeId> nodes = cluster.fleet.update_weights(weights, reply_to);
              if (silent != kNoNode) nodes.push_back(silent);
              return nodes;
            },
        .weights_are =
            [this](const ClusterWeights& weights) {
              told.push_back(weights);
              if (weights_are) weights_are(weights);
            },
        .changed_late =
            [this](const WeightsUpdated& answer) {
              if (changed_late) changed_late(answer);
            },
        .next_rollout = [this] { return next_rollout(); },
        .choose_schedule = std::move(choose),
        .nodes = [this] { return cluster.fleet.nodes(); }};
    client = {
        .response =
            [this](Ticket ticket, uint32_t sample, Response r) {
              CHECK(responses[ticket].emplace(sample, std::move(r)).second);  // each once
            },
        .tokens = [this](Ticket ticket, uint32_t sample, CommittedTokens part, WeightVersion version) { note_tokens({ticket, sample}, part, version); },
        .runs = [this](WeightVersion version, const std::string& name) { runs.push_back(version), names.push_back(name); }};
    start(config);
  }
  void start(const GatewayConfig& config) {
    handle = cluster.world.spawn<GatewayActor>(config, fleet, client, door, EventLog::to(lines, LogLevel::kInfo, LogClock::kVirtual));
  }
  void note_tokens(std::pair<Ticket, uint32_t> of, const CommittedTokens& part, WeightVersion version) {
    std::vector<int32_t>& so_far = streamed[of];
    const auto known = first_told.try_emplace(of, part.first_index).first;
    // It starts again: with its first token, or with those that another server had.
    if (!so_far.empty() && (part.first_index == 0 || part.first_index == known->second)) {
      ++restarts;
      so_far.clear();
      known->second = part.first_index;
    }
    CHECK(part.first_index == known->second + std::ssize(so_far));
    told_versions[of] = version;
    so_far.insert(so_far.end(), part.output.ids.begin(), part.output.ids.end());
  }
  /// Its process is gone: so are its rollouts, and whatever was told to it. Another one may be started.
  void kill() {
    std::vector<RolloutId> running;
    for (const auto& [id, rollout] : state().rollouts) running.push_back(id);
    rt::kill(handle);
    for (const RolloutId id : running) cluster.fleet.end_rollout(id);
    door = std::make_shared<GatewayDoor>();
    handle = nullptr;
  }

  /// Samples [first, end) of a group of the cluster, as one request.
  Ticket ask(uint32_t group, uint32_t first, uint32_t end, GatewayRequest request = {}) {
    const GroupSpec& spec = cluster.groups[group];
    request.ticket = Ticket{++last};
    request.prompt_ids = spec.prompt_ids;
    request.sampling = spec.sampling;
    request.seeds.assign(spec.seeds.begin() + first, spec.seeds.begin() + end);
    asked[request.ticket] = {group, first, end};
    const Ticket ticket = request.ticket;
    tell([request = std::move(request)](GatewayActor& gateway) mutable { gateway.submit(std::move(request)); });
    return ticket;
  }
  std::vector<NodeId> node_names() const {
    std::vector<NodeId> names_found;
    for (const auto& [node, handle_of] : cluster.fleet.nodes()) names_found.push_back(node);
    return names_found;
  }
  void start_late() { cluster.fleet.update_weights(late.what, late.reply_to); }
  void start_late(NodeId node) { rt::post(cluster.fleet.node(node), late); }
  template <class F>
  void tell(F f) {
    door->put([f = std::move(f)](GatewayActor& gateway) mutable { f(gateway); });
  }
  void run_for(int64_t us) { cluster.run_for(us); }
  void finish() {
    cluster.world.run_until(600'000'000, [this] { return state().open.empty() && !state().weights.is_under_way(); });
    run_for(1'000'000);
  }
  GatewayReport report() {
    std::optional<GatewayReport> found;
    tell([&](GatewayActor& gateway) { gateway.report([&](GatewayReport r) { found = std::move(r); }); });
    run_for(10'000);
    REQUIRE(found);
    return *found;
  }
  /// How many lines begin so, after time and level.
  int64_t logged(const std::string& event) const {
    int64_t found = 0;
    std::istringstream in(lines.str());
    for (std::string line; std::getline(in, line);) found += line.find("info " + event) != std::string::npos ? 1 : 0;
    return found;
  }
  GatewayActor& state() { return rt::look<GatewayActor>(handle); }
  OutputTokens right_of(Ticket ticket, uint32_t sample, WeightVersion version) const {
    const Asked& what = asked.at(ticket);
    return cluster.answer(cluster.groups[what.group], what.first + sample, version);
  }
  /// Checks that every response is right, or the beginning of the right one if it was aborted.
  void check_exact(bool are_all_whole = true) {
    for (const auto& [ticket, by_sample] : responses)
      for (const auto& [sample, response] : by_sample) {
        CAPTURE(ticket);
        const OutputTokens right = right_of(ticket, sample, response.version);
        REQUIRE(response.output.ids.size() <= right.ids.size());
        CHECK(std::equal(response.output.ids.begin(), response.output.ids.end(), right.ids.begin()));
        CHECK(std::equal(response.output.logprobs.begin(), response.output.logprobs.end(), right.logprobs.begin()));
        if (are_all_whole) CHECK(response.output.ids.size() == right.ids.size());
      }
  }
  size_t count(FinishReason finish) const {
    size_t found = 0;
    for (const auto& [ticket, by_sample] : responses)
      for (const auto& [sample, response] : by_sample) found += response.finish == finish ? 1 : 0;
    return found;
  }

  struct Asked {
    uint32_t group = 0, first = 0, end = 0;
  };
  SimCluster cluster;
  GatewayFleet fleet;
  GatewayClient client;
  std::vector<ClusterWeights> told;
  std::vector<WeightVersion> runs;
  std::vector<std::string> names;
  bool are_lazy = false;  // the machines: they hear of an update only by start_late()
  UpdateWeights late;
  // Of a cluster's controller. May be empty.
  std::function<void(RolloutConfig&)> before_rollout = {};
  std::function<void(RolloutId, const RolloutHandle&)> rollout_started = {};
  std::function<void(const ClusterWeights&)> weights_are = {};
  std::function<void(const WeightsUpdated&)> changed_late = {};
  std::function<RolloutId()> next_rollout = [id = uint32_t{0}]() mutable { return RolloutId{++id}; };
  std::shared_ptr<GatewayDoor> door = std::make_shared<GatewayDoor>();
  std::map<Ticket, Asked> asked;
  std::map<Ticket, std::map<uint32_t, Response>> responses;
  std::map<std::pair<Ticket, uint32_t>, std::vector<int32_t>> streamed;
  std::map<std::pair<Ticket, uint32_t>, int64_t> first_told;  // index of the first token that was told
  std::map<std::pair<Ticket, uint32_t>, WeightVersion> told_versions;  // of its last tokens
  int restarts = 0;
  int64_t rollouts = 0;  // begun
  std::ostringstream lines;
  uint64_t last = 0;
  decltype(std::declval<SimWorld&>().spawn<GatewayActor>(GatewayConfig{}, GatewayFleet{}, GatewayClient{}, std::shared_ptr<GatewayDoor>{},
                                                         EventLog{})) handle;
};

}  // namespace seer
