#include "actors/cluster_actor.h"

#include <doctest/doctest.h>

#include <sstream>

#include "actors/cluster_checks.h"
#include "actors/kv_directory_actor.h"
#include "actors/recorder.h"
#include "actors/rollout_actor.h"

using namespace seer;

namespace {

using Watcher = Recorder<ClusterSink, NodeJoined, PartLost, ClusterWeights>;

/// A machine that only notes its messages.
struct FakeNode {
  struct Seen {
    int woken = 0;
    int64_t drain_us = 0;  // of the last DrainNode
    std::vector<UpdateWeights> updates;
    NodeReport report;
  };
  struct Actor {
    using handle = NodeHandle;
    static constexpr const char* kActorName = "fake_node";
    Actor(rt::self_ptr<Actor> self_in, std::shared_ptr<Seen> seen_in) : self(self_in), seen(std::move(seen_in)) {}
    handle::behavior_type make_behavior() {
      return {[](const AttachRollout&) {},
              [this](const UpdateWeights& update) { seen->updates.push_back(update); },
              [](const WeightPart&) {},
              [](const InstanceWeights&) {},
              [this](const DrainNode& drain) { seen->drain_us = drain.timeout_us; },
              [](const DirectoryUp&) {},
              [this](const Tick&) { rt::quit(self); },
              [this](const WorkReady&) { ++seen->woken; },
              [this](const GetReport&) { return seen->report; }};
    }
    rt::self_ptr<Actor> self;
    std::shared_ptr<Seen> seen;
  };
  explicit FakeNode(SimWorld& world) : actor(world.spawn<Actor>(seen)) {}
  const NodeHandle& handle() const { return actor; }
  std::shared_ptr<Seen> seen = std::make_shared<Seen>();
  NodeHandle actor;
};

/// A cluster, and machines played by the test.
struct Bench {
  template <class Answer, class Question>
  Answer ask(Question question) {
    std::optional<Answer> answer;
    world.ask<Answer>(cluster, std::move(question), [&](Answer& got) { answer = std::move(got); });
    run();
    REQUIRE(answer.has_value());
    return *answer;
  }
  ClusterEntered enter(uint32_t node, ClusterIdentity identity = {.model = "qwen", .kv_layout = 7, .version = WeightVersion{1}},
                       uint64_t epoch = 0) {
    return ask<ClusterEntered>(EnterCluster{NodeId{node}, identity, epoch});
  }
  /// The controller's process dies, and another one is started.
  void restart(uint64_t started) {
    rt::kill(cluster);
    cluster = world.spawn<ClusterActor>(started, log);
    run();
  }
  void ready(uint32_t node, const NodeHandle& handle) {
    rt::post(cluster, NodeReady{{NodeId{node}, "10.0.0.1", static_cast<uint16_t>(7000 + node)}, handle, 2});
    run();
  }
  void run() { world.run_until(world.now_us() + 1000); }

  SimWorld world;
  std::ostringstream lines;
  EventLog log = EventLog::to(lines, LogLevel::kInfo, LogClock::kVirtual);
  ClusterHandle cluster = world.spawn<ClusterActor>(uint64_t{1000}, log);
  Watcher watcher{world};
};

}  // namespace

TEST_CASE("cluster: a watcher hears of the present machines, then of those that join and leave") {
  Bench b;
  FakeNode first(b.world), second(b.world);
  CHECK(b.enter(3).error == "");
  b.ready(3, first.handle());
  rt::post(b.cluster, WatchCluster{b.watcher.handle()});
  b.run();
  CHECK(b.enter(1).error == "");
  CHECK(b.watcher.all<NodeJoined>().size() == 1);  // the second is not up yet
  b.ready(1, second.handle());
  REQUIRE(b.watcher.all<NodeJoined>().size() == 2);
  CHECK(b.watcher.all<NodeJoined>()[0].at.node == NodeId{3});
  CHECK(b.watcher.all<NodeJoined>()[1].at.host == "10.0.0.1");
  CHECK(b.watcher.all<NodeJoined>()[1].at.port == 7001);
  CHECK(b.watcher.all<NodeJoined>()[1].handle == second.handle());
  rt::kill(first.handle());
  b.run();
  REQUIRE(b.watcher.all<PartLost>().size() == 1);
  CHECK(b.watcher.all<PartLost>()[0].reason == "node 3 is gone");
  CHECK(b.watcher.all<PartLost>()[0].instances == std::vector{node_instance(NodeId{3}, 0), node_instance(NodeId{3}, 1)});
  CHECK(b.lines.str().find(" warn node_lost node=3 reason=\"node 3 is gone\"\n") != std::string::npos);
}

