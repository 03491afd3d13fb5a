#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include "actors/kv_directory_actor.h"
#include "actors/kv_node_actor.h"
#include "actors/kv_node_bench.h"
#include "storage/sim_transport.h"

using namespace seer;

namespace {

/// Two KV nodes: a request's blocks are on node 0, and an instance of node 1 opens them. A transfer takes transfer_us.
struct Lending {
  static constexpr int64_t kTimeoutUs = 10'000;
  static constexpr uint32_t kBlocks = 3;

  explicit Lending(int64_t transfer_us, int32_t fetch_tokens_min = 0) : client(world) {
    transport = std::make_shared<SimTransport>(SimTransportConfig{.latency_us = transfer_us,
                                                                  .fault = [this](const RemoteSlot& slot) { return fault ? fault(slot) : std::nullopt; }},
                                               [this](int64_t us, std::function<void()> f) { world.after(us, std::move(f)); });
    directory = world.spawn<KvDirectoryActor>();
    for (uint32_t n = 0; n < 2; ++n) {
      arenas.push_back(*HostArena::create({.dram_bytes = 8 * kBlockBytes, .block_bytes = kBlockBytes}));
      nodes.push_back(world.spawn<KvNodeActor>(
          KvNodeConfig{.node = NodeId{n}, .tiers = {.free_share = 0}, .fetch_tokens_min = fetch_tokens_min, .fetch_timeout_us = kTimeoutUs},
          KvNodeParts{.arena = arenas[n], .open_cold = {}, .directory = directory, .transport = transport,
                      .is_connected = [this, n](const rt::process&) { return !unconnected.contains(n); }}));
    }
    run_for(1000);
    write(0, kOwner, kBlocks);
  }
  /// The first `count` blocks, by an instance of node n.
  void write(uint32_t n, KvOwner owner, uint32_t count) {
    std::vector<BlockRef> written = blocks();
    written.resize(count);
    rt::post(nodes[n], ReserveBlocks{{.op = 1, .owner = owner, .blocks = std::move(written)}, client.handle()});
    run_for(1000);
    KvSeal seal;
    for (const KvGrant& g : last_grants()) {
      std::memset(arenas[n]->span(g.slot).data(), static_cast<int>(g.token), kBlockBytes);
      seal.blocks.push_back({g.token, crc32c(arenas[n]->span(g.slot))});
    }
    rt::post(nodes[n], seal);
    run_for(1000);
  }
  void run_for(int64_t us) { world.run_until(world.now_us() + us); }
  std::vector<BlockRef> blocks() const {
    std::vector<BlockRef> chain;
    for (uint32_t i = 0; i < kBlocks; ++i) chain.push_back({{WeightVersion{1}, 3, {7, i}}, 4});
    return chain;
  }
  /// The next directory of both nodes.
  void change_directory(KvDirectoryHandle to) {
    directory = std::move(to);
    for (const KvNodeHandle& node : nodes) rt::post(node, DirectoryUp{directory});
    run_for(0);
  }
  void open(uint32_t prompt_blocks = 0) {
    rt::post(nodes[1], OpenBlocks{{.op = ++op, .owner = kOwner, .blocks = blocks(), .prompt_blocks = prompt_blocks}, client.handle()});
  }
  std::vector<KvGrant> last_grants() const { return client.all<KvReserved>().back().grants; }
  size_t opened_blocks() const { return client.all<KvOpened>().empty() ? 99 : client.all<KvOpened>().back().blocks.size(); }
  KvNodeActor& state(uint32_t n) { return rt::look<KvNodeActor>(nodes[n]); }

  SimWorld world;
  Client client;
  std::shared_ptr<SimTransport> transport;
  KvDirectoryHandle directory;
  std::vector<std::shared_ptr<HostArena>> arenas;
  std::vector<KvNodeHandle> nodes;
  std::set<uint32_t> unconnected;  // nodes without connections to others
  std::function<std::optional<Code>(const RemoteSlot&)> fault;
  uint64_t op = 10;
};

}  // namespace

