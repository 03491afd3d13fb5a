#include "actors/sim/sim_links.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "actors/recorder.h"

using namespace seer;

namespace {

/// What arrived beyond a link: "name@microseconds".
using Arrivals = std::vector<std::string>;
template <class Message>
void note(Arrivals& log, const SimWorld& world, const Message&) { log.push_back(cat(Message::kTypeName, "@", world.now_us())); }

struct FakeInstance {
  using handle = InstanceHandle;
  static constexpr const char* kActorName = "fake_instance";
  FakeInstance(rt::self_ptr<FakeInstance>, const SimWorld* world_in, Arrivals* log_in) : world(world_in), log(log_in) {}
  handle::behavior_type make_behavior() {
    return {[this](const RunChunk& run) {
              note(*log, *world, run);
              back = run.reply_to;
            },
            [this](const CancelChunk& m) { note(*log, *world, m); },
            [this](const DropChunks& m) { note(*log, *world, m); },
            [this](const YieldChunks& m) { note(*log, *world, m); },
            [](const UseInstance&) {},
            [this](const UpdateInstance& m) { note(*log, *world, m); },
            [](const WorkReady&) {},
            [](const Tick&) {},
            [](const KvReserved&) {},
            [](const KvOpened&) {},
            [this](const DraftServers& m) { note(*log, *world, m); },
            [](const CstFetched&) {},
            [](const GetReport&) { return InstanceReport{.steps = 42}; }};
  }
  const SimWorld* world;
  Arrivals* log;
  ChunkSink back;
};

struct FakeDirectory {
  using handle = KvDirectoryHandle;
  static constexpr const char* kActorName = "fake_directory";
  FakeDirectory(rt::self_ptr<FakeDirectory>, const SimWorld* world_in, Arrivals* log_in) : world(world_in), log(log_in) {}
  handle::behavior_type make_behavior() {
    return {[this](const KvNodeUp& m) { note(*log, *world, m); },
            [this](const KvHolds& m) { note(*log, *world, m); },
            [this](const KvLetGo& m) { note(*log, *world, m); },
            [this](const KvDraining& m) { note(*log, *world, m); },
            [this](const FindHolders& m) { note(*log, *world, m); },
            [this](const KvRoom& m) { note(*log, *world, m); },
            [this](const FindRoom& m) { note(*log, *world, m); },
            [this](const KvRelease& m) { note(*log, *world, m); },
            [this](const KvDropRollout& m) { note(*log, *world, m); },
            [this](const KvKeepRollouts& m) { note(*log, *world, m); },
            [this](const KvRolloutReturned& m) { note(*log, *world, m); },
            [this](const KvBump& m) { note(*log, *world, m); },
            [](const GetReport&) { return std::vector<KvNodeReport>{}; }};
  }
  const SimWorld* world;
  Arrivals* log;
};

struct FakeDraftServer {
  using handle = DraftServerHandle;
  static constexpr const char* kActorName = "fake_draft_server";
  FakeDraftServer(rt::self_ptr<FakeDraftServer> self_in, const SimWorld* world_in, Arrivals* log_in)
      : self(self_in), world(world_in), log(log_in) {}
  handle::behavior_type make_behavior() {
    return {[this](const RegisterGroups& m) { note(*log, *world, m); },
            [this](const RegisterPast& m) { note(*log, *world, m); },
            [this](const DropGroup& m) { note(*log, *world, m); },
            [this](const UpdateCst& m) { note(*log, *world, m); },
            [this](const FetchCst& m) {
              note(*log, *world, m);
              rt::tell(self, m.reply_to, CstFetched{});
            },
            [](const Tick&) {},
            [](const GetReport&) { return DraftServerReport{}; }};
  }
  rt::self_ptr<FakeDraftServer> self;
  const SimWorld* world;
  Arrivals* log;
};

using ChunkRecorder = Recorder<ChunkSink, ChunkProgress, ChunkDone>;

ChunkProgress progress(int64_t number) { return {InstanceId{0}, {}, number}; }

struct InstanceBench {
  SimWorld world;
  SimLinkFaults faults;
  Arrivals log;
  ChunkRecorder rollout{world};
  InstanceHandle instance = world.spawn<FakeInstance>(&world, &log);
  InstanceHandle link = world.spawn<InstanceLink>(instance, &faults);