TEST_CASE("cluster: a second machine with the same name, or of another kind, is refused with a sentence until the first is gone") {
  Bench b;
  FakeNode first(b.world);
  const ClusterEntered entered = b.enter(0);
  b.ready(0, first.handle());
  CHECK(b.enter(0).error == "node 0 is refused: a node of that name is in the cluster, expected another name for each machine");
  CHECK(b.enter(1, {.model = "moonlight", .kv_layout = 7, .version = WeightVersion{1}}).error ==
        "node 1 is refused: its model is \"moonlight\", expected \"qwen\"");
  CHECK(b.enter(1, {.model = "qwen", .kv_layout = 8, .version = WeightVersion{1}}).error.find("node 1 is refused: its KV layout is") == 0);
  CHECK(b.enter(1, {.model = "qwen", .kv_layout = 7, .version = WeightVersion{2}}).error ==
        "node 1 is refused: its weight version is 2, expected 1");
  rt::kill(first.handle());
  b.run();
  const ClusterEntered again = b.enter(0, {.model = "moonlight", .kv_layout = 9, .version = WeightVersion{2}});
  CHECK(again.error == "");
  CHECK(again.epoch > entered.epoch);
}

TEST_CASE("cluster: a machine that asked to enter and was not ready in time loses its name, even if it is ready later") {
  Bench b;
  CHECK(b.enter(0).error == "");
  CHECK(b.enter(0).error != "");
  b.world.run_until(b.world.now_us() + ClusterActor::kEnterUs + 1);
  CHECK(b.enter(0).error == "");
  FakeNode second(b.world), late(b.world);
  b.ready(0, second.handle());
  b.ready(0, late.handle());
  rt::post(b.cluster, WatchCluster{b.watcher.handle()});
  b.run();
  CHECK(b.watcher.all<NodeJoined>().size() == 1);
  for (const FakeNode* node : {&second, &late}) rt::post(node->handle(), WorkReady{});
  b.run();
  CHECK(second.seen->woken == 1);
  CHECK(late.seen->woken == 0);  // it was stopped
}

TEST_CASE("cluster: each rollout gets a new id, its weights and its number of instances") {
  Bench b;
  FakeNode node(b.world);
  const auto early = b.ask<RolloutEntered>(EnterRollout{});
  CHECK(early.error == "the cluster has no machine yet");
  CHECK(early.may_enter_later);
  b.enter(0, {.model = "qwen", .kv_layout = 7, .version = WeightVersion{4}});
  CHECK(b.ask<RolloutEntered>(EnterRollout{}).error != "");  // it is not up yet
  b.ready(0, node.handle());
  const auto first = b.ask<RolloutEntered>(EnterRollout{}), second = b.ask<RolloutEntered>(EnterRollout{});
  CHECK(first.error == "");
  CHECK(first.version == WeightVersion{4});
  CHECK(first.instances == 2);
  CHECK(first.id != RolloutId{});
  CHECK_FALSE(first.may_enter_later);
  CHECK(second.id != first.id);
  CHECK(second.directory == first.directory);
  const auto report = b.ask<ClusterReport>(GetReport{});
  REQUIRE(report.nodes.size() == 1);
  CHECK(report.nodes[0].at.port == 7000);
}

TEST_CASE("cluster: a rollout that expects another model is refused with the field") {
  Bench b;
  FakeNode node(b.world);
  b.enter(0, {.model = "qwen", .shape = 0x51, .kv_layout = 7, .version = WeightVersion{4}});
  b.ready(0, node.handle());
  const auto ask = [&](RolloutId id, ClusterIdentity identity) { return b.ask<RolloutEntered>(EnterRollout{id, std::move(identity)}); };
  const auto right = ask({}, {.model = "qwen", .shape = 0x51, .version = {}});
  CHECK(right.error == "");
  CHECK_FALSE(ask({}, {.model = "moonlight", .shape = 0x51, .version = {}}).may_enter_later);
  CHECK(ask({}, {.model = "moonlight", .shape = 0x51, .version = {}}).error == "a rollout is refused: its model is \"moonlight\", expected \"qwen\"");
  CHECK(ask({}, {.model = "qwen", .shape = 0x52, .version = {}}).error ==
        "a rollout is refused: its config.json's checksum is 0000000000000052, expected 0000000000000051");
  CHECK(ask(right.id, {.model = "qwen", .shape = 0x51, .version = {}}).id == right.id);
  CHECK(ask({}, {.protocol = kProtocolNumber + 1, .version = {}}).error.find("protocol number") != std::string::npos);
}

