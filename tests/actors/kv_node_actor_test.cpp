#include <doctest/doctest.h>

#include <cstring>
#include <memory>

#include "actors/kv_directory_actor.h"
#include "actors/kv_node_actor.h"
#include "actors/kv_node_bench.h"
#include "storage/sim_cold_store.h"

using namespace seer;

namespace {

constexpr KvOwner kSecond = owner_of(RequestId{GroupId{7}, 0}), kThird = owner_of(RequestId{GroupId{8}, 0});

/// A disk that holds its reads back while the test wants it, or its writes.
struct HeldReads final : ColdStore {
  struct Held : std::vector<std::function<void()>> {
    bool writes = false;
  };
  HeldReads(std::unique_ptr<ColdStore> disk_in, Held* held_in) : disk(std::move(disk_in)), held(held_in) {}
  Status put(std::vector<ColdBlock> blocks, Done done) override {
    if (!held->writes) return disk->put(std::move(blocks), std::move(done));
    held->push_back([this, blocks, done] { CHECK(disk->put(blocks, done).ok()); });
    return {};
  }
  Status get(std::vector<ColdBlock> blocks, Done done) override {
    held->push_back([this, blocks, done] { CHECK(disk->get(blocks, done).ok()); });
    return {};
  }
  void erase(std::vector<BlockKey> keys) override { disk->erase(std::move(keys)); }
  void drop_versions_below(WeightVersion keep) override { disk->drop_versions_below(keep); }
  ColdStoreStats stats() const override { return disk->stats(); }