  void run_chunk() {
    RunChunk run;
    run.reply_to = rollout.handle();
    rt::post(link, run);
  }
  /// Runs for so much longer.
  void run(int64_t us) { world.run_until(world.now_us() + us); }
};

}  // namespace

TEST_CASE("sim links: without faults all messages to and from an instance arrive at once") {
  InstanceBench b;
  b.run_chunk();
  b.run(0);
  CHECK(b.log == Arrivals{"RunChunk@0"});
  rt::post(rt::look<FakeInstance>(b.instance).back, progress(1));
  rt::post(rt::look<FakeInstance>(b.instance).back, ChunkDone{});
  b.run(0);
  CHECK(b.rollout.log().size() == 2);
}

TEST_CASE("sim links: of the messages to an instance only the start and the end of a chunk may be lost") {
  InstanceBench b;
  b.faults.is_lost = [] { return true; };
  b.run_chunk();
  rt::post(b.link, CancelChunk{});
  rt::post(b.link, DropChunks{});
  rt::post(b.link, UpdateInstance{});
  rt::post(b.link, DraftServers{});
  b.run(1000);
  REQUIRE(b.log.size() == 3);
  CHECK(b.log[0].starts_with("DropChunks"));
  CHECK(b.log[1].starts_with("UpdateInstance"));
  CHECK(b.log[2].starts_with("DraftServers"));
}

TEST_CASE("sim links: messages of an instance to the rollout may be lost") {
  InstanceBench b;
  b.run_chunk();
  b.run(0);
  b.faults.is_lost = [] { return true; };
  rt::post(rt::look<FakeInstance>(b.instance).back, progress(1));
  rt::post(rt::look<FakeInstance>(b.instance).back, ChunkDone{});
  b.run(1000);
  CHECK(b.rollout.log().empty());
}

TEST_CASE("sim links: a late message delays those after it, and never changes their order") {
  SimWorld world;
  SimLinkFaults faults;
  std::vector<int64_t> late_us{0, 100, 0, 30, 0};
  size_t asked = 0;
  faults.late_us = [&] { return late_us.at(asked++); };
  ChunkRecorder rollout(world);
  const ChunkSink link = world.spawn<ChunkSinkLink>(rollout.handle(), &faults);
  for (int64_t i = 0; i < 5; ++i) rt::post(link, progress(i));
  const auto arrived = [&](int64_t until_us) {
    world.run_until(until_us);
    std::vector<int64_t> numbers;
    for (const ChunkProgress& p : rollout.all<ChunkProgress>()) numbers.push_back(p.kv_blocks_used);
    return numbers;
  };
  CHECK(arrived(99) == std::vector<int64_t>{0});
  CHECK(arrived(100) == std::vector<int64_t>{0, 1});
  CHECK(arrived(102) == std::vector<int64_t>{0, 1, 2, 3});
  CHECK(arrived(200) == std::vector<int64_t>{0, 1, 2, 3, 4});
  late_us.push_back(0);
  rt::post(link, progress(5));
  CHECK_MESSAGE(arrived(200).size() == 6, "after the last late one the link is as before");
}

