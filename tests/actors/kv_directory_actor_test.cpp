#include <doctest/doctest.h>

#include "actors/kv_directory_actor.h"
#include "actors/recorder.h"
#include "actors/sim/sim_world.h"

using namespace seer;

namespace {

/// A KV node that only notes its messages.
struct FakeNode {
  using handle = KvNodeHandle;
  static constexpr const char* kActorName = "fake_node";
  struct Seen {
    std::vector<KvOwner> released;
    std::vector<WeightVersion> bumps;
    std::string refused;
  };
  FakeNode(rt::self_ptr<FakeNode>, Seen* seen_in, uint32_t id_in) : seen(seen_in), id(id_in) {}
  handle::behavior_type make_behavior() {
    return {[](const ReserveBlocks&) {},
            [](const OpenBlocks&) {},
            [](const KvSeal&) {},
            [](const KvAbort&) {},
            [](const KvClose&) {},
            [this](const KvRelease& release) { seen->released.push_back(release.owner); },
            [this](const KvBump& bump) { seen->bumps.push_back(bump.version); },
            [](const WorkReady&) {},
            [](const KvHolders&) {},
            [](const TakeBlocks&) {},
            [](const KvRoomFound&) {},
            [](const KvReserved&) {},
            [](const KvOpened&) {},
            [this](const KvRefused& refused) { seen->refused = refused.why; },
            [](const DirectoryUp&) {},
            [](const Tick&) {},
            [this](const GetReport&) { return KvNodeReport{.node = NodeId{id}}; }};
  }
  Seen* seen;
  uint32_t id;
};

struct Bench {
  Bench() {
    directory = world.spawn<KvDirectoryActor>();
    for (uint32_t i = 0; i < 3; ++i) {
      nodes.push_back(world.spawn<FakeNode>(&seen[i], i));
      tell(KvNodeUp{NodeId{i}, nodes.back()});
    }
  }
  template <class Message>
  void tell(Message message) {
    rt::post(directory, std::move(message));
    world.run_until(world.now_us() + 1000);
  }
  KvDirectoryActor& state() { return rt::look<KvDirectoryActor>(directory); }

  FakeNode::Seen seen[4];
  SimWorld world;
  KvDirectoryHandle directory;
  std::vector<KvNodeHandle> nodes;
};

constexpr KvOwner kA{11}, kB{12};

}  // namespace

TEST_CASE("kv directory: a release reaches those that hold the owner's blocks, and nobody else") {
  Bench b;
  b.tell(KvHolds{NodeId{0}, kA});
  b.tell(KvHolds{NodeId{2}, kA});
  b.tell(KvHolds{NodeId{1}, kB});
  b.tell(KvRelease{kA});
  CHECK(b.seen[0].released == std::vector<KvOwner>{kA});
  CHECK(b.seen[1].released.empty());
  CHECK(b.seen[2].released == std::vector<KvOwner>{kA});
  CHECK_FALSE(b.state().holders.contains(kA));
  CHECK(b.state().holders.contains(kB));
  b.tell(KvRelease{kA});  // again: nobody is left to tell
  CHECK(b.seen[0].released.size() == 1);
}

TEST_CASE("kv directory: a KvHolds that comes after the owner's release is answered by a release") {
  Bench b;
  b.tell(KvRelease{kA});
  b.tell(KvHolds{NodeId{1}, kA});
  CHECK(b.seen[1].released == std::vector<KvOwner>{kA});
  CHECK(b.state().holders.empty());
}

TEST_CASE("kv directory: a release outlives another rollout's start; only so many are remembered") {
  Bench b;
  b.tell(KvRelease{kA});
  b.tell(KvBump{WeightVersion{5}});
  b.tell(KvHolds{NodeId{1}, kA});
  CHECK(b.seen[1].released == std::vector<KvOwner>{kA});
  for (uint64_t i = 0; i < KvDirectoryActor::kReleasedMax; ++i) rt::post(b.directory, KvRelease{KvOwner{100 + i}});
  b.world.run_until(b.world.now_us());
  CHECK(b.state().released.size() == KvDirectoryActor::kReleasedMax);
  CHECK_FALSE(b.state().released.contains(kA));
}