TEST_CASE("cluster: a machine that is told to leave gets no more rollouts, and leaves in order") {
  Bench b;
  FakeNode first(b.world), second(b.world);
  b.enter(0);
  b.ready(0, first.handle());
  b.enter(1);
  b.ready(1, second.handle());
  rt::post(b.cluster, WatchCluster{b.watcher.handle()});
  CHECK(b.ask<Drained>(DrainMachine{NodeId{7}, 1}).error == "node 7 is not in the cluster");
  CHECK(b.ask<Drained>(DrainMachine{NodeId{1}, 3'000'000}).error == "");
  CHECK(second.seen->drain_us == 3'000'000);
  CHECK(first.seen->drain_us == 0);
  CHECK(b.ask<RolloutEntered>(EnterRollout{}).instances == 2);  // those of the first
  const auto report = b.ask<ClusterReport>(GetReport{});
  REQUIRE(report.nodes.size() == 2);
  CHECK_FALSE(report.nodes[0].draining);
  CHECK(report.nodes[1].draining);
  rt::post(second.handle(), Tick{});  // it ends in order
  b.run();
  REQUIRE(b.watcher.all<PartLost>().size() == 1);
  CHECK(b.watcher.all<PartLost>()[0].reason == "");
  CHECK(b.lines.str().find(" info node_left node=1\n") != std::string::npos);
}

TEST_CASE("cluster: running machines and rollouts enter again at a restarted controller, and keep their names") {
  Bench b;
  FakeNode node(b.world);
  const uint64_t epoch = b.enter(3).epoch;
  b.ready(3, node.handle());
  const RolloutId rollout = b.ask<RolloutEntered>(EnterRollout{}).id;
  b.restart(2000);
  const ClusterEntered again = b.enter(3, {.model = "qwen", .kv_layout = 7, .version = WeightVersion{1}}, epoch);
  CHECK(again.error == "");
  CHECK(again.epoch == epoch);
  CHECK(again.directory);
  b.ready(3, node.handle());
  const auto entered = b.ask<RolloutEntered>(EnterRollout{rollout});
  CHECK(entered.error == "");
  CHECK(entered.id == rollout);
  CHECK(b.enter(4).epoch > epoch);
  CHECK(b.ask<RolloutEntered>(EnterRollout{}).id > rollout);
}

TEST_CASE("cluster: machines that were in the middle of an update enter again at a restarted controller, whichever comes first") {
  for (const bool new_first : {true, false}) {
    CAPTURE(new_first);
    Bench b;
    FakeNode changed(b.world), missed(b.world);
    const uint64_t epochs[] = {b.enter(1).epoch, b.enter(2).epoch};
    b.restart(2000);
    const auto enter_again = [&](uint32_t node, WeightVersion version, uint64_t weights) {
      return b.enter(node, {.model = "qwen", .kv_layout = 7, .weights = weights, .version = version}, epochs[node - 1]).error;
    };
    for (const uint32_t node : {new_first ? 1u : 2u, new_first ? 2u : 1u}) {
      CHECK(enter_again(node, WeightVersion{node == 1 ? 2u : 1u}, node == 1 ? 20 : 10) == "");
      b.ready(node, node == 1 ? changed.handle() : missed.handle());
    }
    const auto entered = b.ask<RolloutEntered>(EnterRollout{});
    CHECK(entered.version == WeightVersion{2});
    CHECK(entered.weights == 20);
    CHECK(entered.instances == 2);  // not those of node 2
    rt::post(b.cluster, ClusterWeights{{.version = WeightVersion{2}, .folder = "/new", .weights = 20}, {}});
    b.run();
    CHECK(changed.seen->updates.empty());
    CHECK(missed.seen->updates.size() == 1);
    // Weights that differ although they should be the same are never right.
    CHECK(enter_again(1, WeightVersion{2}, 21) == "node 1 is refused: its weights' checksum is 0000000000000015, expected 0000000000000014");
  }
}

