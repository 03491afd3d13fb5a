#include <doctest/doctest.h>

#include "actors/cluster_checks.h"
#include "actors/recorder.h"
#include "actors/weight_source_actor.h"
#include "protocols/crc32c.h"

using namespace seer;

namespace {

struct Bench {
  explicit Bench(SimClusterOptions o = {}) : cluster(std::move(o)), rollout(cluster.world) {
    cluster.run_for(0);
    rt::post(cluster.node(), AttachRollout{rollout.handle()});
    cluster.run_for(0);
  }
  std::vector<InstanceUp> ups() const { return rollout.all<InstanceUp>(); }
  /// Whether it still answers a rollout that attaches.
  bool is_up() {
    Recorder<InstanceSink, InstanceUp, DraftServerUp, InstancesDraining, PartLost> other(cluster.world);
    rt::post(cluster.node(), AttachRollout{other.handle()});
    cluster.run_for(0);
    rt::post(cluster.node(), AttachRollout{rollout.handle()});
    cluster.run_for(0);
    return !other.log().empty();
  }
  std::vector<PartLost> losses() const { return rollout.all<PartLost>(); }
  SimCluster cluster;
  Recorder<InstanceSink, InstanceUp, DraftServerUp, InstancesDraining, PartLost> rollout;
};

/// A server that sends no weights.
struct Silent {
  using handle = WeightSourceHandle;
  static constexpr const char* kActorName = "silent";
  explicit Silent(rt::self_ptr<Silent>) {}
  handle::behavior_type make_behavior() {
    return {[](const ReadWeights&) {}};
  }
};

}  // namespace

TEST_CASE("node: a rollout that attaches hears of every instance and its size") {
  Bench b({.instances = 3, .device_blocks = 50, .block_tokens = 8, .rows_max = 5});
  REQUIRE(b.ups().size() == 3);
  for (uint32_t i = 0; i < 3; ++i) {
    const InstanceUp up = b.ups()[i];
    CHECK(up.instance == InstanceId{i});
    CHECK(up.kv_blocks == 50);
    CHECK(up.block_tokens == 8);
    CHECK(up.rows_max == 5);
    CHECK(up.handle == b.cluster.instance(i));
  }
}

TEST_CASE("node: an instance that dies is started again and announced; the others are left alone") {
  Bench b;
  const InstanceHandle first = b.cluster.instance(0), second = b.cluster.instance(1);
  b.cluster.kill_instance(InstanceId{0});
  b.cluster.run_for(0);
  REQUIRE(b.ups().size() == 3);
  CHECK(b.ups()[2].instance == InstanceId{0});
  CHECK(b.ups()[2].handle == b.cluster.instance(0));
  CHECK(b.cluster.instance(0) != first);
  CHECK(b.cluster.instance(1) == second);
  CHECK(b.cluster.node_state().restarts == 1);
}

TEST_CASE("node: when the KV node dies it is started again, and so are the instances that had its slots") {
  Bench b;
  const KvNodeHandle pool = b.cluster.kv_node();
  const InstanceHandle first = b.cluster.instance(0), second = b.cluster.instance(1);
  b.cluster.kill_kv_node();
  b.cluster.run_for(0);
  CHECK(b.cluster.kv_node() != pool);
  CHECK(b.cluster.instance(0) != first);
  CHECK(b.cluster.instance(1) != second);
  for (uint32_t i = 0; i < 2; ++i) {
    CHECK(b.cluster.instance_state(i).parts.kv_node == b.cluster.kv_node());
    CHECK(b.cluster.instance_state(i).parts.arena == b.cluster.arena);
  }
  CHECK(b.ups().size() == 4);
  CHECK(b.cluster.node_state().restarts == 1);
  CHECK(rt::look<KvDirectoryActor>(b.cluster.directory()).nodes.at(NodeId{0}).handle == b.cluster.kv_node());
}

TEST_CASE("node: there is never more than one engine of an instance") {
  Bench b;
  for (int i = 0; i < 3; ++i) {
    b.cluster.kill_kv_node();
    b.cluster.kill_instance(InstanceId{0});
    b.cluster.run_for(0);
  }
  CHECK(b.cluster.engines_peak == 2);
  CHECK(b.cluster.node_state().instances.size() == 2);
}