TEST_CASE("kv directory: new weights reach every node, once, and never go back") {
  Bench b;
  b.tell(KvBump{WeightVersion{5}});
  b.tell(KvBump{WeightVersion{5}});  // another rollout with the same weights
  for (int i = 0; i < 3; ++i) CHECK(b.seen[i].bumps == std::vector<WeightVersion>{WeightVersion{5}});
  b.tell(KvBump{WeightVersion{4}});
  CHECK(b.seen[0].bumps.size() == 1);
  // A node that comes up later must not take KV of weights that are gone.
  b.tell(KvNodeUp{NodeId{3}, b.world.spawn<FakeNode>(&b.seen[3], 3u)});
  CHECK(b.seen[3].bumps == std::vector<WeightVersion>{WeightVersion{5}});
}

TEST_CASE("kv directory: a dead node is forgotten, and the others are still told") {
  Bench b;
  b.tell(KvHolds{NodeId{0}, kA});
  b.tell(KvHolds{NodeId{1}, kA});
  rt::kill(b.nodes[0]);
  b.world.run_until(b.world.now_us() + 1000);
  CHECK(b.state().nodes.size() == 2);
  CHECK(b.state().holders.at(kA).size() == 1);
  CHECK(b.state().holders.at(kA).contains(NodeId{1}));
  b.tell(KvRelease{kA});
  CHECK(b.seen[0].released.empty());
  CHECK(b.seen[1].released == std::vector<KvOwner>{kA});
}

TEST_CASE("kv directory: the down message of a node that has already come back changes nothing") {
  Bench b;
  auto again = b.world.spawn<FakeNode>(&b.seen[3], 0u);
  b.tell(KvNodeUp{NodeId{0}, again});
  b.tell(KvHolds{NodeId{0}, kA});
  rt::kill(b.nodes[0]);
  b.world.run_until(b.world.now_us() + 1000);
  CHECK(b.state().nodes.at(NodeId{0}).handle == again);
  b.tell(KvRelease{kA});
  CHECK(b.seen[3].released == std::vector<KvOwner>{kA});
}

TEST_CASE("kv directory: what a controller that was started found alive is no measure for rollouts of later") {
  Bench b;
  const auto owner = [](uint32_t rollout) { return KvOwner{1, RolloutId{rollout}}; };
  b.tell(KvKeepRollouts{RolloutId{1000}, {RolloutId{7}}});
  for (const uint32_t rollout : {7u, 8u, 1001u}) b.tell(KvHolds{NodeId{0}, owner(rollout)});
  CHECK(b.seen[0].released == std::vector{owner(8)});
  b.world.run_until(b.world.now_us() + KvDirectoryActor::kAliveUs + 1);
  const uint32_t later = 1000u + (1u << 31);  // ids are milliseconds: after 25 days
  for (const uint32_t rollout : {9u, later}) b.tell(KvHolds{NodeId{0}, owner(rollout)});
  CHECK(b.seen[0].released == std::vector{owner(8)});
}

TEST_CASE("kv directory: reports come from every node that is there, in order") {
  Bench b;
  rt::kill(b.nodes[1]);
  b.world.run_until(b.world.now_us() + 1000);
  std::vector<uint32_t> ids;
  // The unused argument is for CAF 0.17: see rt::spawn().
  b.world.system.spawn([&](caf::event_based_actor* self, char) {
    rt::ask(self, b.directory, rt::kControlTimeoutUs, GetReport{}).then([&](const std::vector<KvNodeReport>& reports) {
      for (const KvNodeReport& r : reports) ids.push_back(r.node.value);
    });
  }, char{});
  b.world.run_until(b.world.now_us() + 10'000'000);
  CHECK(ids == std::vector<uint32_t>{0, 2});
}

TEST_CASE("directory: a KvNodeUp that arrives after a later one of the same node is ignored") {
  Bench b;
  const auto again = b.world.spawn<FakeNode>(&b.seen[3], 0u), gone = b.world.spawn<FakeNode>(&b.seen[3], 0u);
  rt::kill(gone);
  rt::kill(b.nodes[0]);
  b.tell(KvNodeUp{NodeId{0}, again, 3});
  b.tell(KvNodeUp{NodeId{0}, gone, 2});
  b.tell(KvHolds{NodeId{0}, kA});
  b.tell(KvRelease{kA});
  CHECK(b.state().nodes.at(NodeId{0}).handle == again);
  CHECK(b.seen[3].released == std::vector<KvOwner>{kA});
}