TEST_CASE("cluster: a rollout enters with the weights that machines have, also those of a server that died before it told anybody") {
  Bench b;
  FakeNode changed(b.world), missed(b.world);
  b.enter(1);
  b.ready(1, changed.handle());
  b.enter(2);
  b.ready(2, missed.handle());
  CHECK(b.ask<RolloutEntered>(EnterRollout{}).version == WeightVersion{1});
  changed.seen->report = {.node = NodeId{1}, .identity = {.model = "qwen", .kv_layout = 7, .weights = 20, .version = WeightVersion{2}}};
  missed.seen->report = {.node = NodeId{2}, .identity = {}};  // none of its instances runs
  const auto entered = b.ask<RolloutEntered>(EnterRollout{});
  CHECK(entered.version == WeightVersion{2});
  CHECK(entered.weights == 20);
  CHECK(entered.instances == 2);  // not those of node 2
}

TEST_CASE("cluster: a machine and a rollout that only lost the controller enter again, unless the machine's name was taken meanwhile") {
  Bench b;
  const ClusterIdentity identity{.model = "qwen", .kv_layout = 7, .version = WeightVersion{1}};
  FakeNode first(b.world), second(b.world);
  const uint64_t epoch = b.enter(3).epoch;
  b.ready(3, first.handle());
  const auto entered = b.ask<RolloutEntered>(EnterRollout{});
  const auto start = [&] {
    const RolloutHandle started = b.world.spawn<RolloutActor>(RolloutConfig{.scheduler = {.policy = "divided"}, .open = true}, RolloutParts{});
    rt::post(b.cluster, RolloutStarted{entered.id, started});
    b.run();
    return started;
  };
  RolloutHandle rollout = start();
  CHECK(b.enter(3, identity, epoch).error == "");  // before the controller has noticed anything
  b.ready(3, first.handle());
  CHECK(b.ask<ClusterReport>(GetReport{}).nodes.size() == 1);

  const KvOwner owner = owner_of(RequestId{GroupId{0, entered.id}, 0});
  const auto& holders = rt::look<KvDirectoryActor>(entered.directory).holders;
  const auto keep_kv = [&] {
    rt::post(entered.directory, KvHolds{NodeId{3}, owner});
    b.run();
  };
  for (const int64_t away_us : {int64_t{1000}, ClusterActor::kAbsentUs + 1000}) {
    CAPTURE(away_us);
    keep_kv();
    rt::kill(rollout);
    b.world.run_until(b.world.now_us() + away_us);
    CHECK(holders.contains(owner) == (away_us < ClusterActor::kAbsentUs));
    CHECK(b.ask<RolloutEntered>(EnterRollout{entered.id}).id == entered.id);
    rollout = start();
    b.world.run_until(b.world.now_us() + 2 * ClusterActor::kAbsentUs);
    keep_kv();
    CHECK(holders.contains(owner));
  }
  rt::kill(rollout);
  b.run();
  CHECK(b.ask<RolloutEntered>(EnterRollout{entered.id}).id == entered.id);
  b.world.run_until(b.world.now_us() + ClusterActor::kAbsentUs);
  CHECK_FALSE(holders.contains(owner));  // it died before it had started again

  rt::kill(first.handle());
  b.run();
  CHECK(b.enter(3, identity, epoch).epoch == epoch);
  b.ready(3, second.handle());  // plays the same machine over a new connection
  CHECK(b.ask<ClusterReport>(GetReport{}).nodes.size() == 1);
  rt::kill(second.handle());
  b.run();
  CHECK(b.enter(3).epoch > epoch);
  CHECK(b.enter(3, identity, epoch).error == "node 3 is refused: a node of that name is being started, or failed to start within the last minute");
}

TEST_CASE("cluster: a controller that was started again with the clock set back repeats no number of those that enter again") {
  Bench b;
  const ClusterIdentity identity{.model = "qwen", .kv_layout = 7, .version = WeightVersion{1}};
  FakeNode node(b.world);
  const uint64_t epoch = b.enter(3).epoch;
  b.ready(3, node.handle());
  const RolloutId before = b.ask<RolloutEntered>(EnterRollout{}).id;
  b.restart(1);
  CHECK(b.enter(3, identity, epoch).epoch == epoch);
  b.ready(3, node.handle());
  CHECK(b.enter(4).epoch > epoch);
  CHECK(b.ask<RolloutEntered>(EnterRollout{before}).id == before);
  CHECK(b.ask<RolloutEntered>(EnterRollout{}).id > before);
}