TEST_CASE("sim links: an instance link ends with its instance, and the instance with it") {
  for (const bool instance_dies : {true, false}) {
    CAPTURE(instance_dies);
    InstanceBench b;
    b.run(0);
    rt::kill(instance_dies ? b.instance : b.link);
    b.run(1000);
    rt::post(b.link, DropChunks{});
    rt::post(b.instance, DropChunks{});
    b.run(1000);
    CHECK(b.log.empty());
    bool answered = false, failed = false;
    b.world.system.spawn([&](caf::event_based_actor* self, char) {  // the unused argument: see rt::spawn()
      rt::ask(self, instance_dies ? b.link : b.instance, 1000, GetReport{})
          .then([&](const InstanceReport&) { answered = true; }, [&](const caf::error&) { failed = true; });
    }, char{});
    b.run(10'000);
    CHECK_FALSE(answered);
    CHECK(failed);
  }
}

TEST_CASE("sim links: a report is asked for through the link and never lost") {
  InstanceBench b;
  b.faults = {.is_lost = [] { return true; }, .late_us = [] { return int64_t{1000}; }};
  int64_t steps = 0;
  b.world.system.spawn([&](caf::event_based_actor* self, char) {
    rt::ask(self, b.link, 100, GetReport{}).then([&](const InstanceReport& report) { steps = report.steps; });
  }, char{});
  b.run(50);
  CHECK(steps == 42);
}

TEST_CASE("sim links: of the messages to the directory only questions may be lost, the others may be late") {
  SimWorld world;
  Arrivals log;
  SimLinkFaults faults{.is_lost = [] { return true; }, .late_us = [] { return int64_t{10}; }};
  const KvDirectoryHandle directory = world.spawn<FakeDirectory>(&world, &log);
  const KvDirectoryHandle link = world.spawn<DirectoryLink>(directory, &faults);
  rt::post(link, KvNodeUp{});
  rt::post(link, FindHolders{});
  rt::post(link, KvHolds{});
  rt::post(link, KvRelease{});
  rt::post(link, KvBump{});
  world.run_until(1000);
  REQUIRE(log.size() == 4);
  CHECK(log[0] == "KvNodeUp@10");
  CHECK(log[1].starts_with("KvHolds@"));
  CHECK(log[2].starts_with("KvRelease@"));
  CHECK(log[3].starts_with("KvBump@"));
}

TEST_CASE("sim links: all messages to and from a draft server may be lost, and none is without faults") {
  for (const bool lost : {false, true}) {
    CAPTURE(lost);
    SimWorld world;
    Arrivals log;
    bool answers_lost = false;
    SimLinkFaults faults{.is_lost = [&] { return lost || answers_lost; }};
    Recorder<DraftClient, CstFetched> client(world);
    const DraftServerHandle server = world.spawn<FakeDraftServer>(&world, &log);
    const DraftServerHandle link = world.spawn<DraftServerLink>(server, &faults);
    rt::post(link, RegisterGroups{});
    rt::post(link, RegisterPast{});
    rt::post(link, DropGroup{});
    rt::post(link, UpdateCst{});
    rt::post(link, FetchCst{{}, client.handle()});
    world.run_until(0);
    CHECK(log.size() == (lost ? 0 : 5));
    CHECK(client.log().size() == (lost ? 0 : 1));
    if (lost) continue;
    int asked = 0;
    faults.is_lost = [&] { return ++asked == 2; };  // the question goes through, the answer does not
    rt::post(link, FetchCst{{}, client.handle()});
    world.run_until(100);
    CHECK(log.size() == 6);
    CHECK(client.log().size() == 1);
  }
}

TEST_CASE("sim links: the planted bug sends the last tokens apart from the ChunkDone") {
  SimWorld world;
  ChunkRecorder rollout(world);
  for (const bool splits : {false, true}) {
    CAPTURE(splits);
    SimLinkFaults faults{.splits_chunk_ends = splits};
    const ChunkSink link = world.spawn<ChunkSinkLink>(rollout.handle(), &faults);
    const size_t before = rollout.log().size();
    ChunkDone done;
    done.last = {ChunkId{1}, 4, {{7, 8}}};
    rt::post(link, done);
    world.run_until(world.now_us() + 100);
    CHECK(rollout.log().size() - before == (splits ? 2 : 1));
    const ChunkTokens last = rollout.all<ChunkDone>().back().last;
    CHECK(last.first_index == (splits ? 6 : 4));
    CHECK(last.output.ids.size() == (splits ? 0 : 2));
  }
}