TEST_CASE("directory: a node with another model, layout or protocol is refused with a sentence, and the others go on") {
  SimWorld world;
  const KvDirectoryHandle directory = world.spawn<KvDirectoryActor>();
  FakeNode::Seen seen[4];
  const ClusterIdentity good{.model = "moonlight", .kv_layout = 7};
  ClusterIdentity model = good, layout = good, protocol = good;
  model.model = "qwen";
  layout.kv_layout = 8;
  protocol.protocol = kProtocolNumber + 1;
  const ClusterIdentity said[] = {good, model, layout, protocol};
  for (uint32_t i = 0; i < 4; ++i) {
    rt::post(directory, KvNodeUp{NodeId{i}, world.spawn<FakeNode>(&seen[i], i), 1, "", said[i]});
    world.run_until(world.now_us() + 1000);
  }
  CHECK(rt::look<KvDirectoryActor>(directory).nodes.size() == 1);
  CHECK(seen[0].refused == "");
  CHECK(seen[1].refused == "node 1 is refused: its model is \"qwen\", expected \"moonlight\"");
  CHECK(seen[2].refused == "node 2 is refused: its KV layout is 0000000000000008, expected 0000000000000007: --kv-dtype, --block-tokens, --device and, with GPUs, --tensor-parallel and their kind must be the same");
  CHECK(seen[3].refused.find("node 3 is refused: its protocol number is") == 0);
}

TEST_CASE("directory: a second node with the same name is refused once the first has proved alive") {
  Bench b;
  const auto twin = b.world.spawn<FakeNode>(&b.seen[3], 0u);
  b.tell(KvNodeUp{NodeId{0}, twin, kEpochsOfStart});
  CHECK(b.state().nodes.at(NodeId{0}).handle == b.nodes[0]);
  CHECK(b.seen[3].refused == "");  // the first may be gone without our knowing
  b.world.run_until(b.world.now_us() + KvDirectoryActor::kTakeoverUs);
  CHECK(b.state().nodes.at(NodeId{0}).handle == b.nodes[0]);
  CHECK(b.state().waiting.empty());
  CHECK(b.seen[3].refused ==
        "node 0 is refused: a node of that name is up in epoch 0 and alive, and this one's is 1048576: expected another name for "
        "each machine");
}

TEST_CASE("directory: a node that restarts before its death is known takes over when it is") {
  Bench b;
  const auto again = b.world.spawn<FakeNode>(&b.seen[3], 0u);
  b.tell(KvNodeUp{NodeId{0}, again, kEpochsOfStart});
  b.tell(KvHolds{NodeId{0}, kA});
  b.tell(KvHolds{NodeId{0}, kB});
  b.tell(KvRelease{kB});  // while it waits
  CHECK(b.seen[3].released == std::vector<KvOwner>{kB});
  rt::kill(b.nodes[0]);
  b.world.run_until(b.world.now_us() + 2 * KvDirectoryActor::kTakeoverUs);
  CHECK(b.state().nodes.at(NodeId{0}).handle == again);
  CHECK(b.seen[3].refused == "");
  b.tell(KvRelease{kA});
  CHECK(b.seen[3].released == std::vector<KvOwner>{kB, kA});
}

TEST_CASE("directory: a KV node that its machine has started again replaces the one before, which is known or waits, however late that ends") {
  Bench b;
  const auto start = [&](uint64_t epoch) {
    const auto node = b.world.spawn<FakeNode>(&b.seen[3], 0u);
    b.tell(KvNodeUp{NodeId{0}, node, epoch});
    return node;
  };
  b.tell(KvHolds{NodeId{0}, kA});
  start(1);
  const auto third = start(2);
  CHECK(b.state().nodes.at(NodeId{0}).handle == third);
  CHECK(b.state().holders.at(kA).empty());
  start(kEpochsOfStart);  // another start of the machine: it waits
  const auto last = start(kEpochsOfStart + 1);
  CHECK(b.state().nodes.at(NodeId{0}).handle == third);
  rt::kill(third);
  b.world.run_until(b.world.now_us() + 2 * KvDirectoryActor::kTakeoverUs);
  CHECK(b.state().nodes.at(NodeId{0}).handle == last);
  CHECK(b.state().waiting.empty());
}