TEST_CASE("node: new weights are announced per instance, and one that is started again gets them before it is announced") {
  Bench b;
  Recorder<WeightsSink, WeightsUpdated> answers(b.cluster.world);
  const auto update = [&](uint64_t version) {
    rt::post(b.cluster.node(), UpdateWeights{{WeightVersion{version}, "folder"}, answers.handle()});
    b.cluster.run_for(0);
  };
  update(5);
  b.cluster.run_for(10'000'000);
  REQUIRE(answers.all<WeightsUpdated>().size() == 1);
  CHECK(answers.all<WeightsUpdated>()[0].error == "");
  REQUIRE(b.ups().size() == 4);
  for (const uint32_t i : {2, 3}) {
    CHECK(b.ups()[i].identity.version == WeightVersion{5});
    CHECK(b.ups()[i].handle == b.ups()[b.ups()[i].instance.value].handle);
  }
  update(5);  // whose folder may have other weights by now
  REQUIRE(answers.all<WeightsUpdated>().size() == 2);
  CHECK(answers.all<WeightsUpdated>()[1].error == "node 0 has weight version 5, and 5 is not above it");

  b.cluster.kill_instance(InstanceId{0});
  b.cluster.run_for(10'000'000);
  REQUIRE(b.ups().size() == 5);
  CHECK(b.ups()[4].instance == InstanceId{0});
  CHECK(b.ups()[4].identity.version == WeightVersion{5});

  // An instance dies during an update: the answer says so, and in the end it has the weights of the others.
  update(6);
  b.cluster.kill_instance(InstanceId{1});
  b.cluster.run_for(10'000'000);
  REQUIRE(answers.all<WeightsUpdated>().size() == 3);
  CHECK(answers.all<WeightsUpdated>()[2].error == "instance 1 died while it changed its weights");
  for (const InstanceUp& up : {b.ups()[b.ups().size() - 2], b.ups().back()}) CHECK(up.identity.version == WeightVersion{6});
  CHECK(b.ups()[b.ups().size() - 2].instance != b.ups().back().instance);
  CHECK(b.losses().empty());
}

