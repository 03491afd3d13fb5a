#include "actors/cluster_actor.h"

#include <doctest/doctest.h>

#include <sstream>

#include "actors/cluster_checks.h"
#include "actors/recorder.h"

using namespace seer;

namespace {

using Watcher = Recorder<ClusterSink, NodeJoined, PartLost>;

/// A machine that only counts how often it was woken.
struct FakeNode {
  struct Actor {
    using handle = NodeHandle;
    static constexpr const char* kActorName = "fake_node";
    Actor(rt::self_ptr<Actor>, std::shared_ptr<int> woken_in) : woken(std::move(woken_in)) {}
    handle::behavior_type make_behavior() {
      return {[](const AttachRollout&) {}, [](const UpdateWeights&) {}, [](const InstanceWeights&) {},
              [this](const WorkReady&) { ++*woken; }};
    }
    std::shared_ptr<int> woken;
  };
  explicit FakeNode(SimWorld& world) : actor(world.spawn<Actor>(woken)) {}
  const NodeHandle& handle() const { return actor; }
  std::shared_ptr<int> woken = std::make_shared<int>(0);
  NodeHandle actor;
};

/// A cluster, and machines played by the test.
struct Bench {
  template <class Answer, class Question>
  Answer ask(Question question) {
    std::optional<Answer> answer;
    // The unused argument is for CAF 0.17: see rt::spawn().
    world.system.spawn([&](caf::event_based_actor* self, char) {
      rt::ask(self, cluster, rt::kControlTimeoutUs, question).then([&](Answer& got) { answer = std::move(got); });
    }, char{});
    run();
    REQUIRE(answer.has_value());
    return *answer;
  }
  ClusterEntered enter(uint32_t node, ClusterIdentity identity = {.model = "qwen", .layout = 7, .version = WeightVersion{1}}) {
    return ask<ClusterEntered>(EnterCluster{NodeId{node}, identity});
  }
  void ready(uint32_t node, const NodeHandle& handle) {
    rt::post(cluster, NodeReady{{NodeId{node}, "10.0.0.1", static_cast<uint16_t>(7000 + node)}, handle, 2});
    run();
  }
  void run() { world.run_until(world.now_us() + 1000); }

  SimWorld world;
  std::ostringstream lines;
  ClusterHandle cluster = world.spawn<ClusterActor>(EventLog::to(lines, LogLevel::kInfo, LogClock::kVirtual));
  Watcher watcher{world};
};

}  // namespace

TEST_CASE("cluster: who watches hears of the machines that are there, then of those that come and leave") {
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
  rt::kill(first.handle());
  b.run();
  REQUIRE(b.watcher.all<PartLost>().size() == 1);
  CHECK(b.watcher.all<PartLost>()[0].reason == "node 3 is gone");
  CHECK(b.watcher.all<PartLost>()[0].instances == std::vector{node_instance(NodeId{3}, 0), node_instance(NodeId{3}, 1)});
  CHECK(b.lines.str().find(" warn node_left node=3 reason=\"node 3 is gone\"\n") != std::string::npos);
}

TEST_CASE("cluster: a second machine of a name, or one of another kind, is refused with a sentence until the first is gone") {
  Bench b;
  FakeNode first(b.world);
  const ClusterEntered entered = b.enter(0);
  b.ready(0, first.handle());
  CHECK(b.enter(0).error == "node 0 is refused: a node of that name is in the cluster, expected another name for each machine");
  CHECK(b.enter(1, {.model = "moonlight", .layout = 7, .version = WeightVersion{1}}).error ==
        "node 1 is refused: its model is \"moonlight\", expected \"qwen\"");
  CHECK(b.enter(1, {.model = "qwen", .layout = 8, .version = WeightVersion{1}}).error.find("node 1 is refused: its KV layout is") == 0);
  CHECK(b.enter(1, {.model = "qwen", .layout = 7, .version = WeightVersion{2}}).error ==
        "node 1 is refused: its weight version is 2, expected 1");
  rt::kill(first.handle());
  b.run();
  const ClusterEntered again = b.enter(0, {.model = "moonlight", .layout = 9, .version = WeightVersion{2}});
  CHECK(again.error == "");
  CHECK(again.epoch > entered.epoch);
}

TEST_CASE("cluster: a machine that asked to come in and was never up loses its place, also when it comes up after that") {
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
  CHECK(*second.woken == 1);
  CHECK(*late.woken == 0);  // it was stopped
}

TEST_CASE("cluster: each rollout gets an id of its own, and hears with which weights and on how many instances it runs") {
  Bench b;
  FakeNode node(b.world);
  CHECK(b.ask<RolloutEntered>(EnterRollout{}).error == "the cluster has no machine yet");
  b.enter(0, {.model = "qwen", .layout = 7, .version = WeightVersion{4}});
  CHECK(b.ask<RolloutEntered>(EnterRollout{}).error != "");  // it is not up yet
  b.ready(0, node.handle());
  const auto first = b.ask<RolloutEntered>(EnterRollout{}), second = b.ask<RolloutEntered>(EnterRollout{});
  CHECK(first.error == "");
  CHECK(first.version == WeightVersion{4});
  CHECK(first.instances == 2);
  CHECK(first.id != RolloutId{});
  CHECK(second.id != first.id);
  CHECK(second.directory == first.directory);
  const auto report = b.ask<ClusterReport>(GetReport{});
  REQUIRE(report.nodes.size() == 1);
  CHECK(report.nodes[0].at.port == 7000);
}
