#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <set>

#include "actors/kv_directory_actor.h"
#include "actors/kv_node_actor.h"
#include "actors/kv_node_bench.h"
#include "storage/sim_cold_store.h"
#include "storage/sim_transport.h"

using namespace seer;

namespace {

/// KV nodes with few slots each.
struct Pool {
  struct Options {
    std::vector<int64_t> slots;
    std::set<uint32_t> lenders = {};  // without instances
    int64_t cold_blocks = 0;   // of each node
    int64_t transfer_us = 100;
    std::set<uint32_t> unconnected = {};  // nodes without connections to others
    bool lacks_one = false;               // node 0 has no connection to the first one that it looks for
  };
  explicit Pool(Options o) : client(world) {
    transport = std::make_shared<SimTransport>(SimTransportConfig{.latency_us = o.transfer_us},
                                               [this](int64_t us, std::function<void()> f) { world.after(us, std::move(f)); });
    directory = world.spawn<KvDirectoryActor>();
    for (uint32_t n = 0; n < o.slots.size(); ++n) {
      arenas.push_back(*HostArena::create({.dram_bytes = o.slots[n] * kBlockBytes, .block_bytes = kBlockBytes}));
      KvNodeParts parts{.arena = arenas[n], .open_cold = {}, .directory = directory, .transport = transport,
                        .is_connected = [is = !o.unconnected.contains(n), lacks = o.lacks_one && n == 0](const rt::process&) mutable {
                          return is && !std::exchange(lacks, false);
                        }};
      if (o.cold_blocks > 0)
        parts.open_cold = [this, blocks = o.cold_blocks] {
          return std::make_unique<SimColdStore>(SimColdStoreConfig{.capacity_bytes = blocks * kBlockBytes},
                                                [this](int64_t us, std::function<void()> f) { world.after(us, std::move(f)); });
        };
      nodes.push_back(world.spawn<KvNodeActor>(KvNodeConfig{.node = NodeId{n},
                                                            .tiers = {.spill_batch_bytes = 4 * kBlockBytes, .free_share = 0},
                                                            .fetch_tokens_min = 0,
                                                            .is_kv_only = o.lenders.contains(n)},
                                               parts));
    }
    run();
  }
  void run(int64_t us = 100'000) { world.run_until(world.now_us() + us); }
  KvNodeActor& state(uint32_t n) { return rt::look<KvNodeActor>(nodes[n]); }
  KvNodeReport report(uint32_t n) { return state(n).report(); }
  static KvOwner owner(uint32_t request) { return owner_of(RequestId{GroupId{1}, request}); }
  static std::vector<BlockRef> chain(uint32_t request, uint32_t blocks) {
    std::vector<BlockRef> refs;
    for (uint32_t i = 0; i < blocks; ++i) refs.push_back({{WeightVersion{1}, 3, {request + 1, i}}, 4});
    return refs;
  }
  /// A request's chunk ends on a node: its blocks go to the pool.
  void park(uint32_t n, uint32_t request, uint32_t blocks, uint64_t next_use = 0) {
    ask_to_park(n, request, blocks, next_use);
    run();
    write(n, request, op);
  }
  void ask_to_park(uint32_t n, uint32_t request, uint32_t blocks, uint64_t next_use) {
    rt::post(nodes[n], ReserveBlocks{{.op = ++op, .owner = owner(request), .blocks = chain(request, blocks), .first_index = 0,
                                      .prompt = false, .park = true, .next_use = next_use},
                                     client.handle()});
  }
  void write(uint32_t n, uint32_t request, uint64_t asked) {
    KvSeal seal;
    for (const KvReserved& answer : client.all<KvReserved>()) {
      if (answer.op != asked) continue;
      for (size_t i = 0; i < answer.grants.size(); ++i) {
        if (answer.grants[i].state != GrantState::kWrite) continue;
        const auto slot = arenas[n]->span(answer.grants[i].slot);
        std::memset(slot.data(), static_cast<int>(10 * request + i), kBlockBytes);
        seal.blocks.push_back({answer.grants[i].token, crc32c(slot)});
      }
    }
    CHECK(!seal.blocks.empty());
    rt::post(nodes[n], seal);
    run();
  }
  /// It goes on, on a node. Returns how many of its blocks came, whose bytes are right.
  size_t open(uint32_t n, uint32_t request, uint32_t blocks) {
    rt::post(nodes[n], OpenBlocks{{.op = ++op, .owner = owner(request), .blocks = chain(request, blocks)}, client.handle()});
    run();
    const KvOpened opened = client.all<KvOpened>().back();
    REQUIRE(opened.op == op);
    for (size_t i = 0; i < opened.blocks.size(); ++i) {
      const auto slot = arenas[n]->span(opened.blocks[i].slot);
      CHECK(slot[0] == static_cast<std::byte>(10 * request + i));
      CHECK(crc32c(slot) == opened.blocks[i].crc32c);
    }
    rt::post(nodes[n], KvClose{opened.lease, {}});
    run();
    return opened.blocks.size();
  }
  void release_all() {
    for (uint32_t request = 0; request < 20; ++request) rt::post(directory, KvRelease{owner(request)});
    run();
    for (uint32_t n = 0; n < nodes.size(); ++n) {
      CAPTURE(n);
      CHECK(arenas[n]->taken_count() == 0);
      CHECK(state(n).tiers->is_drained());
      CHECK(state(n).guests.leaving_count() == 0);
      CHECK(state(n).leases.empty());
    }
  }

  SimWorld world;
  Client client;
  std::shared_ptr<SimTransport> transport;
  KvDirectoryHandle directory;
  std::vector<std::shared_ptr<HostArena>> arenas;
  std::vector<KvNodeHandle> nodes;
  uint64_t op = 0;
};

}  // namespace

TEST_CASE("kv node: blocks of a full node go to a node without instances before others and before the disk, and come back when their "
          "request runs again") {
  for (const int64_t cold_blocks : {0, 100}) {
    CAPTURE(cold_blocks);
    Pool p({.slots = {4, 100, 8}, .lenders = {2}, .cold_blocks = cold_blocks});
    p.park(0, 1, 4, 9);
    p.park(0, 2, 3, 5);
    CHECK(p.report(0).moved_bytes == 3 * kBlockBytes);
    CHECK(p.report(2).guest_bytes == 3 * kBlockBytes);
    CHECK(p.arenas[1]->taken_count() == 0);
    CHECK(p.report(0).spilled_bytes == 0);
    CHECK(p.report(0).dropped_blocks == 0);
    CHECK(p.open(0, 1, 4) == 4);  // one from here, three from there; request 2 has to leave for them
    CHECK_FALSE(p.state(2).owners.has(Pool::owner(1)));
    CHECK(p.open(1, 2, 3) == 3);
    p.release_all();
  }
}

TEST_CASE("kv node: a request whose blocks are in two places is put together on a third node, wherever its first block is") {
  for (const uint32_t full : {0u, 1u}) {  // the holder of the first block is asked first, or last
    CAPTURE(full);
    Pool p({.slots = {full == 0 ? 4 : 100, full == 0 ? 100 : 4, 20}});
    p.park(full, 1, 4, 9);
    p.park(full, 2, 2, 5);
    REQUIRE(p.report(1 - full).guest_bytes == 2 * kBlockBytes);
    CHECK(p.open(2, 1, 4) == 4);
    CHECK(p.arenas[1 - full]->taken_count() == 0);
    p.release_all();
  }
}

TEST_CASE("kv node: no number of full nodes fills another one over its size, and its own instances keep their share") {
  for (const bool is_kv_only : {false, true}) {
    CAPTURE(is_kv_only);
    Pool p({.slots = {4, 4, 4, 8}, .lenders = is_kv_only ? std::set<uint32_t>{3} : std::set<uint32_t>{}});
    for (uint32_t round = 0; round < 4; ++round) {
      const uint64_t first = p.op + 1;
      for (uint32_t n = 0; n < 3; ++n) p.ask_to_park(n, 3 * round + n, 4, 10 - round);  // all at once
      p.run();
      for (uint32_t n = 0; n < 3; ++n) p.write(n, 3 * round + n, first + n);
    }
    const uint32_t most = is_kv_only ? 8 : 7;  // an eighth stays free
    CHECK(p.arenas[3]->taken_count() <= most);
    CHECK(p.report(3).dram_peak_bytes <= most * kBlockBytes);
    CHECK(p.report(3).guest_bytes >= 6 * kBlockBytes);
    p.release_all();
  }
}

TEST_CASE("kv node: a guest goes to the disk of the node that took it, never on to a third node with room") {
  Pool p({.slots = {4, 4, 50}, .lenders = {1}, .cold_blocks = 100});
  p.park(0, 1, 4, 9);
  p.park(0, 2, 4, 5);
  REQUIRE(p.report(1).guest_bytes == 4 * kBlockBytes);
  p.park(1, 3, 4, 1);
  CHECK(p.report(1).spilled_bytes >= 4 * kBlockBytes);
  CHECK(p.report(1).moved_bytes == 0);
  CHECK(p.arenas[2]->taken_count() == 0);
  CHECK(p.open(0, 1, 4) == 4);
  p.release_all();
}

TEST_CASE("kv node: blocks on a node that dies are lost and nothing else is; a move that it had not answered is taken back") {
  Pool p({.slots = {4, 8}, .lenders = {1}});
  p.park(0, 1, 4, 9);
  p.park(0, 2, 2, 5);
  REQUIRE(p.report(0).moved_bytes == 2 * kBlockBytes);
  rt::kill(p.nodes[1]);
  p.run();
  CHECK(p.open(0, 1, 4) == 2);
  rt::post(p.directory, KvRelease{Pool::owner(1)});
  p.run();

  Pool q({.slots = {4, 8}, .lenders = {1}, .transfer_us = 1'000'000});  // still under way when it dies
  q.park(0, 1, 4, 9);
  rt::post(q.nodes[0], ReserveBlocks{{.op = 50, .owner = Pool::owner(2), .blocks = Pool::chain(2, 2), .first_index = 0, .prompt = false,
                                      .park = true, .next_use = 5},
                                     q.client.handle()});
  q.run(10'000);
  REQUIRE(q.state(0).guests.leaving_count() == 1);
  rt::kill(q.nodes[1]);
  q.run();
  CHECK(q.state(0).guests.leaving_count() == 0);
  CHECK(q.client.all<KvReserved>().back().op == 50);  // as without another node: request 1 is dropped for it
  CHECK(q.report(0).dropped_blocks == 2);
}

TEST_CASE("kv node: blocks do not move to a node, nor from one, whose process is reached through another") {
  for (const uint32_t without : {0u, 1u}) {
    CAPTURE(without);
    Pool p({.slots = {4, 8}, .lenders = {1}, .cold_blocks = 100, .unconnected = {without}});
    p.park(0, 1, 4, 9);
    p.park(0, 2, 2, 5);
    CHECK(p.report(0).moved_bytes == 0);
    CHECK(p.report(1).guest_bytes == 0);
    CHECK(p.report(0).spilled_bytes >= 2 * kBlockBytes);
    CHECK(p.state(0).guests.avoided().contains(NodeId{1}));
    p.release_all();
  }
}

TEST_CASE("kv node: where the best taker cannot be reached another one takes the blocks") {
  Pool p({.slots = {4, 8, 8}, .lenders = {1, 2}, .cold_blocks = 100, .lacks_one = true});
  p.park(0, 1, 4, 9);
  p.park(0, 2, 2, 5);
  CHECK(p.state(0).guests.avoided().size() == 1);
  CHECK(p.report(0).moved_bytes == 2 * kBlockBytes);
  CHECK(p.report(0).spilled_bytes == 0);
  CHECK(p.report(1).guest_bytes + p.report(2).guest_bytes == 2 * kBlockBytes);
  p.release_all();
}

TEST_CASE("kv node: without an answer of the directory a full node goes on by itself") {
  Pool p({.slots = {4, 8}, .lenders = {1}});
  p.park(0, 1, 4, 9);
  p.directory = p.world.spawn<SilentDirectory>();
  rt::post(p.nodes[0], DirectoryUp{p.directory});
  rt::post(p.nodes[0], ReserveBlocks{{.op = 50, .owner = Pool::owner(2), .blocks = Pool::chain(2, 2), .first_index = 0, .prompt = false,
                                      .park = true, .next_use = 5},
                                     p.client.handle()});
  p.run(1'000'000);
  CHECK(p.client.all<KvReserved>().back().op != 50);
  p.run(3'000'000);
  CHECK(p.client.all<KvReserved>().back().op == 50);
  CHECK(p.report(0).dropped_blocks == 2);
}
