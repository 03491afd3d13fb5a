#include "storage/local_transport.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <future>

#include "protocols/kv.h"

using namespace seer;

namespace {

constexpr int64_t kBytes = 256;

struct Pair {
  Pair() {
    from = *HostArena::create({.dram_bytes = 4 * kBytes, .block_bytes = kBytes});
    to = *HostArena::create({.dram_bytes = 4 * kBytes, .block_bytes = kBytes});
    transport.arenas().add_node({1}, 5, from);
    slot = *from->take();
    target = *to->take();
    std::memset(from->span(slot).data(), 0x5a, kBytes);
    good = {{1}, 5, slot, from->generation(slot), crc32c(from->span(slot))};
  }
  std::vector<Status> fetch(std::vector<RemoteSlot> slots) {
    std::vector<Fetch> fetches;
    for (const RemoteSlot& s : slots) fetches.push_back({s, to->span(target)});
    std::promise<std::vector<Status>> promise;
    CHECK(transport.fetch(fetches, [&](std::vector<Status> s) { promise.set_value(std::move(s)); }).ok());
    return promise.get_future().get();
  }

  std::shared_ptr<HostArena> from, to;
  uint32_t slot = 0, target = 0;
  RemoteSlot good;
  LocalTransport transport;  // last: its thread uses the arenas
};

}  // namespace

TEST_CASE("local transport: a fetch brings the bytes over") {
  Pair p;
  CHECK(p.fetch({p.good})[0].ok());
  CHECK(std::memcmp(p.to->span(p.target).data(), p.from->span(p.slot).data(), kBytes) == 0);
}

TEST_CASE("local transport: stale epochs and generations, bad slots, wrong bytes and lost nodes are told apart") {
  Pair p;
  RemoteSlot epoch = p.good, generation = p.good, slot = p.good, crc = p.good, node = p.good;
  epoch.epoch = 4;
  generation.generation = 99;
  slot.slot = 1000;
  crc.crc32c ^= 1;
  node.node = {7};
  const auto s = p.fetch({epoch, generation, slot, crc, node, p.good});
  CHECK(s[0].error().code == Code::kStale);
  CHECK(s[1].error().code == Code::kStale);
  CHECK(s[2].error().code == Code::kInvalidArgument);
  CHECK(s[3].error().code == Code::kCorrupt);
  CHECK(s[4].error().code == Code::kUnavailable);
  CHECK(s[5].ok());
  p.from->free(p.slot);
  CHECK(p.fetch({p.good})[0].error().code == Code::kStale);
  p.transport.arenas().remove_node({1});
  CHECK(p.fetch({p.good})[0].error().code == Code::kUnavailable);
}

TEST_CASE("local transport: the queue is bounded, and every accepted fetch is answered, also at the end") {
  auto arena = *HostArena::create({.dram_bytes = kBytes, .block_bytes = kBytes});
  std::atomic<int> answered{0};
  int accepted = 0;
  {
    LocalTransport transport({.queue_max = 3});
    std::promise<void> entered, go;
    auto wait_for_go = go.get_future().share();
    CHECK(transport.fetch({}, [&, wait_for_go](auto) { entered.set_value(), wait_for_go.wait(), ++answered; }).ok());
    entered.get_future().wait();  // the thread is held in the first one
    for (int i = 0; i < 5; ++i)
      accepted += transport.fetch({}, [&](auto) { ++answered; }).ok() ? 1 : 0;
    CHECK(accepted == 3);
    go.set_value();
  }
  CHECK(answered == 1 + accepted);
}