TEST_CASE("node: an instance that cannot take the weights of the others is started again after longer and longer pauses") {
  Bench b;
  Recorder<WeightsSink, WeightsUpdated> answers(b.cluster.world);
  rt::post(b.cluster.node(), UpdateWeights{{WeightVersion{5}, "folder"}, answers.handle()});
  b.cluster.run_for(10'000'000);
  REQUIRE(answers.all<WeightsUpdated>().size() == 1);
  for (const int64_t seconds : {1, 2, 4, 8, 16, 32, 32, 32}) {
    CAPTURE(seconds);
    const InstanceHandle before = b.cluster.instance(0);
    const int32_t restarts = b.cluster.node_state().restarts;
    rt::post(b.cluster.node(), InstanceWeights{InstanceId{0}, WeightVersion{1}, 1, "no such folder"});
    b.cluster.run_for(seconds * 1'000'000 - 1);
    CHECK(b.cluster.instance(0) == before);
    b.cluster.run_for(1);
    CHECK(b.cluster.node_state().restarts == restarts + 1);
    b.cluster.run_for(500'000);
    CHECK(b.cluster.instance(0) != before);
  }
  CHECK(b.losses().empty());
  // It died meanwhile: its replacement is left alone.
  rt::post(b.cluster.node(), InstanceWeights{InstanceId{1}, WeightVersion{1}, 1, "no such folder"});
  b.cluster.run_for(0);
  b.cluster.kill_instance(InstanceId{1});
  b.cluster.run_for(0);
  const InstanceHandle replacement = b.cluster.instance(1);
  b.cluster.run_for(100'000'000);
  CHECK(b.cluster.instance(1) == replacement);
  CHECK(b.ups().back().identity.version == WeightVersion{5});
}

TEST_CASE("node: who asks for weights that another one asked for is answered with it, or at once if the machine surely has them") {
  Bench b;
  Recorder<WeightsSink, WeightsUpdated> first(b.cluster.world), second(b.cluster.world);
  NewWeights what{WeightVersion{2}, "folder"};
  rt::post(b.cluster.node(), UpdateWeights{what, first.handle()});
  b.cluster.run_for(100);
  rt::post(b.cluster.node(), UpdateWeights{what, second.handle()});
  rt::post(b.cluster.node(), UpdateWeights{{WeightVersion{2}, "another"}, second.handle()});
  b.cluster.run_for(100);
  CHECK(first.all<WeightsUpdated>().empty());
  REQUIRE(second.all<WeightsUpdated>().size() == 1);
  CHECK(second.all<WeightsUpdated>()[0].error == "node 0 is changing to weight version 2 already");
  b.cluster.run_for(10'000'000);
  what.weights = b.ups().back().identity.weights;
  rt::post(b.cluster.node(), UpdateWeights{what, second.handle()});
  b.cluster.run_for(0);
  REQUIRE(first.all<WeightsUpdated>().size() == 1);
  REQUIRE(second.all<WeightsUpdated>().size() == 3);
  for (const WeightsUpdated& answer : {first.all<WeightsUpdated>()[0], second.all<WeightsUpdated>()[1], second.all<WeightsUpdated>()[2]}) {
    CHECK(answer.error == "");
    CHECK(answer.weights == b.ups().back().identity.weights);
  }
  CHECK(b.ups().size() == 4);  // each instance has changed once
}

TEST_CASE("node: weights that an instance took before all died are those of the machine, and its answer says so") {
  Bench b({.remake_us = 50'000});
  Recorder<WeightsSink, WeightsUpdated> answers(b.cluster.world);
  Recorder<ChunkSink, ChunkProgress, ChunkDone> rollout(b.cluster.world);
  rt::post(b.cluster.instance(1), UseInstance{RolloutId{9}, WeightVersion{1}, rollout.handle()});  // keeps its weights
  b.cluster.run_for(0);
  rt::post(b.cluster.node(), UpdateWeights{{WeightVersion{2}, "folder"}, answers.handle()});
  b.cluster.run_for(10'000);
  REQUIRE(b.ups().back().identity.version == WeightVersion{2});
  const uint64_t weights = b.ups().back().identity.weights;
  CHECK(answers.all<WeightsUpdated>().empty());
  b.cluster.kill_instance(InstanceId{0});
  b.cluster.kill_instance(InstanceId{1});
  b.cluster.run_for(10'000);
  REQUIRE(answers.all<WeightsUpdated>().size() == 1);
  CHECK(answers.all<WeightsUpdated>()[0].error == "instance 1 died while it changed its weights");
  CHECK(answers.all<WeightsUpdated>()[0].weights == weights);
  b.cluster.run_for(1'000'000);
  for (const InstanceUp& up : {b.ups()[b.ups().size() - 2], b.ups().back()}) CHECK(up.identity.version == WeightVersion{2});
}

TEST_CASE("node: weights that were sent to a server are read whole and checked before any instance changes") {
  Bench b({.loader = std::make_shared<ModelLoader>()});
  Recorder<WeightsSink, WeightsUpdated> answers(b.cluster.world);
  std::string bytes(9 * kWeightPartBytes + 5, 'w');
  for (size_t i = 0; i < bytes.size(); i += 1000) bytes[i] = static_cast<char>(i % 251);
  const auto memory = *WeightMemory::create();
  REQUIRE(memory->append(bytes).ok());
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes)));
  const auto source = b.cluster.world.spawn<WeightSourceActor>(std::shared_ptr<const WeightMemory>(memory));
  const auto update = [&](uint64_t version, const WeightSourceHandle& from, uint32_t sum, int64_t run_us) {
    rt::post(b.cluster.node(), UpdateWeights{{WeightVersion{version}, "upload", from, bytes.size(), sum}, answers.handle()});
    b.cluster.run_for(run_us);
    return answers.all<WeightsUpdated>().back();
  };
  CHECK(update(5, source, crc + 1, 10'000'000).error ==
        cat("node 0: the new weights arrived damaged: their checksum is ", crc, ", expected ", crc + 1));
  CHECK(b.ups().size() == 2);
  const auto silent = b.cluster.world.spawn<Silent>();
  CHECK(update(5, silent, crc, 130'000'000).error == "node 0: the server that sends the weights was silent for 60 s");
  rt::kill(silent);
  CHECK(update(5, silent, crc, 1'000'000).error == "node 0: the server that sends the weights is gone");
  CHECK(b.ups().size() == 2);
  CHECK(update(5, source, crc, 10'000'000).error == "");
  REQUIRE(b.ups().size() == 4);
  CHECK(b.ups()[3].identity.version == WeightVersion{5});
}

TEST_CASE("node: the late end of something already replaced is ignored") {
  Bench b;
  const InstanceHandle first = b.cluster.instance(0);
  b.cluster.kill_instance(InstanceId{0});
  b.cluster.run_for(0);
  const InstanceHandle second = b.cluster.instance(0);
  const size_t ups = b.ups().size();
  const rt::down late{first.address(), caf::exit_reason::kill};
  b.cluster.node_state().on_down(late);
  b.cluster.run_for(0);
  CHECK(b.cluster.instance(0) == second);
  CHECK(b.ups().size() == ups);
  CHECK(b.cluster.node_state().restarts == 1);
}

TEST_CASE("node: an instance is lost after restarts_max restarts; with the last one it gives up and ends, with all its actors") {
  Bench b({.restarts_max = 2});
  for (const uint32_t instance : {1, 0}) {
    for (int i = 0; i < 2; ++i) {
      b.cluster.kill_instance(InstanceId{instance});
      b.cluster.run_for(0);
      REQUIRE(b.is_up());
    }
    b.cluster.kill_instance(InstanceId{instance});
    b.cluster.run_for(0);
    if (instance == 0) break;
    REQUIRE(b.is_up());
    CHECK(b.cluster.engines_now == 1);
    CHECK(b.losses().back().reason == "instance 1 on node 0 died after 2 restarts");
    CHECK(b.losses().back().instances == std::vector{InstanceId{1}});
  }
  CHECK_FALSE(b.is_up());
  CHECK(b.losses().back().reason == "node 0 gave up when instance 0 died after 2 restarts");
  CHECK(b.cluster.engines_now == 0);
  CHECK(rt::look<KvDirectoryActor>(b.cluster.directory()).nodes.empty());
}

TEST_CASE("node: restarts that were long ago do not count") {
  Bench b({.restarts_max = 1});
  for (int i = 0; i < 5; ++i) {
    b.cluster.kill_instance(InstanceId{1});
    b.cluster.kill_kv_node();
    b.cluster.run_for(kRestartsUs + 1);
    REQUIRE(b.is_up());
  }
  CHECK(b.losses().empty());
  CHECK(b.cluster.engines_now == 2);
}

TEST_CASE("node: a rollout that attaches, also later, hears which instances are lost for good") {
  Bench b({.restarts_max = 1});
  b.cluster.options.engine_fault = [](InstanceId) -> Status { return fail(Code::kFull, "no memory for it"); };
  b.cluster.kill_instance(InstanceId{1});
  b.cluster.run_for(0);
  REQUIRE(b.losses().size() == 1);
  CHECK(b.losses()[0].instances == std::vector{InstanceId{1}});
  CHECK(b.losses()[0].reason == "instance 1 on node 0 could not be started again: no memory for it");
  CHECK(b.ups().size() == 2);

  Recorder<InstanceSink, InstanceUp, DraftServerUp, InstancesDraining, PartLost> late(b.cluster.world);
  rt::post(b.cluster.node(), AttachRollout{late.handle()});
  b.cluster.run_for(0);
  CHECK(late.all<InstanceUp>().size() == 1);
  CHECK(late.all<PartLost>().size() == 1);

  // Attached rollouts also hear of the last restart.
  b.cluster.options.engine_fault = {};
  for (int i = 0; i < 2; ++i) {
    b.cluster.kill_kv_node();
    b.cluster.run_for(0);
  }
  REQUIRE(late.all<PartLost>().size() == 2);
  CHECK(late.all<PartLost>()[1].reason == "node 0 gave up when its KV pool died after 1 restarts");
  CHECK(late.all<PartLost>()[1].instances.size() == 2);
}

TEST_CASE("node: one whose last instance cannot be started again ends") {
  Bench b;
  b.cluster.options.engine_fault = [](InstanceId) -> Status { return fail(Code::kFull, "no memory for it"); };
  for (const uint32_t instance : {1, 0}) {
    REQUIRE(b.is_up());
    b.cluster.kill_instance(InstanceId{instance});
    b.cluster.run_for(0);
  }
  CHECK_FALSE(b.is_up());
  CHECK(b.losses().back().reason == "instance 0 on node 0 could not be started again: no memory for it");
  CHECK(b.losses().back().instances.size() == 2);
}

TEST_CASE("node: when the directory refuses its KV node it ends at once, and tells attached rollouts why") {
  Bench b;
  const std::string why = "node 0 is refused: its model is \"qwen\", expected \"moonlight\"";
  rt::post(b.cluster.kv_node(), KvRefused{why});
  b.cluster.run_for(0);
  CHECK_FALSE(b.is_up());
  REQUIRE(b.losses().size() == 1);
  CHECK(b.losses()[0].reason == why);
  CHECK(b.losses()[0].instances.size() == 2);
  CHECK(b.cluster.engines_now == 0);
}

TEST_CASE("node: while a part is made, the other parts may die; each is started again once") {
  Bench b({.remake_us = 1000});
  b.cluster.kill_instance(InstanceId{0});
  b.cluster.run_for(500);
  CHECK(b.ups().size() == 2);     // its engine is still being made
  b.cluster.kill_kv_node();       // so the pool is made when the other instance has ended, and both wait for it
  b.cluster.run_for(900);
  CHECK(b.ups().size() == 2);
  b.cluster.run_for(100);
  REQUIRE(b.ups().size() == 4);
  for (uint32_t i = 0; i < 2; ++i) CHECK(b.cluster.instance_state(i).parts.kv_node == b.cluster.kv_node());
  CHECK(b.cluster.engines_now == 2);
  CHECK(b.cluster.engines_peak == 2);
  CHECK(b.cluster.node_state().restarts == 2);
}

TEST_CASE("node: when drained it says so, gives its chunks back, and ends in order when no request keeps KV there") {
  SimCluster cluster({.instances = 4, .nodes = 2, .device_blocks = 256, .groups = 12, .length_max = 400});
  cluster.start();
  cluster.world.run_until(60'000'000, [&] { return cluster.seen.responses.size() >= 4; });
  REQUIRE_FALSE(cluster.over());
  CHECK(cluster.instance_state(1).sequences.size() + cluster.instance_state(3).sequences.size() > 0);
  const NodeHandle leaving = cluster.node(1);
  bool has_left = false;
  const caf::actor watcher = cluster.world.system.spawn([&](caf::event_based_actor* self, char) -> caf::behavior {
    self->set_down_handler([&](const caf::down_msg& down) { has_left = rt::ended_in_order(down); });
    self->monitor(leaving);
    return {[](int) {}};
  }, char{});
  rt::post(leaving, DrainNode{60'000'000});
  cluster.run_for(200'000);
  CHECK(cluster.instance_state(1).sequences.empty());
  CHECK(cluster.instance_state(3).sequences.empty());
  std::optional<NodeReport> report;
  // The unused argument is for CAF 0.17: see rt::spawn().
  cluster.world.system.spawn([&](caf::event_based_actor* self, char) {
    rt::ask(self, leaving, rt::kControlTimeoutUs, GetReport{}).then([&](NodeReport& got) { report = std::move(got); });
  }, char{});
  cluster.run_for(0);
  REQUIRE(report.has_value());
  CHECK(report->draining);
  CHECK(report->instances.size() == 2);
  REQUIRE(report->pool.size() == 1);
  Recorder<InstanceSink, InstanceUp, DraftServerUp, InstancesDraining, PartLost> late(cluster.world);
  rt::post(leaving, AttachRollout{late.handle()});
  cluster.finish();
  REQUIRE(late.log().size() == 1);  // nothing of it is offered any more, nor waited for
  CHECK(late.all<InstancesDraining>().front().instances.size() == 2);
  REQUIRE(cluster.seen.summaries.size() == 1);
  CHECK(cluster.seen.summaries[0].complete);
  CHECK(cluster.seen.summaries[0].instances_lost == 0);
  CHECK(cluster.seen.summaries[0].preemptions == 0);
  check_exact(cluster);
  cluster.run_for(1'000'000);
  CHECK(has_left);
}

TEST_CASE("node: when drained it ends at its timeout, and KV that it still keeps is computed again") {
  SimCluster cluster({.scheduler = {.policy = "seer", .chunk_tokens = 20, .reserve_share = 1}, .instances = 2, .nodes = 2, .device_blocks = 40,
                      .groups = 12, .length_max = 100});
  cluster.start();
  cluster.world.run_until(60'000'000, [&] { return cluster.seen.responses.size() >= 4; });
  REQUIRE_FALSE(cluster.over());
  rt::post(cluster.node(1), DrainNode{0});
  cluster.run_for(150'000);
  CHECK(rt::look<KvDirectoryActor>(cluster.directory()).nodes.size() == 1);
  cluster.finish();
  REQUIRE(cluster.seen.summaries.size() == 1);
  CHECK(cluster.seen.summaries[0].complete);
  check_exact(cluster);
}