TEST_CASE("cluster: KV of rollouts that died without a controller is released some time after its restart") {
  Bench b;
  FakeNode node(b.world);
  b.enter(0);
  b.ready(0, node.handle());
  const RolloutId lost = b.ask<RolloutEntered>(EnterRollout{}).id, alive = b.ask<RolloutEntered>(EnterRollout{}).id;
  b.restart(2000);
  b.enter(0, {.model = "qwen", .kv_layout = 7, .version = WeightVersion{1}}, kEpochsOfStart);
  const auto entered = b.ask<RolloutEntered>(EnterRollout{alive});
  const RolloutHandle rollout = b.world.spawn<RolloutActor>(RolloutConfig{.scheduler = {.policy = "divided"}, .open = true}, RolloutParts{});
  rt::post(b.cluster, RolloutStarted{alive, rollout});
  const auto owner = [](RolloutId id) { return owner_of(RequestId{GroupId{0, id}, 0}); };
  for (const RolloutId id : {lost, alive}) rt::post(entered.directory, KvHolds{NodeId{0}, owner(id)});
  b.run();
  const auto& holders = rt::look<KvDirectoryActor>(entered.directory).holders;
  CHECK(holders.size() == 2);
  b.world.run_until(b.world.now_us() + ClusterActor::kReturnUs);
  CHECK(holders.size() == 1);
  CHECK(holders.contains(owner(alive)));
}

TEST_CASE("cluster: rollouts are listed while they run, and the KV of a dead one is released") {
  Bench b;
  FakeNode node(b.world);
  b.enter(0);
  b.ready(0, node.handle());
  const auto entered = b.ask<RolloutEntered>(EnterRollout{});
  const RolloutHandle rollout = b.world.spawn<RolloutActor>(RolloutConfig{.scheduler = {.policy = "divided"}, .open = true}, RolloutParts{});
  rt::post(b.cluster, RolloutStarted{entered.id, rollout});
  b.run();
  const auto report = b.ask<ClusterReport>(GetReport{});
  REQUIRE(report.rollouts.size() == 1);
  CHECK(report.rollouts[0].id == entered.id);
  CHECK(report.rollouts[0].handle == rollout);
  const KvOwner owner = owner_of(RequestId{GroupId{0, entered.id}, 0});
  rt::post(entered.directory, KvHolds{NodeId{0}, owner});
  b.run();
  CHECK(rt::look<KvDirectoryActor>(entered.directory).holders.contains(owner));
  rt::kill(rollout);
  b.run();
  CHECK(b.ask<ClusterReport>(GetReport{}).rollouts.empty());
  CHECK(rt::look<KvDirectoryActor>(entered.directory).holders.contains(owner));  // it may have lost its connection only
  b.world.run_until(b.world.now_us() + ClusterActor::kAbsentUs);
  CHECK(rt::look<KvDirectoryActor>(entered.directory).holders.empty());  // what is dead keeps nothing
}