TEST_CASE("directory: a living node in an older epoch than an earlier one of its name is refused") {
  Bench b;
  rt::kill(b.nodes[0]);
  b.tell(KvNodeUp{NodeId{0}, b.world.spawn<FakeNode>(&b.seen[3], 0u), 5});
  FakeNode::Seen old;
  b.tell(KvNodeUp{NodeId{0}, b.world.spawn<FakeNode>(&old, 0u), 3});
  CHECK(old.refused == "node 0 is refused: its epoch is 3, expected at least 5: a node of that name was started later");
}

TEST_CASE("kv directory: a draining node releases a request's KV once another node keeps some of it") {
  Bench b;
  const KvOwner request = owner_of(RequestId{GroupId{1}, 2}), waiting = owner_of(RequestId{GroupId{1}, 3}), prompt = group_of(request);
  for (const KvOwner owner : {request, waiting, prompt}) b.tell(KvHolds{NodeId{0}, owner});
  b.tell(KvHolds{NodeId{1}, prompt});
  b.tell(KvDraining{NodeId{0}});
  CHECK(b.seen[0].released.empty());  // nobody else has anything of the requests; prompts are kept for their groups
  b.tell(KvHolds{NodeId{1}, request});
  CHECK(b.seen[0].released == std::vector{request});
  CHECK(b.seen[1].released.empty());
  b.tell(KvRelease{request});  // the request is over: only who keeps it hears of it
  CHECK(b.seen[0].released.size() == 1);
  CHECK(b.seen[1].released == std::vector{request});
}

TEST_CASE("kv directory: a draining node keeps a request that ran there last") {
  Bench b;
  const KvOwner request = owner_of(RequestId{GroupId{1}, 2});
  b.tell(KvHolds{NodeId{2}, request});
  b.tell(KvHolds{NodeId{0}, request});  // which did not get all that node 2 had
  b.tell(KvDraining{NodeId{0}});
  CHECK(b.seen[0].released.empty());
  b.tell(KvHolds{NodeId{1}, request});  // it goes on there
  CHECK(b.seen[0].released == std::vector{request});
  CHECK(b.seen[2].released.empty());
}

TEST_CASE("kv directory: a draining node at once releases requests that ran elsewhere later") {
  Bench b;
  const KvOwner request = owner_of(RequestId{GroupId{1}, 2});
  b.tell(KvHolds{NodeId{0}, request});
  b.tell(KvHolds{NodeId{2}, request});
  b.tell(KvDraining{NodeId{0}});
  CHECK(b.seen[0].released == std::vector{request});
  rt::kill(b.nodes[0]);
  b.tell(KvNodeUp{NodeId{0}, b.world.spawn<FakeNode>(&b.seen[3], 0), 2});
  b.tell(KvHolds{NodeId{0}, request});  // the machine is back, and stays
  CHECK(b.seen[3].released.empty());
}

TEST_CASE("kv directory: a node that let a request go does not count as one that keeps it") {
  Bench b;
  const KvOwner request = owner_of(RequestId{GroupId{1}, 2});
  b.tell(KvHolds{NodeId{0}, request});
  b.tell(KvHolds{NodeId{1}, request});
  b.tell(KvLetGo{NodeId{0}, request});
  b.tell(KvDraining{NodeId{1}});
  CHECK(b.seen[1].released.empty());  // it has the only copy
  b.tell(KvRelease{request});
  CHECK(b.seen[0].released.empty());
  CHECK(b.seen[1].released == std::vector{request});
}

TEST_CASE("kv directory: all KV of a dead rollout's requests is released, and nothing of others") {
  Bench b;
  const auto owner = [](uint32_t rollout, uint32_t group) { return owner_of(RequestId{GroupId{group, RolloutId{rollout}}, 0}); };
  for (const uint32_t rollout : {1u, 2u, 3u})
    for (const uint32_t group : {0u, 7u}) b.tell(KvHolds{NodeId{rollout % 2}, owner(rollout, group)});
  b.tell(KvDropRollout{RolloutId{2}});
  CHECK(b.seen[0].released == std::vector{owner(2, 0), owner(2, 7)});
  CHECK(b.seen[1].released.empty());
  b.tell(KvHolds{NodeId{1}, owner(2, 7)});  // a late message
  b.tell(KvHolds{NodeId{1}, owner(2, 9)});  // also of what was not known then
  CHECK(b.seen[1].released == std::vector{owner(2, 7), owner(2, 9)});
}

