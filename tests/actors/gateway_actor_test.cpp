#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "actors/cluster_checks.h"
#include "actors/gateway_actor.h"

using namespace seer;

namespace {

/// A gateway in front of a simulated cluster; clients ask for the cluster's groups.
struct Bench {
  using ChooseSchedule = decltype(GatewayFleet::choose_schedule);

  explicit Bench(SimClusterOptions options = {}, GatewayConfig config = {}, ChooseSchedule choose = {}, NodeId silent = kNoNode) : cluster(std::move(options)) {
    config.rollout.scheduler = cluster.options.scheduler;
    config.rollout.instances_expected = cluster.options.instances;
    const GatewayFleet fleet{
        .start_rollout = [this](const RolloutConfig& c, const RolloutEvents& events) { return cluster.fleet.start_rollout(c, {}, events); },
        .end_rollout = [this](RolloutId id) { cluster.fleet.end_rollout(id); },
        .update_weights =
            [this, silent](const NewWeights& weights, const WeightsSink& reply_to) {
              if (are_lazy) late = {weights, reply_to};
              if (are_lazy) return node_names();
              std::vector<NodeId> nodes = cluster.fleet.update_weights(weights, reply_to);
              if (silent != kNoNode) nodes.push_back(silent);
              return nodes;
            },
        .weights_are = [this](const ClusterWeights& weights) { told.push_back(weights); },
        .next_rollout = [this] { return next_rollout(); },
        .choose_schedule = std::move(choose),
        .nodes = [this] { return cluster.fleet.nodes(); }};
    const GatewayClient client{.response = [this](Ticket ticket, uint32_t sample, Response r) {
                                 CHECK(responses[ticket].emplace(sample, std::move(r)).second);  // each once
                               },
                               .tokens =
                                   [this](Ticket ticket, uint32_t sample, CommittedTokens part, WeightVersion version) {
                                     std::vector<int32_t>& so_far = streamed[{ticket, sample}];
                                     const bool starts_anew = part.first_index == 0 && !so_far.empty();
                                     restarts += starts_anew ? 1 : 0;
                                     if (starts_anew) so_far.clear();
                                     const auto [known, is_first] = first_told.try_emplace({ticket, sample}, part.first_index);
                                     CHECK(part.first_index == (is_first ? known->second : known->second + std::ssize(so_far)));
                                     told_version = version;
                                     so_far.insert(so_far.end(), part.tokens.begin(), part.tokens.end());
                                   },
                               .runs = [this](WeightVersion version, const std::string& name) { runs.push_back(version), names.push_back(name); }};
    handle = cluster.world.spawn<GatewayActor>(config, fleet, client, door, EventLog::to(lines, LogLevel::kInfo, LogClock::kVirtual));
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
    cluster.world.run_until(600'000'000, [this] { return state().open.empty() && !state().update; });
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
  /// Checks that every response is right, or the beginning of the right one if it was aborted.
  void check_exact(bool are_all_whole = true) {
    for (const auto& [ticket, by_sample] : responses)
      for (const auto& [sample, response] : by_sample) {
        CAPTURE(ticket);
        const SimCluster::Answer right = cluster.answer({GroupId{asked.at(ticket).group}, asked.at(ticket).first + sample});
        REQUIRE(response.output_ids.size() <= right.output_ids.size());
        CHECK(std::equal(response.output_ids.begin(), response.output_ids.end(), right.output_ids.begin()));
        if (response.version == WeightVersion{1})  // the simulated engine's log-probabilities depend on its weights
          CHECK(std::equal(response.logprobs.begin(), response.logprobs.end(), right.logprobs.begin()));
        if (are_all_whole) CHECK(response.output_ids.size() == right.output_ids.size());
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
  std::vector<ClusterWeights> told;
  std::vector<WeightVersion> runs;
  std::vector<std::string> names;
  bool are_lazy = false;  // the machines: they hear of an update only by start_late()
  UpdateWeights late;
  std::function<RolloutId()> next_rollout = [id = uint32_t{0}]() mutable { return RolloutId{++id}; };
  std::shared_ptr<GatewayDoor> door = std::make_shared<GatewayDoor>();
  std::map<Ticket, Asked> asked;
  std::map<Ticket, std::map<uint32_t, Response>> responses;
  std::map<std::pair<Ticket, uint32_t>, std::vector<int32_t>> streamed;
  std::map<std::pair<Ticket, uint32_t>, int64_t> first_told;  // index of the first token that was told
  int restarts = 0;
  WeightVersion told_version;
  std::ostringstream lines;
  uint64_t last = 0;
  decltype(std::declval<SimWorld&>().spawn<GatewayActor>(GatewayConfig{}, GatewayFleet{}, GatewayClient{}, std::shared_ptr<GatewayDoor>{},
                                                         EventLog{})) handle;
};

}  // namespace

TEST_CASE("gateway: requests with equal prompts that come together become one group, and each gets its own response") {
  Bench b;
  for (uint32_t group = 0; group < 6; ++group)
    for (uint32_t sample = 0; sample < 4; ++sample) b.ask(group, sample, sample + 1);
  b.finish();
  CHECK(b.responses.size() == 24);
  CHECK(b.state().loads().groups == 6);
  CHECK(b.state().loads().finished == 24);
  b.check_exact();
}

TEST_CASE("gateway: grouping does not change the responses") {
  Bench b;
  for (uint32_t sample = 0; sample < 4; ++sample) {
    b.ask(0, sample, sample + 1);
    b.run_for(10'000);
  }
  b.ask(1, 0, 4);  // n = 4 in one request
  b.finish();
  CHECK(b.state().loads().groups == 5);
  CHECK(b.responses.size() == 5);
  b.check_exact();
}

TEST_CASE("gateway: a group of a known size is awaited, but not for ever") {
  Bench b;
  const GatewayRequest named{.ticket = {}, .rid = {}, .group = "a", .group_size = 4, .prompt_ids = {}, .sampling = {}, .seeds = {}};
  b.ask(0, 0, 2, named);
  b.run_for(50'000);
  CHECK(b.state().loads().groups == 0);
  b.ask(0, 2, 4, named);
  b.run_for(1'000);
  CHECK(b.state().loads().groups == 1);
  b.ask(1, 0, 2, named);
  b.finish();
  CHECK(b.state().loads().groups == 2);
  CHECK(b.responses.size() == 3);
  b.check_exact();
}

TEST_CASE("gateway: requests with equal names or prompts but different sampling, priority or group are not mixed") {
  Bench b;
  GatewayRequest urgent;
  urgent.priority = 3;
  GatewayRequest named;
  named.group = "mine";
  b.ask(0, 0, 1);
  b.ask(0, 1, 2, urgent);
  b.ask(0, 2, 3, named);
  b.ask(0, 3, 4);
  b.finish();
  CHECK(b.state().loads().groups == 3);
  b.check_exact();
}

TEST_CASE("gateway: a request that streams gets its tokens in order, all of them before or with its response") {
  Bench b;
  GatewayRequest streams;
  streams.tokens_to = TokensTo::kClient;
  const Ticket ticket = b.ask(0, 0, 1, streams);
  b.ask(1, 0, 4);
  b.finish();
  CHECK(b.streamed.size() == 1);
  CHECK(b.streamed.at({ticket, 0}) == b.responses.at(ticket).at(0).output_ids);
}

TEST_CASE("gateway: an abort answers running and waiting requests whose name begins so, with the tokens they have") {
  Bench b({.length_max = 200});
  GatewayRequest mine, other;
  mine.rid = "mine-1";
  other.rid = "other";
  b.ask(0, 0, 4, mine);
  b.ask(1, 0, 4, other);
  b.run_for(100'000);
  b.ask(2, 0, 4, mine);
  int64_t ended = 0;
  b.tell([&](GatewayActor& gateway) { ended = gateway.abort("mine"); });
  b.run_for(20'000);
  const size_t aborted = b.count(FinishReason::kAborted);
  CHECK(aborted > 4);
  CHECK(static_cast<int64_t>(aborted) <= ended);
  b.finish();
  CHECK(b.responses.size() == 3);
  for (const auto& [sample, response] : b.responses.at(Ticket{2})) CHECK(response.finish == FinishReason::kStop);
  b.check_exact(false);
}

TEST_CASE("gateway: an abort of some requests leaves others alone, also those of the same name") {
  Bench b({.length_max = 200});
  const Ticket runs = b.ask(0, 0, 4), other = b.ask(1, 0, 4);
  b.run_for(100'000);
  const Ticket waits = b.ask(2, 0, 4);
  b.tell([=](GatewayActor& gateway) { gateway.abort(std::set<Ticket>{runs, waits, Ticket{77}}); });
  b.finish();
  CHECK(b.responses.size() == 3);
  for (const auto& [sample, response] : b.responses.at(other)) CHECK(response.finish == FinishReason::kStop);
  for (const auto& [sample, response] : b.responses.at(waits)) CHECK(response.finish == FinishReason::kAborted);
  b.check_exact(false);
}

TEST_CASE("gateway: responses that were begun go on with their tokens, unless these are of other weights") {
  for (const WeightVersion version : {WeightVersion{1}, WeightVersion{2}}) {
    CAPTURE(version);
    Bench b;
    GatewayRequest request;
    request.tokens_to = TokensTo::kJournal;
    for (uint32_t sample = 0; sample < 3; ++sample) {  // with half of its tokens, with all, with none
      SimCluster::Answer right = b.cluster.answer({GroupId{0}, sample});
      right.output_ids.resize(sample == 0 ? right.output_ids.size() / 2 : sample == 1 ? right.output_ids.size() : 0);
      right.logprobs.resize(right.output_ids.size());
      request.begun.push_back({right.output_ids, right.logprobs, {}, version});
    }
    const Ticket ticket = b.ask(0, 0, 3, request);
    b.finish();
    CHECK(b.responses.at(ticket).size() == 3);
    b.check_exact();
    CHECK(b.told_version == WeightVersion{1});
    for (uint32_t sample = 0; sample < 3; ++sample) {
      const bool goes_on = version == WeightVersion{1} && sample < 2;
      CHECK(b.first_told.at({ticket, sample}) == (goes_on ? std::ssize(request.begun[sample].tokens) - 1 : 0));
    }
  }
}

TEST_CASE("gateway: tokens for a journal are told anew when their request starts anew; a client that heard them is not told twice") {
  for (const TokensTo to : {TokensTo::kJournal, TokensTo::kClient}) {
    CAPTURE(static_cast<int>(to));
    Bench b({.length_max = 200});
    GatewayRequest request;
    request.tokens_to = to;
    const Ticket ticket = b.ask(0, 0, 4, request);
    b.run_for(100'000);
    b.tell([](GatewayActor& gateway) { gateway.pause(InFlight::kRedo); });
    b.run_for(1'000'000);
    b.tell([](GatewayActor& gateway) { gateway.go_on(); });
    b.finish();
    CHECK((b.restarts > 0) == (to == TokensTo::kJournal));
    CHECK((b.count(FinishReason::kAborted) > 0) == (to == TokensTo::kClient));
    for (const auto& [sample, response] : b.responses.at(ticket)) CHECK(b.streamed.at({ticket, sample}) == response.output_ids);
    b.check_exact(to == TokensTo::kJournal);
  }
}

TEST_CASE("gateway: a cancelled request is not answered, and leaves nothing") {
  Bench b;
  const Ticket first = b.ask(0, 0, 4);
  b.run_for(30'000);
  const Ticket second = b.ask(1, 0, 4);
  b.tell([=](GatewayActor& gateway) {
    gateway.cancel(first);
    gateway.cancel(second);
  });
  b.ask(2, 0, 4);
  b.finish();
  CHECK(b.responses.size() == 1);
  CHECK(b.state().open.empty());
  CHECK(b.state().running.empty());
  CHECK(b.state().loads().waiting == 0);
  b.check_exact();
}

TEST_CASE("gateway: while it is paused requests wait; running ones are aborted, start again, or finish") {
  for (const InFlight in_flight : {InFlight::kAbort, InFlight::kRedo, InFlight::kFinish}) {
    CAPTURE(static_cast<int>(in_flight));
    Bench b({.length_max = 200});
    b.ask(0, 0, 4);
    b.run_for(100'000);
    int told_idle = 0;
    b.tell([&, in_flight](GatewayActor& gateway) { gateway.pause(in_flight, [&] { told_idle += b.state().running.empty() ? 1 : 100; }); });
    b.ask(1, 0, 4);
    CHECK(told_idle == 0);
    b.run_for(10'000'000);
    CHECK(told_idle == 1);
    CHECK(b.responses[Ticket{2}].empty());
    CHECK((b.count(FinishReason::kAborted) > 0) == (in_flight == InFlight::kAbort));
    CHECK(b.state().loads().running == 0);
    b.tell([](GatewayActor& gateway) { gateway.go_on(); });
    b.finish();
    CHECK(b.responses.at(Ticket{1}).size() == 4);
    CHECK(b.responses.at(Ticket{2}).size() == 4);
    b.check_exact(in_flight != InFlight::kAbort);
  }
}

TEST_CASE("gateway: whoever paused hears when nothing runs any more, or when it goes on") {
  Bench b({.length_max = 200});
  b.ask(0, 0, 4);
  b.run_for(100'000);
  int told_idle = 0;
  for (int i = 0; i < 2; ++i) b.tell([&](GatewayActor& gateway) { gateway.pause(InFlight::kFinish, [&] { ++told_idle; }); });
  b.run_for(1'000);
  CHECK(told_idle == 0);
  b.tell([](GatewayActor& gateway) { gateway.go_on(); });
  b.run_for(1'000);
  CHECK(b.state().loads().running > 0);
  CHECK(told_idle == 2);
  b.finish();
  CHECK(told_idle == 2);
}

TEST_CASE("gateway: it flushes only when nothing runs; what waits has no KV") {
  Bench b({.length_max = 200});
  Status flushed;
  b.ask(0, 0, 4);
  b.run_for(100'000);
  b.tell([&](GatewayActor& gateway) { flushed = gateway.flush(); });
  b.run_for(1'000);
  CHECK(flushed.error().code == Code::kUnavailable);
  b.tell([](GatewayActor& gateway) { gateway.pause(InFlight::kRedo); });
  b.run_for(10'000'000);
  b.tell([&](GatewayActor& gateway) { flushed = gateway.flush(); });
  b.run_for(1'000);
  CHECK(flushed.ok());
  CHECK(b.state().loads().waiting > 0);
  b.tell([](GatewayActor& gateway) { gateway.go_on(); });
  b.finish();
  b.tell([&](GatewayActor& gateway) { flushed = gateway.flush(); });
  b.run_for(1'000'000);
  CHECK(flushed.ok());
  CHECK(b.state().loads().rollouts == 0);
}

TEST_CASE("gateway: a rollout with rollout_responses is replaced by another one, and nothing is lost") {
  GatewayConfig config;
  config.rollout_responses = 8;  // two groups
  SimClusterOptions options;
  options.groups = 9;
  Bench b(options, config);
  for (uint32_t group = 0; group < 9; ++group) b.ask(group, 0, 4);
  b.finish();
  CHECK(b.responses.size() == 9);
  CHECK(b.state().last_rollout == RolloutId{5});
  CHECK(b.state().loads().rollouts == 1);
  b.check_exact();
}

TEST_CASE("gateway: a schedule is chosen once, for as many responses as tell what the work is like, and all later ones follow it") {
  std::vector<std::vector<GroupSpec>> asked;
  std::function<void(GatewaySchedule)> then;
  Bench b({}, {.choose_responses = 6}, [&](std::vector<GroupSpec> like, std::function<void(GatewaySchedule)> answer) {
    asked.push_back(std::move(like));
    then = std::move(answer);
  });
  const auto running_max = [&] { return rt::look<RolloutActor>(b.state().rollouts.at(b.state().current).handle).config.scheduler.running_max; };
  b.ask(0, 0, 2);
  b.run_for(5'000);
  CHECK(asked.empty());
  CHECK(b.state().running.size() == 2);  // too few to tell
  CHECK(running_max() == 0);

  b.ask(1, 0, 4);
  b.ask(2, 0, 4);
  b.run_for(50'000);
  REQUIRE(asked.size() == 1);
  REQUIRE(asked[0].size() == 3);  // those that run are like the others
  CHECK(asked[0][2].prompt_ids == b.cluster.groups[2].prompt_ids);
  CHECK(asked[0][2].samples == 4);
  CHECK(b.state().running.size() <= 2);  // they wait for the answer

  then({.scheduler = {.policy = "las", .running_max = 1}, .why = "test"});
  b.ask(3, 0, 4);
  b.ask(4, 0, 4);
  b.run_for(5'000);
  CHECK(running_max() == 1);
  b.finish();
  CHECK(asked.size() == 1);
  CHECK(b.state().loads().finished == 18);
  b.check_exact();
}

TEST_CASE("gateway: beyond its limit a request is answered with an error that says so") {
  GatewayConfig config;
  config.responses_max = 6;
  Bench b({}, config);
  b.ask(0, 0, 4);
  const Ticket refused = b.ask(1, 0, 4);
  b.run_for(10'000);
  CHECK(b.responses.at(refused).size() == 4);
  CHECK(b.responses.at(refused).at(0).error == "the server has 6 responses open, which is its limit");
  b.finish();
  CHECK(b.count(FinishReason::kStop) == 4);
}

TEST_CASE("gateway: at new weights, running requests are aborted, start again or finish with the old ones; later ones have the new ones") {
  for (const InFlight in_flight : {InFlight::kAbort, InFlight::kRedo, InFlight::kFinish}) {
    CAPTURE(static_cast<int>(in_flight));
    Bench b({.length_max = 200});
    std::optional<Status> done, refused;
    b.ask(0, 0, 4);
    b.run_for(100'000);
    b.tell([&, in_flight](GatewayActor& gateway) {
      gateway.update_weights({{WeightVersion{2}, "weights"}, "", in_flight, [&](Status status) {
                                done = status;
                                CHECK(b.runs == std::vector{WeightVersion{2}});
                              }});
      gateway.update_weights({{WeightVersion{3}, "weights"}, "", in_flight, [&](Status status) { refused = status; }});
    });
    b.ask(1, 0, 4);
    b.finish();
    REQUIRE((done && refused));
    CHECK_MESSAGE(done->ok(), done->error().detail);
    CHECK(refused->error().detail == "an update to weight version 2 is under way");
    CHECK((b.count(FinishReason::kAborted) > 0) == (in_flight == InFlight::kAbort));
    const auto& before = b.responses.at(Ticket{1});
    const bool some_are_new = std::ranges::any_of(before, [](const auto& r) { return r.second.version == WeightVersion{2}; });
    CHECK(some_are_new == (in_flight == InFlight::kRedo));  // but for one that had just ended
    for (const auto& [sample, response] : b.responses.at(Ticket{2})) CHECK(response.version == WeightVersion{2});
    b.check_exact(in_flight != InFlight::kAbort);
  }
}

TEST_CASE("gateway: when a rollout fails, each of its requests is answered with its error") {
  SimClusterOptions options;
  options.instances = 1;
  options.restarts_max = 0;
  Bench b(options);
  b.ask(0, 0, 4);
  b.run_for(30'000);
  b.cluster.kill_instance(InstanceId{0});
  b.finish();
  CHECK(b.count(FinishReason::kError) == 4);
  for (const auto& [sample, response] : b.responses.at(Ticket{1})) CHECK(response.error != "");
  CHECK(b.state().loads().rollouts == 0);
}

TEST_CASE("gateway: requests that are cancelled while it is paused take no memory") {
  Bench b;
  b.tell([](GatewayActor& gateway) { gateway.pause(InFlight::kAbort); });
  for (int i = 0; i < 5000; ++i) {
    const Ticket ticket = b.ask(static_cast<uint32_t>(i % 6), 0, 1);
    b.tell([ticket](GatewayActor& gateway) { gateway.cancel(ticket); });
    if (i % 100 == 0) b.run_for(1'000);
  }
  b.run_for(1'000);
  size_t pieces = 0;
  for (const auto& [id, group] : b.state().waiting) pieces += group.pieces.size();
  CHECK(pieces <= 1024);
  CHECK(b.state().loads().waiting == 0);
}

TEST_CASE("gateway: an update waits for no machine that is lost, or silent for too long, and says which") {
  for (const bool is_lost : {true, false}) {
    CAPTURE(is_lost);
    Bench b({}, {.update_us_max = 20'000'000}, {}, NodeId{7});
    std::optional<Status> status;
    b.tell([&](GatewayActor& gateway) {
      gateway.update_weights({.what = {WeightVersion{2}, "new"}, .done = [&](Status s) { status = std::move(s); }});
    });
    b.ask(0, 0, 4);
    b.run_for(10'000'000);
    CHECK_FALSE(status.has_value());
    if (is_lost) b.tell([](GatewayActor& gateway) { gateway.lose_node(NodeId{7}); });
    b.run_for(is_lost ? 10'000 : 10'001'000);
    REQUIRE(status.has_value());
    CHECK(status->error().detail == (is_lost ? "node 7 was lost while it changed its weights" : "node 7 has not changed its weights within 20 s"));
    b.finish();
    CHECK(b.state().version == WeightVersion{2});  // the others have it
    CHECK(b.told.size() == 1);
    CHECK(b.told.at(0).nodes.size() == b.cluster.options.nodes);
    CHECK(b.count(FinishReason::kError) == 0);
    for (const auto& [sample, response] : b.responses.at(Ticket{1})) CHECK(response.version == WeightVersion{2});
  }
}

TEST_CASE("gateway: a request that was aborted is answered, also if all others are to start again before it is") {
  Bench b({.length_max = 200});
  b.ask(0, 0, 4);
  b.run_for(10'000);
  b.tell([](GatewayActor& gateway) {
    CHECK(gateway.abort_all() == 4);
    gateway.pause(InFlight::kRedo);
  });
  b.run_for(1'000'000);
  CHECK(b.count(FinishReason::kAborted) == 4);
}

TEST_CASE("gateway: an update waits for requests that may finish, however long they run") {
  Bench b({.length_max = 200}, {.update_us_max = 5'000});
  std::optional<Status> status;
  b.ask(0, 0, 4);
  b.run_for(10'000);
  b.tell([&](GatewayActor& gateway) {
    gateway.update_weights({.what = {WeightVersion{2}, "new"}, .in_flight = InFlight::kFinish, .done = [&](Status s) { status = std::move(s); }});
  });
  b.run_for(10'000);
  CHECK_FALSE(status.has_value());
  b.finish();
  REQUIRE(status.has_value());
  CHECK_MESSAGE(status->ok(), status->error().detail);
  CHECK(b.count(FinishReason::kStop) == 4);
  b.check_exact();
}

namespace {

/// An update to version 2 that all machines hear of too late.
void give_up_update(Bench& b) {
  std::optional<Status> status;
  b.are_lazy = true;
  b.tell([&](GatewayActor& gateway) {
    gateway.update_weights({.what = {WeightVersion{2}, "new"}, .name = "step-2", .done = [&](Status s) { status = std::move(s); }});
  });
  b.run_for(20'001'000);
  REQUIRE(status.has_value());
  CHECK(status->error().detail == "node 0 has not changed its weights within 20 s");
  CHECK(b.runs.empty());
  b.are_lazy = false;
}

}  // namespace

TEST_CASE("gateway: weights of an update that was given up are used once all machines have them") {
  Bench b({.nodes = 2}, {.update_us_max = 20'000'000});
  give_up_update(b);
  b.start_late(NodeId{0});
  b.run_for(10'000'000);
  b.ask(0, 0, 4);
  b.finish();
  CHECK(b.runs.empty());  // the other machine does the work
  for (const auto& [sample, response] : b.responses.at(Ticket{1})) CHECK(response.version == WeightVersion{1});
  SUBCASE("the last one changes") {
    b.tell([](GatewayActor& gateway) { CHECK(gateway.flush().ok()); });  // ends the rollout
    b.run_for(1'000'000);
    b.start_late(NodeId{1});
    b.run_for(10'000'000);
    REQUIRE(b.told.size() == 1);
    CHECK(b.told[0].what.version == WeightVersion{2});
    CHECK(b.told[0].what.folder == "new");
    CHECK(b.told[0].nodes == std::vector{NodeId{0}, NodeId{1}});
    CHECK(b.told[0].weights != 0);
    b.ask(1, 0, 4);
    b.finish();
    for (const auto& [sample, response] : b.responses.at(Ticket{2})) CHECK(response.version == WeightVersion{2});
    CHECK(b.count(FinishReason::kStop) == 8);
  }
  SUBCASE("the last one without them is lost while it runs requests") {
    b.ask(1, 0, 4);
    b.run_for(10'000);
    b.cluster.crash_node(1, 600'000'000);
    b.tell([](GatewayActor& gateway) { gateway.lose_node(NodeId{1}); });
    b.run_for(1'000'000);
    REQUIRE(b.told.size() == 1);
    CHECK(b.told[0].nodes == std::vector{NodeId{0}});
    b.finish();
    for (const auto& [sample, response] : b.responses.at(Ticket{2})) CHECK(response.version == WeightVersion{2});
    CHECK(b.count(FinishReason::kStop) == 8);
  }
  CHECK(b.runs == std::vector{WeightVersion{2}});
  CHECK(b.names == std::vector<std::string>{"step-2"});
  b.check_exact();
}

TEST_CASE("gateway: a machine that was lost during an update and comes back changed is used with what it has") {
  Bench b({.nodes = 1}, {.update_us_max = 20'000'000});
  std::optional<Status> status;
  b.are_lazy = true;
  b.tell([&](GatewayActor& gateway) {
    gateway.update_weights({.what = {WeightVersion{2}, "new"}, .done = [&](Status s) { status = std::move(s); }});
  });
  b.tell([](GatewayActor& gateway) { gateway.lose_node(NodeId{0}); });
  b.run_for(1'000'000);
  REQUIRE(status.has_value());
  CHECK(b.runs.empty());
  b.start_late();
  b.run_for(1'000'000);
  CHECK(b.runs == std::vector{WeightVersion{2}});
}

TEST_CASE("gateway: requests that come while all machines change late run with the old weights or the new ones") {
  size_t with_old = 0, with_new = 0;
  for (int64_t wait_us = 0; wait_us <= 3'000; wait_us += 100) {
    CAPTURE(wait_us);
    Bench b({.length_max = 40}, {.update_us_max = 20'000'000});
    give_up_update(b);
    b.ask(0, 0, 4);
    b.run_for(wait_us);
    b.start_late();
    b.finish();
    CHECK(b.count(FinishReason::kStop) == 4);
    b.check_exact();
    for (const auto& [sample, response] : b.responses.at(Ticket{1})) ++(response.version == WeightVersion{2} ? with_new : with_old);
  }
  CHECK(with_old > 0);
  CHECK(with_new > 0);
}

TEST_CASE("gateway: when machines change late while requests run, these start again with the weights that the machines have") {
  Bench b({.length_max = 200}, {.update_us_max = 20'000'000});
  std::optional<Status> second;
  give_up_update(b);
  b.ask(0, 0, 4);
  b.run_for(10'000);
  b.start_late();  // they wait until the rollout is over
  b.run_for(10'000);
  CHECK(b.runs.empty());
  CHECK(b.responses.empty());
  b.tell([&](GatewayActor& gateway) {  // and are busy with the other weights
    gateway.update_weights({.what = {WeightVersion{3}, "newer"}, .in_flight = InFlight::kRedo, .done = [&](Status s) { second = std::move(s); }});
  });
  b.finish();
  REQUIRE(second.has_value());
  CHECK(second->error().detail.find("is changing to weight version 2 already") != std::string::npos);
  CHECK(b.runs == std::vector{WeightVersion{2}});
  CHECK(b.count(FinishReason::kStop) == 4);
  for (const auto& [sample, response] : b.responses.at(Ticket{1})) CHECK(response.version == WeightVersion{2});
  b.check_exact();
}

TEST_CASE("gateway: without an id for a rollout requests wait until there is one") {
  Bench b;
  RolloutId id;
  b.next_rollout = [&] { return std::exchange(id, {}); };
  b.ask(0, 0, 4);
  b.run_for(100'000);
  CHECK(b.responses.empty());
  CHECK(b.state().loads().waiting == 4);
  id = RolloutId{77};
  b.finish();
  CHECK(b.responses.at(Ticket{1}).size() == 4);
  CHECK(b.state().last_rollout == RolloutId{77});
  b.check_exact();
}

TEST_CASE("gateway: its loads count each response once, by how it ended") {
  SimClusterOptions options;
  options.length_max = 200;
  GatewayConfig config;
  config.rollout.progress_us = 20'000;
  Bench b(options, config);
  GatewayRequest mine;
  mine.rid = "mine";
  b.ask(0, 0, 4);
  b.ask(1, 0, 4, mine);
  b.run_for(100'000);
  const GatewayLoads before = b.state().loads();
  CHECK(before.running == 8 - before.finished);
  CHECK(before.on_instances > 0);
  CHECK(before.on_instances <= before.running);
  CHECK(before.oldest_us > 90'000);
  CHECK(before.oldest_us <= 100'000);
  b.tell([](GatewayActor& gateway) { gateway.abort("mine"); });
  b.finish();
  const GatewayLoads now = b.state().loads();
  CHECK(now.aborted == static_cast<int64_t>(b.count(FinishReason::kAborted)));
  CHECK(now.aborted > 0);
  CHECK(now.at_length == static_cast<int64_t>(b.count(FinishReason::kLength)));
  CHECK(now.finished + now.aborted == 8);
  CHECK(now.failed == 0);
  CHECK(now.prompt_tokens == 2 * options.prompt_tokens);
  CHECK(now.on_instances == 0);
  CHECK(now.oldest_us == 0);
  int64_t tokens = 0;
  for (const auto& [ticket, by_sample] : b.responses)
    for (const auto& [sample, r] : by_sample) {
      tokens += std::ssize(r.output_ids);
      CHECK((r.first_token_us > 0) == !r.output_ids.empty());
      CHECK(r.first_token_us <= r.queue_us + r.run_us);
    }
  CHECK(now.output_tokens == tokens);
}

TEST_CASE("gateway: a rollout's tail begins when 90 % of its responses have ended, and again when more are asked for") {
  SimClusterOptions options;
  options.groups = 6;
  options.samples = 10;
  Bench b(options);
  for (uint32_t group = 0; group < 3; ++group) b.ask(group, 0, 10);
  b.cluster.world.run_until(600'000'000, [&] { return b.responses.size() == 3 && b.state().loads().finished >= 26; });
  GatewayReport report = b.report();
  REQUIRE(report.rollouts.size() == 1);
  CHECK(report.rollouts[0].responses == 30);
  if (report.rollouts[0].ended < 27) CHECK(report.rollouts[0].tail_us == 0);
  b.finish();
  report = b.report();
  CHECK_FALSE(report.rollouts[0].is_over);
  CHECK(report.rollouts[0].ended == 30);
  CHECK(report.rollouts[0].output_tokens == report.loads.output_tokens);
  CHECK(report.rollouts[0].tail_us > 0);
  CHECK(report.rollouts[0].tail_us < report.rollouts[0].busy_us);
  const GatewayRollout first = report.rollouts[0];
  b.run_for(5'000'000);  // nothing runs
  CHECK(b.report().rollouts[0].busy_us == first.busy_us);
  for (uint32_t group = 3; group < 6; ++group) b.ask(group, 0, 10);
  b.run_for(5'000);
  CHECK(b.report().rollouts[0].tail_us == 0);
  b.finish();
  CHECK(b.report().rollouts[0].tail_us > 0);
  CHECK(b.report().rollouts[0].busy_us > first.busy_us + 5'000'000);
}

TEST_CASE("gateway: it remembers a bounded number of rollouts that are over, and reports them by id") {
  GatewayConfig config;
  config.rollout_responses = 1;
  SimClusterOptions options;
  options.groups = 20;
  options.samples = 1;
  Bench b(options, config);
  for (uint32_t group = 0; group < 20; ++group) b.ask(group, 0, 1);
  b.finish();
  const GatewayReport report = b.report();
  REQUIRE(report.rollouts.size() == 17);  // 16 that are over, and the open one
  for (size_t i = 0; i < report.rollouts.size(); ++i) {
    if (i > 0) CHECK(report.rollouts[i - 1].id < report.rollouts[i].id);
    CHECK(report.rollouts[i].is_over == (i < 16));
    CHECK(report.rollouts[i].ended == 1);
  }
  CHECK(report.rollouts.back().id == RolloutId{20});
}

TEST_CASE("gateway: its report has what every machine says of its instances and its pool, and leaves out one that is silent") {
  SimClusterOptions options;
  options.nodes = 2;
  Bench b(options);
  b.ask(0, 0, 4);
  b.finish();
  const GatewayReport report = b.report();
  REQUIRE(report.nodes.size() == 2);
  int64_t sampled = 0, cached = 0;
  for (const NodeReport& node : report.nodes) {
    REQUIRE(node.instances.size() == 1);
    REQUIRE(node.pool.size() == 1);
    sampled += node.instances[0].output_tokens;
    cached += node.instances[0].cached_tokens;
  }
  CHECK(sampled == report.loads.output_tokens);
  CHECK(cached > 0);  // chunks after a response's first one
  rt::kill(b.cluster.fleet.node(NodeId{1}));
  b.run_for(1'000);
  CHECK(b.report().nodes.size() == 1);
}

TEST_CASE("gateway: a request that is aborted, cancelled or refused leaves one line, and none that ends well") {
  GatewayConfig config;
  config.responses_max = 12;
  SimClusterOptions options;
  options.length_max = 200;
  Bench b(options, config);
  GatewayRequest mine, other;
  mine.rid = "mine\x1b[2J\n9.0 info forged";
  other.rid = "other";
  b.ask(0, 0, 4, mine);
  const Ticket cancelled = b.ask(1, 0, 4, other);
  b.ask(2, 0, 4);
  b.ask(3, 0, 4);
  b.run_for(100'000);
  b.tell([=](GatewayActor& gateway) {
    gateway.abort("mine");
    gateway.cancel(cancelled);
  });
  b.finish();
  CAPTURE(b.lines.str());
  CHECK(b.logged("request_") == 3);
  CHECK(b.logged("request_aborted ticket=1 rid=\"mine\\x1b[2J 9.0 info forged\" aborted=") == 1);
  CHECK(b.logged("request_cancelled ticket=2 rid=other responses_left=") == 1);
  CHECK(b.logged("request_failed ticket=4 rid=\"\" error=\"the server has 12 responses open, which is its limit\"") == 1);
  CHECK(b.lines.str().find("\n9.0 info forged") == std::string::npos);
}