TEST_CASE("cluster: after new weights, machines that come with older ones get the new ones, and rollouts hear the new version") {
  Bench b;
  FakeNode changed(b.world), missed(b.world), late(b.world), fresh(b.world);
  REQUIRE(b.enter(1).error == "");
  REQUIRE(b.enter(2).error == "");
  b.ready(1, changed.handle());
  b.ready(2, missed.handle());
  rt::post(b.cluster, ClusterWeights{{.version = WeightVersion{5}, .folder = "/new", .weights = 77}, {NodeId{1}}});
  b.run();
  Watcher watcher(b.world);
  const auto heard = [&] { return watcher.all<ClusterWeights>(); };
  rt::post(b.cluster, WatchCluster{watcher.handle()});
  b.run();
  REQUIRE(heard().size() == 1);
  CHECK(heard()[0].what.version == WeightVersion{5});
  CHECK(changed.seen->updates.empty());
  REQUIRE(missed.seen->updates.size() == 1);
  CHECK(missed.seen->updates[0].what.version == WeightVersion{5});
  CHECK(missed.seen->updates[0].what.folder == "/new");
  CHECK(missed.seen->updates[0].what.weights == 77);
  auto rollout = b.ask<RolloutEntered>(EnterRollout{});
  CHECK(rollout.version == WeightVersion{5});
  CHECK(rollout.weights == 77);
  CHECK(rollout.instances == 2);  // not those of node 2, which has the old weights

  rt::post(missed.seen->updates[0].reply_to, WeightsUpdated{NodeId{2}, WeightVersion{5}, "", 77});
  b.run();
  CHECK(b.ask<RolloutEntered>(EnterRollout{}).instances == 4);

  const ClusterIdentity old{.model = "qwen", .kv_layout = 7, .weights = 12, .version = WeightVersion{1}};
  CHECK(b.enter(3, old).error == "");
  b.ready(3, late.handle());
  REQUIRE(late.seen->updates.size() == 1);
  CHECK(late.seen->updates[0].what.folder == "/new");

  ClusterIdentity now = old;
  now.version = WeightVersion{5};
  CHECK(b.enter(4, now).error == "node 4 is refused: its weights' checksum is 000000000000000c, expected 000000000000004d");
  now.weights = 77;
  CHECK(b.enter(4, now).error == "");
  b.ready(4, fresh.handle());
  CHECK(fresh.seen->updates.empty());
  now.version = WeightVersion{6};
  CHECK(b.enter(5, now).error == "node 5 is refused: its weight version is 6, expected 5");

  rt::post(b.cluster, ClusterWeights{{.version = WeightVersion{4}, .folder = "/older", .weights = 1}, {}});  // it comes late, and says nothing new
  b.run();
  CHECK(b.ask<RolloutEntered>(EnterRollout{}).version == WeightVersion{5});
  CHECK(heard().size() == 1);

  // Newer ones come while a machine still changes to these: it refuses them, and is asked again once it has changed.
  rt::post(b.cluster, ClusterWeights{{.version = WeightVersion{6}, .folder = "/newer", .weights = 78}, {NodeId{1}, NodeId{2}, NodeId{4}}});
  b.run();
  REQUIRE(heard().size() == 2);
  CHECK(heard()[1].what.version == WeightVersion{6});
  REQUIRE(late.seen->updates.size() == 2);
  const WeightsSink reply_to = late.seen->updates[1].reply_to;
  rt::post(reply_to, WeightsUpdated{NodeId{3}, WeightVersion{6}, "node 3 is changing to weight version 5 already", 0});
  b.run();
  CHECK(late.seen->updates.size() == 2);
  rt::post(reply_to, WeightsUpdated{NodeId{3}, WeightVersion{5}, "", 77});
  b.run();
  REQUIRE(late.seen->updates.size() == 3);
  CHECK(late.seen->updates[2].what.version == WeightVersion{6});

  b.world.run_until(b.world.now_us() + ClusterActor::kTryPauseUs);
  CHECK(late.seen->updates.size() == 4);  // those that it refused

  // It could not read them: it gets them again, later each time, until it has them.
  const auto fail_after = [&](int64_t pause_us) {
    const size_t before = late.seen->updates.size();
    rt::post(reply_to, WeightsUpdated{NodeId{3}, WeightVersion{6}, "node 3: the new weights arrived damaged", 0});
    b.world.run_until(b.world.now_us() + pause_us - 1);
    CHECK(late.seen->updates.size() == before);
    b.run();
    CHECK(late.seen->updates.size() == before + 1);
  };
  fail_after(2 * ClusterActor::kTryPauseUs);
  fail_after(4 * ClusterActor::kTryPauseUs);
  rt::post(reply_to, WeightsUpdated{NodeId{3}, WeightVersion{6}, "", 78});
  b.world.run_until(b.world.now_us() + 2 * ClusterActor::kTryPauseUsMax);
  CHECK(late.seen->updates.size() == 6);
  CHECK(b.ask<RolloutEntered>(EnterRollout{}).instances == 8);
}