TEST_CASE("kv directory: KV of earlier rollouts is kept only for the named ones; later ones are left alone") {
  Bench b;
  const auto owner = [](uint32_t rollout) { return owner_of(RequestId{GroupId{0, RolloutId{rollout}}, 0}); };
  for (const uint32_t rollout : {1u, 2u, 3u, 4u, 5u}) b.tell(KvHolds{NodeId{0}, owner(rollout)});
  b.tell(KvKeepRollouts{RolloutId{4}, {RolloutId{2}, RolloutId{4}}});
  CHECK(b.seen[0].released == std::vector{owner(1), owner(3)});
  for (const uint32_t late : {0u, 3u, 4u, 6u}) b.tell(KvHolds{NodeId{1}, owner(late)});
  CHECK(b.seen[1].released == std::vector{owner(0), owner(3)});
}

TEST_CASE("kv directory: a drain may be announced before the node itself") {
  Bench b;
  const KvOwner request = owner_of(RequestId{GroupId{1}, 2});
  b.tell(KvDraining{NodeId{3}});
  b.tell(KvNodeUp{NodeId{3}, b.world.spawn<FakeNode>(&b.seen[3], 3u)});
  b.tell(KvHolds{NodeId{3}, request});
  b.tell(KvHolds{NodeId{0}, request});
  CHECK(b.seen[3].released == std::vector{request});
}

TEST_CASE("kv directory: who needs room is sent to a node without instances first, then to the one with the most, and never to one "
          "that leaves or that it excepts") {
  Bench b;
  Recorder<KvRoomSink, KvRoomFound> asker(b.world);
  const auto find = [&](int64_t blocks, std::vector<NodeId> except = {}, bool has_cold = true) {
    b.tell(FindRoom{NodeId{0}, blocks, has_cold, std::move(except), asker.handle()});
    return asker.all<KvRoomFound>().back();
  };
  CHECK(find(1).blocks == 0);
  b.tell(KvRoom{NodeId{0}, 100, 100, true});
  CHECK(find(1).blocks == 0);  // only itself
  b.tell(KvRoom{NodeId{1}, 10, 10, false});
  b.tell(KvRoom{NodeId{2}, 4, 6, true});
  KvRoomFound found = find(3);
  CHECK(found.node == NodeId{2});
  CHECK(found.blocks == 3);
  CHECK(found.taker == KvTaker(b.nodes[2]));
  CHECK(find(3).blocks == 1);  // what was promised is gone
  found = find(20);
  CHECK(found.node == NodeId{1});
  CHECK(found.blocks == 10);
  CHECK(find(1).blocks == 0);
  found = find(5, {}, false);  // node 2 would write two more to its disk
  CHECK(found.node == NodeId{2});
  CHECK(found.blocks == 2);
  b.tell(KvRoom{NodeId{1}, 7, 7, false});
  CHECK(find(9, {NodeId{1}}).blocks == 0);
  CHECK(find(9).blocks == 7);
  b.tell(KvRoom{NodeId{1}, 7, 7, false});
  b.tell(KvDraining{NodeId{1}});
  CHECK(find(9).blocks == 0);
  b.tell(KvRoom{NodeId{2}, 7, 7, true});
  rt::kill(b.nodes[2]);
  b.tell(KvRelease{kB});  // meanwhile its death is heard of
  CHECK(find(9).blocks == 0);
}

TEST_CASE("kv directory: a node that leaves keeps guests until they are fetched, and a guest elsewhere is no reason to drop anything") {
  Bench b;
  b.tell(KvHolds{NodeId{0}, kA});
  b.tell(KvHolds{NodeId{1}, kA, true});
  b.tell(KvDraining{NodeId{1}});
  CHECK(b.seen[1].released.empty());
  b.tell(KvDraining{NodeId{0}});
  CHECK(b.seen[0].released.empty());
  b.tell(KvHolds{NodeId{2}, kA, true});
  CHECK(b.seen[0].released.empty());
  b.tell(KvHolds{NodeId{2}, kA});  // it runs there now
  CHECK(b.seen[0].released == std::vector<KvOwner>{kA});
  CHECK(b.seen[1].released.empty());
}