  std::unique_ptr<ColdStore> disk;
  Held* held;
};

/// A KV node, its directory, and instances played by the test. `held`: takes the reads of its disk.
struct Bench {
  explicit Bench(int64_t slots, int64_t cold_blocks = 0, size_t parked_max = 4096, HeldReads::Held* held = nullptr) : client(world) {
    arena = *HostArena::create({.dram_bytes = slots * kBlockBytes, .block_bytes = kBlockBytes});
    directory = world.spawn<KvDirectoryActor>();
    KvNodeParts parts{.arena = arena, .open_cold = {}, .directory = directory};
    if (cold_blocks > 0)
      parts.open_cold = [this, cold_blocks, held]() -> std::unique_ptr<ColdStore> {
        auto disk = std::make_unique<SimColdStore>(SimColdStoreConfig{.capacity_bytes = cold_blocks * kBlockBytes},
                                                   [this](int64_t us, std::function<void()> f) { world.after(us, std::move(f)); });
        if (held == nullptr) return disk;
        return std::make_unique<HeldReads>(std::move(disk), held);
      };
    node = world.spawn<KvNodeActor>(
        KvNodeConfig{.node = NodeId{0},
                     .tiers = {.spill_batch_bytes = 4 * kBlockBytes, .free_share = 0, .reads_ahead = held == nullptr},
                     .parked_max = parked_max},
        parts);
    run();
  }
  void run() { world.run_until(world.now_us() + 100'000); }
  KvNodeActor& state() { return rt::look<KvNodeActor>(node); }

  /// Asks for room for blocks [from, to) of the owner's chain. Returns the answer, if it came.
  std::vector<KvReserved> reserve(KvOwner owner, uint32_t from, uint32_t to, bool park = false, uint64_t next_use = 0,
                                  const Client* by = nullptr) {
    const Client& asker = by != nullptr ? *by : client;
    rt::post(node, ReserveBlocks{{.op = ++op, .owner = owner, .blocks = chain(owner, from, to), .first_index = from,
                                  .prompt = false, .park = park, .next_use = next_use},
                                 asker.handle()});
    run();
    return reserved(op, asker);
  }
  std::vector<KvReserved> reserved(uint64_t op_asked, const Client& by) const {
    std::vector<KvReserved> found;
    for (const KvReserved& r : by.all<KvReserved>())
      if (r.op == op_asked) found.push_back(r);
    return found;
  }
  std::vector<BlockRef> chain(KvOwner owner, uint32_t from, uint32_t to) const {
    std::vector<BlockRef> blocks;
    for (uint32_t i = from; i < to; ++i) blocks.push_back({{version, 3, {owner.value + 1, i}}, 4});
    return blocks;
  }
  /// Fills the granted slots, and seals them.
  void seal(const KvReserved& granted) {
    KvSeal seal;
    for (const KvGrant& g : granted.grants) {
      if (g.state != GrantState::kWrite) continue;
      std::memset(arena->span(g.slot).data(), static_cast<int>(g.token), kBlockBytes);
      seal.blocks.push_back({g.token, crc32c(arena->span(g.slot))});
    }
    rt::post(node, seal);
    run();
  }
  void store(KvOwner owner, uint32_t from, uint32_t to) {
    const auto answers = reserve(owner, from, to);
    REQUIRE(answers.size() == 1);
    for (const KvGrant& g : answers[0].grants) REQUIRE(g.state == GrantState::kWrite);
    seal(answers[0]);
  }
  KvOpened open(KvOwner owner, uint32_t blocks) {
    rt::post(node, OpenBlocks{{.op = ++op, .owner = owner, .blocks = chain(owner, 0, blocks)}, client.handle()});
    run();
    REQUIRE(client.all<KvOpened>().back().op == op);
    return client.all<KvOpened>().back();
  }
  void release(KvOwner owner) {
    rt::post(node, KvRelease{owner});
    run();
  }
  /// Another machine asks for two blocks of kOwner, which begin to come back from the cold tier. REQUIRES: two slots, and a cold tier.
  void begin_reading_back(const Client& asker) {
    store(kOwner, 0, 2);
    const auto writing = reserve(kSecond, 0, 2, true);  // they go to the cold tier
    REQUIRE(writing.size() == 1);
    release(kSecond);
    KvAbort abort;
    for (const KvGrant& g : writing[0].grants) abort.tokens.push_back(g.token);
    rt::post(node, abort);
    rt::post(node, OpenBlocks{{.op = ++op, .owner = kOwner, .blocks = chain(kOwner, 0, 2), .lend = true}, asker.handle()});
  }

  SimWorld world;
  Client client;
  std::shared_ptr<HostArena> arena;
  KvDirectoryHandle directory;
  KvNodeHandle node;
  WeightVersion version{1};
  uint64_t op = 0;
};

GrantState state_of(const std::vector<KvReserved>& answers) {
  REQUIRE(answers.size() == 1);
  REQUIRE(answers[0].grants.size() == 1);
  return answers[0].grants[0].state;
}

}  // namespace

TEST_CASE("kv node: a sealed block can be opened, with its checksum, until its owner is released") {
  Bench b(8);
  b.store(kOwner, 0, 3);
  const KvOpened opened = b.open(kOwner, 5);  // two more than there are
  REQUIRE(opened.blocks.size() == 3);
  CHECK(opened.lease != 0);
  for (const KvOpenedBlock& block : opened.blocks) CHECK(crc32c(b.arena->span(block.slot)) == block.crc32c);
  b.release(kOwner);
  CHECK(b.arena->taken_count() == 3);  // still being read
  rt::post(b.node, KvClose{opened.lease, {}});
  b.run();
  CHECK(b.arena->taken_count() == 0);
  CHECK(b.open(kOwner, 3).blocks.empty());
  CHECK(b.open(kOwner, 3).lease == 0);
  CHECK(b.state().tiers->is_drained());
}

TEST_CASE("kv node: blocks that are kept or being written are not granted again") {
  Bench b(8);
  const auto first = b.reserve(kOwner, 0, 2);
  const auto again = b.reserve(kOwner, 0, 3);
  REQUIRE(again.size() == 1);
  CHECK(again[0].grants[0].state == GrantState::kHere);
  CHECK(again[0].grants[1].state == GrantState::kHere);
  CHECK(again[0].grants[2].state == GrantState::kWrite);
  b.seal(first[0]);
  CHECK(b.open(kOwner, 3).blocks.size() == 2);  // the third is still being written
}

TEST_CASE("kv node: an aborted write gives its slot back, and a second abort or seal changes nothing") {
  Bench b(8);
  const auto answer = b.reserve(kOwner, 0, 1);
  rt::post(b.node, KvAbort{{answer[0].grants[0].token}});
  b.run();
  CHECK(b.arena->taken_count() == 0);
  b.seal(answer[0]);
  CHECK(b.open(kOwner, 1).blocks.empty());
  CHECK(b.state().tiers->stats().stale_completions == 1);
}

TEST_CASE("kv node: a parking chunk waits for room and is answered once there is some; others are refused at once") {
  Bench b(4, 64);
  const KvOwner other = owner_of(RequestId{GroupId{7}, 0});
  const auto writing = b.reserve(other, 0, 4);  // all slots, not sealed: nothing can be spilled yet
  CHECK(state_of(b.reserve(kOwner, 0, 1)) == GrantState::kRefused);
  CHECK(b.reserve(kOwner, 0, 1, true).empty());
  const uint64_t waiting = b.op;
  CHECK(b.state().parked.size() == 1);
  b.seal(writing[0]);
  const auto answer = b.reserved(waiting, b.client);
  CHECK(state_of(answer) == GrantState::kWrite);
  CHECK(b.state().parked.empty());
  b.seal(answer[0]);
  const KvOpened opened = b.open(kOwner, 1);
  CHECK(opened.blocks.size() == 1);
  rt::post(b.node, KvClose{opened.lease, {}});
  CHECK(b.open(other, 4).blocks.size() == 4);  // one of them comes back from the cold tier
}

TEST_CASE("kv node: what is granted to an owner that was released while it waited for room is told to the directory") {
  Bench b(1, 64);
  const auto writing = b.reserve(owner_of(RequestId{GroupId{7}, 0}), 0, 1);
  CHECK(b.reserve(kOwner, 0, 1, true).empty());
  const uint64_t waiting = b.op;
  b.release(kOwner);
  rt::post(b.node, KvAbort{{writing[0].grants[0].token}});
  b.run();
  const auto answer = b.reserved(waiting, b.client);
  CHECK(state_of(answer) == GrantState::kWrite);
  CHECK(b.state().owners.has(kOwner));
  b.seal(answer[0]);
  rt::post(b.directory, KvRelease{kOwner});
  b.run();
  CHECK(b.arena->taken_count() == 0);
}

TEST_CASE("kv node: reservations that wait for room are answered in order") {
  Bench b(2, 64);
  const auto writing = b.reserve(owner_of(RequestId{GroupId{7}, 0}), 0, 2);
  std::vector<uint64_t> ops;
  for (uint32_t i = 0; i < 2; ++i) {
    CHECK(b.reserve(owner_of(RequestId{GroupId{i}, 0}), 0, 1, true, 10 - i).empty());
    ops.push_back(b.op);
  }
  rt::post(b.node, KvAbort{{writing[0].grants[0].token}});
  b.run();
  CHECK(b.reserved(ops[0], b.client).size() == 1);
  CHECK(b.reserved(ops[1], b.client).empty());
  rt::post(b.node, KvAbort{{writing[0].grants[1].token}});
  b.run();
  CHECK(b.reserved(ops[1], b.client).size() == 1);
}

TEST_CASE("kv node: no more than parked_max chunks wait for room") {
  Bench b(1, 64, 1);
  const auto writing = b.reserve(owner_of(RequestId{GroupId{7}, 0}), 0, 1);
  CHECK(b.reserve(owner_of(RequestId{GroupId{0}, 0}), 0, 1, true).empty());
  CHECK(state_of(b.reserve(owner_of(RequestId{GroupId{0}, 1}), 0, 1, true)) == GrantState::kRefused);
  CHECK(b.state().parked.size() == 1);
}

TEST_CASE("kv node: without a cold tier, parked chains whose next use is further are dropped for nearer ones") {
  Bench b(2);
  const KvOwner far = owner_of(RequestId{GroupId{3}, 0}), near = owner_of(RequestId{GroupId{4}, 0});
  const auto parked = b.reserve(far, 0, 2, true, 9);
  b.seal(parked[0]);
  CHECK(state_of(b.reserve(near, 0, 1, true, 5)) == GrantState::kWrite);
  CHECK(state_of(b.reserve(owner_of(RequestId{GroupId{5}, 0}), 0, 1, true, 20)) == GrantState::kRefused);
  CHECK(b.open(far, 2).blocks.size() == 1);
}

TEST_CASE("kv node: a copy that is reported corrupt is never handed out again") {
  Bench b(8);
  b.store(kOwner, 0, 3);
  const KvOpened opened = b.open(kOwner, 3);
  rt::post(b.node, KvClose{opened.lease, {b.chain(kOwner, 1, 2)[0].key}});
  b.run();
  CHECK(b.open(kOwner, 3).blocks.size() == 1);
  CHECK(b.state().report().corrupt_blocks == 1);
  CHECK(state_of(b.reserve(kOwner, 1, 2)) == GrantState::kWrite);  // and may be written again
}

TEST_CASE("kv node: new weights drop older blocks, and a late KvBump changes nothing") {
  Bench b(8);
  b.store(kOwner, 0, 3);
  const auto writing = b.reserve(kOwner, 3, 4);
  rt::post(b.node, KvBump{WeightVersion{2}});
  b.run();
  CHECK(b.open(kOwner, 3).blocks.empty());
  CHECK(b.arena->taken_count() == 1);  // until its writer is done
  b.seal(writing[0]);
  CHECK(b.arena->taken_count() == 0);
  CHECK(state_of(b.reserve(kOwner, 0, 1)) == GrantState::kRefused);  // of version 1
  b.version = {2};
  b.store(kOwner, 0, 3);
  rt::post(b.node, KvBump{WeightVersion{1}});
  b.run();
  CHECK(b.open(kOwner, 3).blocks.size() == 3);
}

TEST_CASE("kv node: a dead instance's grants come back, and its waiting reservations are dropped") {
  Bench b(4, 64);
  const auto writing = b.reserve(kSecond, 0, 1);  // of another one, not sealed: this slot cannot be had
  REQUIRE(writing.size() == 1);
  Client dying(b.world);
  CHECK(b.reserve(kOwner, 0, 3, false, 0, &dying).size() == 1);
  CHECK(b.reserve(kOwner, 3, 5, true, 0, &dying).empty());
  REQUIRE(b.state().parked.size() == 1);
  rt::kill(dying.handle());
  b.run();
  CHECK(b.state().parked.empty());
  b.seal(writing[0]);
  b.store(kThird, 0, 3);
  for (const KvOwner owner : {kOwner, kSecond, kThird}) b.release(owner);
  CHECK(b.state().tiers->is_drained());
}

TEST_CASE("kv node: a dead instance's leases come back") {
  Bench b(4, 64);
  b.store(kOwner, 0, 1);
  Client dying(b.world);
  rt::post(b.node, OpenBlocks{{.op = ++b.op, .owner = kOwner, .blocks = b.chain(kOwner, 0, 1)}, dying.handle()});
  b.run();
  REQUIRE(dying.all<KvOpened>().size() == 1);
  CHECK(b.state().leases.size() == 1);
  rt::kill(dying.handle());
  b.run();
  CHECK(b.state().leases.empty());
  b.release(kOwner);
  CHECK(b.state().tiers->is_drained());
}

TEST_CASE("kv node: an instance that dies while its blocks are read back leaves no lease behind") {
  Bench b(2, 64);
  Client dying(b.world);
  b.begin_reading_back(dying);
  rt::kill(dying.handle());
  b.run();
  b.release(kOwner);
  CHECK(b.state().clients.size() == 1);
  CHECK(b.state().leases.empty());
  CHECK(b.arena->taken_count() == 0);
}

TEST_CASE("kv node: nobody waits for the room of writes that hang") {
  HeldReads::Held held;
  held.writes = true;
  Bench b(4, 64, 4096, &held);
  b.store(kSecond, 0, 4);
  const uint64_t asked = b.op + 1;
  CHECK(b.reserve(kThird, 0, 3, true).empty());  // blocks of the other one are being written
  CHECK(!held.empty());
  b.world.run_until(b.world.now_us() + 15'000'000);
  CHECK(b.reserved(asked, b.client).size() == 1);
  CHECK(b.state().parked.empty());
  const uint64_t next = b.op + 1;
  CHECK(b.reserve(kOwner, 0, 4, true).size() == 1);  // at once
  CHECK(b.reserved(next, b.client).size() == 1);
  held.writes = false;
  for (const auto& write : held) write();
  b.run();
  for (const KvOwner owner : {kOwner, kSecond, kThird}) b.release(owner);
  CHECK(b.state().tiers->is_drained());
}

TEST_CASE("kv node: who was down and asks again gets no lease of what it asked before") {
  Bench b(2, 64);
  Client borrower(b.world);
  b.begin_reading_back(borrower);
  b.world.run_until(b.world.now_us() + 1);
  b.state().on_client_down(caf::down_msg{borrower.handle().address(), {}});  // the connection between the processes broke
  rt::post(b.node, OpenBlocks{{.op = ++b.op, .owner = kThird, .blocks = b.chain(kThird, 0, 1), .lend = true}, borrower.handle()});
  b.run();
  CHECK(b.state().leases.empty());
  b.release(kOwner);
  CHECK(b.arena->taken_count() == 0);
}

TEST_CASE("kv node: openings do without a disk that hangs, and with it once it answers") {
  HeldReads::Held held;
  Bench b(4, 64, 4096, &held);
  b.store(kOwner, 0, 4);
  b.seal(b.reserve(kSecond, 0, 2, true).at(0));  // two of kOwner's blocks go to the cold tier
  b.release(kSecond);
  const auto open = [&] { rt::post(b.node, OpenBlocks{{.op = ++b.op, .owner = kOwner, .blocks = b.chain(kOwner, 0, 4)}, b.client.handle()}); };
  const auto close = [&] { rt::post(b.node, KvClose{b.client.all<KvOpened>().back().lease, {}}); };
  open();
  b.world.run_until(b.world.now_us() + 9'000'000);
  CHECK(b.client.all<KvOpened>().empty());
  b.world.run_until(b.world.now_us() + 12'000'000);
  REQUIRE(b.client.all<KvOpened>().size() == 1);
  CHECK(b.client.all<KvOpened>()[0].blocks.size() == 2);
  close();
  open();
  b.run();  // it does not wait
  REQUIRE(b.client.all<KvOpened>().size() == 2);
  close();
  for (const auto& read : held) read();
  b.run();
  CHECK(b.open(kOwner, 4).blocks.size() == 4);
}

TEST_CASE("kv node: a parking chunk waits a minute for a block that is still read, then goes on without it") {
  Bench b(8);
  b.store(kOwner, 0, 2);
  const KvOpened opened = b.open(kOwner, 2);
  b.release(kOwner);
  constexpr KvOwner kOther{78};
  const auto blocks = b.chain(kOwner, 0, 3);
  rt::post(b.node, ReserveBlocks{{.op = ++b.op, .owner = kOther, .blocks = blocks, .park = true}, b.client.handle()});
  b.run();
  CHECK(b.reserved(b.op, b.client).empty());
  CHECK(b.state().parked.size() == 1);
  b.world.run_until(b.world.now_us() + 61'000'000);
  const auto answers = b.reserved(b.op, b.client);
  REQUIRE(answers.size() == 1);
  for (const KvGrant& grant : answers[0].grants) CHECK(grant.state == GrantState::kRefused);
  CHECK(b.state().parked.empty());
  rt::post(b.node, KvClose{opened.lease, {}});
  b.run();
  CHECK(b.arena->taken_count() == 0);
}

TEST_CASE("kv node: a request owns the blocks that it opened, though another one with equal tokens wrote them") {
  Bench b(8);
  constexpr KvOwner kOther = owner_of(RequestId{GroupId{1}, 3});
  b.store(kOwner, 0, 2);
  const auto open_by_other = [&] {
    rt::post(b.node, OpenBlocks{{.op = ++b.op, .owner = kOther, .blocks = b.chain(kOwner, 0, 2)}, b.client.handle()});
    b.run();
    const KvOpened opened = b.client.all<KvOpened>().back();
    rt::post(b.node, KvClose{opened.lease, {}});
    return opened.blocks.size();
  };
  CHECK(open_by_other() == 2);
  rt::post(b.directory, KvRelease{kOwner});
  b.run();
  CHECK(open_by_other() == 2);
  rt::post(b.directory, KvRelease{kOther});
  b.run();
  CHECK(b.arena->taken_count() == 0);
}

TEST_CASE("kv node: of a request that opens and holds nothing, nothing is left") {
  Bench b(4);
  b.open(kOwner, 2);
  CHECK(b.state().tiers->owner_count() == 0);
  b.seal(b.reserve(kOwner, 0, 1)[0]);
  b.open(kOwner, 2);
  CHECK(b.state().tiers->owner_count() == 1);
  rt::post(b.directory, KvRelease{kOwner});
  b.run();
  CHECK(b.state().tiers->owner_count() == 0);
}

TEST_CASE("kv node: the directory hears of an owner once, and again after its release") {
  Bench b(8);
  b.store(kOwner, 0, 1);
  b.store(kOwner, 1, 2);
  const auto& directory = rt::look<KvDirectoryActor>(b.directory);
  CHECK(directory.holders.at(kOwner).size() == 1);
  CHECK(directory.holders.at(kOwner).contains(NodeId{0}));
  rt::post(b.directory, KvRelease{kOwner});
  b.run();
  CHECK(b.arena->taken_count() == 0);
  CHECK(b.state().owners.size() == 0);
  b.store(kOwner, 0, 1);  // a write that was on its way
  CHECK(b.arena->taken_count() == 0);
  CHECK(b.state().owners.size() == 0);
}

TEST_CASE("kv node: a new directory hears of all kept owners, and its releases are obeyed") {
  Bench b(8);
  b.store(kOwner, 0, 1);
  b.store(KvOwner{76}, 1, 2);
  rt::kill(b.directory);
  b.directory = b.world.spawn<KvDirectoryActor>();
  rt::post(b.node, DirectoryUp{b.directory});
  b.run();
  const auto& directory = rt::look<KvDirectoryActor>(b.directory);
  CHECK(directory.nodes.size() == 1);
  CHECK(directory.holders.size() == 2);
  rt::post(b.directory, KvRelease{KvOwner{76}});
  b.run();
  CHECK(b.arena->taken_count() == 1);
  b.store(KvOwner{77}, 0, 1);
  CHECK(directory.holders.contains(KvOwner{77}));
}

TEST_CASE("kv node: it ends when the directory refuses it, and the sentence is its reason") {
  Bench b(8);
  std::string reason;
  const caf::actor watcher = b.world.system.spawn([&](caf::event_based_actor* self, char) -> caf::behavior {  // kept: it lives as long
    rt::on_down(self, [&](const rt::down& message) { reason = rt::reason_text(message); });
    rt::monitor(self, b.node);
    return {[](const Tick&) {}};
  }, char{});
  b.run();
  rt::post(b.node, KvRefused{"node 0 is refused: its model is \"a\", expected \"b\""});
  b.run();
  CHECK(reason == "node 0 is refused: its model is \"a\", expected \"b\"");
}

TEST_CASE("kv node: nothing is kept for an owner that was released while it waited a minute for room") {
  Bench b(8);
  constexpr KvOwner kOther = owner_of(RequestId{GroupId{1}, 3});
  b.store(kOwner, 0, 2);
  b.store(kThird, 0, 3);
  const KvOpened opened = b.open(kThird, 3);
  b.release(kThird);  // its third block is still read
  std::vector<BlockRef> wanted = b.chain(kOwner, 0, 2);  // two that are here, and one that is not free yet
  wanted.push_back(b.chain(kThird, 2, 3)[0]);
  rt::post(b.node, ReserveBlocks{{.op = ++b.op, .owner = kOther, .blocks = wanted, .park = true}, b.client.handle()});
  b.run();
  REQUIRE(b.state().parked.size() == 1);
  rt::post(b.directory, KvRelease{kOther});  // the request is cancelled
  b.run();
  b.world.run_until(b.world.now_us() + 61'000'000);
  CHECK(b.state().parked.empty());
  rt::post(b.directory, KvRelease{kOwner});
  rt::post(b.node, KvClose{opened.lease, {}});
  b.run();
  CHECK(b.arena->taken_count() == 0);
}