TEST_CASE("cluster: a machine that has the new weights though its answer was an error, or was lost, is used; others get them so often only") {
  const char* const died = "instance 1 died while it changed its weights";
  const ClusterIdentity old{.model = "qwen", .kv_layout = 7, .weights = 12, .version = WeightVersion{1}};
  struct Case {
    uint64_t answered = 0, reported = 0;  // weights: in the answer, and in its report later
    bool is_used = false;
    std::string error;  // in the answer
  };
  // The last one found other weights in the folder: it was written to meanwhile.
  for (const auto& [answered, reported, is_used, error] :
       {Case{77, 0, true, died}, {0, 77, true, died}, {0, 0, false, died}, {78, 78, false, died}, {78, 78, false, ""}}) {
    CAPTURE(answered);
    CAPTURE(reported);
    Bench b;
    FakeNode first(b.world), second(b.world);
    REQUIRE(b.enter(1, old).error == "");
    REQUIRE(b.enter(2, old).error == "");
    b.ready(1, first.handle());
    b.ready(2, second.handle());
    rt::post(b.cluster, ClusterWeights{{.version = WeightVersion{5}, .folder = "/new", .weights = 77}, {NodeId{1}}});
    b.run();
    REQUIRE(second.seen->updates.size() == 1);
    if (reported != 0) second.seen->report.identity = {.weights = reported, .version = WeightVersion{5}};
    for (int i = 0; i < 2 * ClusterActor::kTriesMax; ++i) {
      rt::post(b.cluster, WeightsUpdated{NodeId{2}, WeightVersion{5}, error, answered});
      b.world.run_until(b.world.now_us() + ClusterActor::kTryPauseUsMax);
    }
    CHECK(second.seen->updates.size() == (is_used || answered != 0 ? 1 : 1 + ClusterActor::kTriesMax));
    CHECK(b.ask<RolloutEntered>(EnterRollout{}).instances == (is_used ? 4 : 2));
  }
}

TEST_CASE("cluster: machines without instances are compared in what they have; rollouts and new weights are for those with instances") {
  Bench b;
  FakeNode kv(b.world), draft(b.world), first(b.world);
  const ClusterIdentity learned{.model = "qwen", .kv_layout = 7, .version = {}};
  const NodeRoles is_kv{NodeRole::kKv}, is_draft{NodeRole::kDraft};
  const auto enter = [&](uint32_t node, const ClusterIdentity& identity, NodeRoles roles) {
    return b.ask<ClusterEntered>(EnterCluster{NodeId{node}, identity, 0, roles, roles == is_draft ? 0 : 64}).error;
  };
  CHECK(enter(1, learned, is_kv) == "");
  b.ready(1, kv.handle());
  CHECK(enter(2, {}, is_draft) == "");
  b.ready(2, draft.handle());
  const auto early = b.ask<RolloutEntered>(EnterRollout{});
  CHECK(early.error == "no machine of the cluster has instances yet");
  CHECK(early.may_enter_later);
  CHECK(enter(3, {.model = "qwen", .kv_layout = 8, .version = {}}, is_kv).find("node 3 is refused: its KV layout is") == 0);
  ClusterIdentity other_protocol;
  other_protocol.protocol = 1;
  CHECK(enter(3, other_protocol, is_draft).find("node 3 is refused: its protocol number is 1") == 0);
  CHECK(b.enter(4, {.model = "moonlight", .kv_layout = 7, .version = WeightVersion{2}}).error ==
        "node 4 is refused: its model is \"moonlight\", expected \"qwen\"");

  CHECK(b.enter(4, {.model = "qwen", .kv_layout = 7, .weights = 5, .version = WeightVersion{2}}).error == "");
  b.ready(4, first.handle());
  CHECK(b.enter(5, {.model = "qwen", .kv_layout = 7, .weights = 6, .version = WeightVersion{2}}).error.find("its weights' checksum is") !=
        std::string::npos);
  const auto entered = b.ask<RolloutEntered>(EnterRollout{});
  CHECK(entered.error == "");
  CHECK(entered.version == WeightVersion{2});
  CHECK(entered.weights == 5);
  CHECK(entered.instances == 2);

  rt::post(b.cluster, ClusterWeights{{.version = WeightVersion{3}, .folder = "w3", .weights = 9}, {NodeId{4}}});
  b.run();
  CHECK(kv.seen->updates.empty());
  CHECK(draft.seen->updates.empty());
  CHECK(enter(6, learned, is_kv) == "");
  const auto report = b.ask<ClusterReport>(GetReport{});
  REQUIRE(report.nodes.size() == 3);
  CHECK(report.nodes[0].roles == is_kv);
  CHECK(report.nodes[0].kv_block_bytes == 64);
  CHECK(report.nodes[0].identity.version == WeightVersion{});
  CHECK(report.nodes[1].roles == is_draft);
}