TEST_CASE("kv node: blocks of another node are fetched, sealed here, and released there") {
  Lending l(5'000);
  l.open();
  l.run_for(20'000);
  CHECK(l.opened_blocks() == Lending::kBlocks);
  CHECK(l.state(1).report().fetched_bytes == Lending::kBlocks * kBlockBytes);
  CHECK(l.arenas[0]->taken_count() == 0);
  CHECK(l.state(1).fetches.running_count() == 0);
  const auto& holders = rt::look<KvDirectoryActor>(l.directory).holders.at(kOwner);
  CHECK(holders.size() == 1);
  CHECK(holders.contains(NodeId{1}));
}

TEST_CASE("kv node: a draining node lends all of a request's blocks, also when another response left some of them here") {
  Lending l(5'000);
  l.write(1, owner_of(RequestId{GroupId{1}, 3}), 1);  // it began alike
  rt::post(l.directory, KvDraining{NodeId{0}});
  l.run_for(1'000);
  l.open();
  l.run_for(20'000);
  CHECK(l.opened_blocks() == Lending::kBlocks);
  CHECK(l.arenas[0]->taken_count() == 0);
}

TEST_CASE("kv node: a few missing tokens of a prompt are computed; nobody is asked for their blocks") {
  constexpr int32_t kTokens = 4 * Lending::kBlocks;
  for (const int32_t fetch_tokens_min : {kTokens, kTokens + 1})
    for (const uint32_t prompt_blocks : {Lending::kBlocks - 2, Lending::kBlocks - 1, Lending::kBlocks}) {
      CAPTURE(fetch_tokens_min);
      CAPTURE(prompt_blocks);
      Lending l(5'000, fetch_tokens_min);
      l.open(prompt_blocks);
      l.run_for(1'000);
      const bool has_run = prompt_blocks == Lending::kBlocks - 2;
      const bool is_asked = has_run || fetch_tokens_min == kTokens;
      CHECK(l.state(1).pulls.size() == (is_asked ? 1 : 0));
      CHECK(l.opened_blocks() == (is_asked ? 99 : 0));
    }
}

TEST_CASE("kv node: blocks are neither asked of nor lent to a process without a connection of its own") {
  for (const uint32_t without : {0u, 1u}) {
    CAPTURE(without);
    Lending l(5'000);
    l.unconnected = {without};
    l.open();
    l.run_for(2'000);
    CHECK(l.opened_blocks() == 0);
    CHECK(l.state(1).pulls.size() == 0);
    CHECK(l.state(0).leases.empty());
    CHECK(l.state(0).clients.size() == 1);  // the instance
    l.unconnected.clear();
    l.open();
    l.run_for(20'000);
    CHECK(l.opened_blocks() == Lending::kBlocks);
  }
}

TEST_CASE("kv node: a new directory is asked what the old one left unanswered") {
  Lending l(5'000);
  l.change_directory(l.world.spawn<SilentDirectory>());
  l.open();
  l.run_for(20'000);
  CHECK(l.opened_blocks() == 99);  // no answer yet
  l.change_directory(l.world.spawn<KvDirectoryActor>());
  l.run_for(20'000);
  CHECK(l.opened_blocks() == Lending::kBlocks);
}

TEST_CASE("kv node: while there is no directory, an opening is answered at once with what is here") {
  for (const bool is_asked_before : {false, true}) {
    CAPTURE(is_asked_before);
    Lending l(5'000);
    l.change_directory(l.world.spawn<SilentDirectory>());
    if (is_asked_before) l.open();
    l.run_for(100);
    rt::kill(l.directory);
    l.run_for(100);
    if (!is_asked_before) l.open();
    l.run_for(100);
    CHECK(l.opened_blocks() == 0);
    CHECK(l.state(1).pulls.size() == 0);
    l.change_directory(l.world.spawn<KvDirectoryActor>());
    l.open();
    l.run_for(20'000);
    CHECK(l.opened_blocks() == Lending::kBlocks);
  }
}

TEST_CASE("kv node: a block that is corrupt at its lender is dropped there, and not lent again") {
  Lending l(100);
  std::optional<uint32_t> corrupt;
  l.fault = [&](const RemoteSlot& from) -> std::optional<Code> {
    if (!corrupt) corrupt = from.slot;
    return *corrupt == from.slot ? std::optional(Code::kCorrupt) : std::nullopt;
  };
  l.open();
  l.run_for(20'000);
  CHECK(corrupt);
  CHECK(l.state(0).report().corrupt_blocks == 1);
  CHECK(l.opened_blocks() == 0);  // it was the first
  CHECK(l.state(1).report().fetch_failures == 1);
  l.open();
  l.run_for(20'000);
  CHECK(l.opened_blocks() == 0);
  CHECK(l.state(1).report().fetch_failures == 1);
}

TEST_CASE("kv node: a lender hears of its corrupt block before it is asked for more") {
  Lending l(100);
  int fetched = 0;
  std::optional<uint32_t> corrupt;
  l.fault = [&](const RemoteSlot& from) -> std::optional<Code> {
    if (++fetched == 2) corrupt = from.slot;
    return corrupt == from.slot ? std::optional(Code::kCorrupt) : std::nullopt;
  };
  l.open();
  l.run_for(20'000);
  CHECK(l.opened_blocks() == 1);
  CHECK(l.state(0).report().corrupt_blocks == 1);
  CHECK(l.state(1).report().fetch_failures == 1);
}

TEST_CASE("kv node: a lender may need longer than a directory for its answer") {
  Lending l(100);
  l.change_directory(l.world.spawn<SilentDirectory>());
  l.open();
  l.run_for(10);
  REQUIRE(l.state(1).pulls.size() == 1);
  rt::post(l.nodes[1], KvHolders{l.state(1).pulls.waits().begin()->first, {{l.world.spawn<SilentNode>(), NodeId{2}, 1, ""}}});
  l.run_for(9'900'000);
  CHECK(l.opened_blocks() == 99);
  l.run_for(200'000);
  CHECK(l.opened_blocks() == 0);
}

TEST_CASE("kv node: a late fetch is answered without its blocks, and its slots are used again only when nothing writes to them") {
  Lending l(50'000);
  l.open();
  l.run_for(20'000);
  CHECK(l.opened_blocks() == 0);
  CHECK(l.state(1).report().fetch_failures == Lending::kBlocks);
  CHECK(l.arenas[1]->taken_count() == Lending::kBlocks);  // the transport may write to them yet
  CHECK(l.state(1).tiers->stats().dram_quarantined_bytes == Lending::kBlocks * kBlockBytes);
  CHECK(l.state(0).leases.size() == 1);                   // and read from the lender's
  rt::post(l.nodes[1], ReserveBlocks{{.op = 1, .owner = kOwner, .blocks = l.blocks()}, l.client.handle()});
  l.run_for(1000);
  for (const KvGrant& grant : l.last_grants()) CHECK(grant.state != GrantState::kWrite);
  l.run_for(50'000);
  CHECK(l.arenas[1]->taken_count() == 0);
  CHECK(l.state(0).leases.empty());
  CHECK(l.state(1).fetches.running_count() == 0);
  rt::post(l.nodes[1], ReserveBlocks{{.op = 2, .owner = kOwner, .blocks = l.blocks()}, l.client.handle()});
  l.run_for(1000);
  for (const KvGrant& grant : l.last_grants()) CHECK(grant.state == GrantState::kWrite);
}

TEST_CASE("kv node: when the lender dies its transfers end at once, and the opening is answered with the blocks that are here") {
  for (const int64_t transfer_us : {5'000, 50'000}) {  // in time, or late already
    CAPTURE(transfer_us);
    Lending l(transfer_us);
    l.open();
    l.run_for(transfer_us == 5'000 ? 2'000 : 20'000);
    rt::kill(l.nodes[0]);
    l.run_for(100);
    CHECK(l.opened_blocks() == 0);
    CHECK(l.arenas[1]->taken_count() == 0);
    CHECK(l.state(1).fetches.running_count() == 0);
    CHECK(l.state(1).fetches.lender_texts().empty());
  }
}

TEST_CASE("kv node: a lender that dies while there is no room for its blocks is given up at once") {
  Lending l(100);
  std::vector<BlockRef> others;
  for (uint32_t i = 0; i < 8; ++i) others.push_back({{WeightVersion{1}, 3, {8, i}}, 4});
  rt::post(l.nodes[1], ReserveBlocks{{.op = 2, .owner = owner_of(RequestId{GroupId{1}, 3}), .blocks = others}, l.client.handle()});
  l.run_for(1000);
  l.open();
  l.run_for(1000);
  REQUIRE(l.state(1).pulls.size() == 1);
  REQUIRE(l.state(1).pulls.waits().begin()->second == KvPulls::Waits::kForRoom);
  rt::kill(l.nodes[0]);
  l.run_for(100);
  CHECK(l.opened_blocks() == 0);
  CHECK(l.state(1).pulls.size() == 0);
}

TEST_CASE("kv node: when a lender dies before it has answered, the next one is asked at once, and a late answer is ignored") {
  for (const bool is_dead_before : {false, true}) {
    CAPTURE(is_dead_before);
    Lending l(100);
    const KvNodeHandle silent = l.world.spawn<SilentNode>();
    l.change_directory(l.world.spawn<SilentDirectory>());  // the test says who holds what
    l.open();
    l.run_for(10);
    REQUIRE(l.state(1).pulls.size() == 1);
    if (is_dead_before) rt::kill(silent);
    l.run_for(10);
    const KvLender dead{silent, NodeId{2}, 1, ""}, alive{l.nodes[0], NodeId{0}, l.state(0).parts.epoch, l.state(0).address};
    rt::post(l.nodes[1], KvHolders{l.state(1).pulls.waits().begin()->first, {dead, alive}});
    if (!is_dead_before) {
      l.run_for(1000);
      CHECK(l.opened_blocks() == 99);
      rt::kill(silent);
    }
    l.run_for(50);  // the next one's blocks are on their way
    REQUIRE(l.state(1).pulls.size() == 1);
    const uint64_t op = l.state(1).pulls.waits().begin()->first;
    rt::post(l.nodes[1], KvOpened{.op = op, .lease = 9, .blocks = {{}}, .node = NodeId{2}, .epoch = 1});  // late
    l.run_for(1000);
    CHECK(l.opened_blocks() == Lending::kBlocks);
    CHECK(l.state(1).pulls.size() == 0);
  }
}

TEST_CASE("kv node: an opening waits for blocks that another one fetches") {
  Lending l(5'000);
  l.open(Lending::kBlocks);  // a prompt, of which two requests of a group need the same blocks
  l.run_for(2'000);
  l.open(Lending::kBlocks);
  l.run_for(20'000);
  REQUIRE(l.client.all<KvOpened>().size() == 2);
  for (const KvOpened& opened : l.client.all<KvOpened>()) CHECK(opened.blocks.size() == Lending::kBlocks);
  CHECK(l.state(1).report().fetched_bytes == Lending::kBlocks * kBlockBytes);
  CHECK(l.state(1).pulls.size() == 0);
}

TEST_CASE("kv node: an opening that waits for another one's blocks goes on when these do not come") {
  Lending l(5'000);
  l.fault = [](const RemoteSlot&) { return std::optional(Code::kUnavailable); };
  l.open(Lending::kBlocks);
  l.run_for(2'000);
  l.open(Lending::kBlocks);
  l.run_for(20'000);
  REQUIRE(l.client.all<KvOpened>().size() == 2);
  for (const KvOpened& opened : l.client.all<KvOpened>()) CHECK(opened.blocks.empty());
  CHECK(l.state(1).pulls.size() == 0);
}

TEST_CASE("kv node: a request's blocks that do not come are none that this node keeps") {
  Lending l(100);
  l.fault = [](const RemoteSlot&) { return std::optional(Code::kUnavailable); };
  l.open();
  l.run_for(20'000);
  CHECK(l.opened_blocks() == 0);
  CHECK(l.arenas[1]->taken_count() == 0);
  CHECK(l.state(1).tiers->is_drained());
  CHECK(rt::look<KvDirectoryActor>(l.directory).holders.at(kOwner).size() == 1);
  CHECK(rt::look<KvDirectoryActor>(l.directory).holders.at(kOwner).contains(NodeId{0}));
  CHECK(l.arenas[0]->taken_count() == Lending::kBlocks);
}

TEST_CASE("kv node: a lender that lends a part is asked for the rest, and drops its copy once all of it has come") {
  Lending l(100);
  rt::post(l.nodes[0], OpenBlocks{{.op = 5, .owner = kOwner, .blocks = l.blocks()}, l.client.handle()});
  l.run_for(1000);
  const KvOpened whole = l.client.all<KvOpened>().back();
  REQUIRE(whole.blocks.size() == Lending::kBlocks);
  Recorder<KvSource, OpenBlocks, KvClose, KvRelease> lender(l.world);
  l.change_directory(l.world.spawn<SilentDirectory>());
  l.open();
  l.run_for(10);
  const uint64_t op = l.state(1).pulls.waits().begin()->first;
  rt::post(l.nodes[1], KvHolders{op, {{lender.handle(), NodeId{0}, l.state(0).parts.epoch, l.state(0).address}}});
  for (size_t first = 0; first < Lending::kBlocks; ++first) {
    CAPTURE(first);
    l.run_for(1000);
    REQUIRE(lender.all<OpenBlocks>().size() == first + 1);
    CHECK(lender.all<OpenBlocks>().back().what.blocks.size() == Lending::kBlocks - first);
    CHECK(lender.all<KvRelease>().empty());
    rt::post(l.nodes[1], KvOpened{.op = op, .lease = 20 + first, .blocks = {whole.blocks[first]}, .node = NodeId{0}, .epoch = whole.epoch});
  }
  l.run_for(1000);
  CHECK(l.opened_blocks() == Lending::kBlocks);
  CHECK(lender.all<KvClose>().size() == Lending::kBlocks);
  REQUIRE(lender.all<KvRelease>().size() == 1);
  CHECK(lender.all<KvRelease>()[0].copied);
}

TEST_CASE("kv node: when a lender is silent the next one is asked, and a late lease is given back") {
  Lending l(100);
  Recorder<KvSource, OpenBlocks, KvClose, KvRelease> silent(l.world);
  l.change_directory(l.world.spawn<SilentDirectory>());
  l.open();
  l.run_for(10);
  const uint64_t op = l.state(1).pulls.waits().begin()->first;
  rt::post(l.nodes[1], KvHolders{op, {{silent.handle(), NodeId{2}, 1, ""}, {l.nodes[0], NodeId{0}, l.state(0).parts.epoch, l.state(0).address}}});
  l.run_for(9'900'000);
  CHECK(l.opened_blocks() == 99);
  l.run_for(200'000);
  CHECK(l.opened_blocks() == Lending::kBlocks);
  rt::post(l.nodes[1], KvOpened{.op = op, .lease = 9, .blocks = {{}}, .node = NodeId{2}, .epoch = 1});
  l.run_for(1000);
  REQUIRE(silent.all<KvClose>().size() == 1);
  CHECK(silent.all<KvClose>()[0].lease == 9);
}

TEST_CASE("kv node: every late lease is given back, however many lenders are silent") {
  Lending l(100);
  Recorder<KvSource, OpenBlocks, KvClose, KvRelease> silent(l.world);
  l.change_directory(l.world.spawn<SilentDirectory>());
  constexpr size_t kPulls = 1100;
  std::vector<uint64_t> ops;
  for (size_t i = 0; i < kPulls; ++i) {
    l.open();
    l.run_for(10);
    const uint64_t op = l.state(1).pulls.waits().rbegin()->first;
    ops.push_back(op);
    rt::post(l.nodes[1], KvHolders{op, {{silent.handle(), NodeId{2}, 1, ""}}});
  }
  l.run_for(11'000'000);
  CHECK(l.state(1).pulls.size() == 0);
  for (const uint64_t op : ops) rt::post(l.nodes[1], KvOpened{.op = op, .lease = op, .blocks = {{}}, .node = NodeId{2}, .epoch = 1});
  l.run_for(1000);
  CHECK(silent.all<KvClose>().size() == kPulls);
}
