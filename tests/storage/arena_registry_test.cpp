#include "storage/arena_registry.h"

#include <doctest/doctest.h>

#include "storage/arena_pair.h"

using namespace seer;

namespace {

struct Bench : ArenaPair {
  Bench() { CHECK(open(registry).ok()); }
  Code code_of(const RemoteSlot& remote) {
    const Status status = registry.copy(fetch_of(remote));
    REQUIRE_FALSE(status.ok());
    return status.error().code;
  }
  ArenaRegistry registry;
};

}  // namespace

TEST_CASE("arena registry: a copy brings the bytes of an opened node's slot") {
  Bench b;
  CHECK(b.registry.copy(b.fetch_of(b.good)).ok());
  CHECK(b.is_copied());
}

TEST_CASE("arena registry: stale epochs and generations, bad slots and sizes, wrong bytes and lost nodes are told apart") {
  Bench b;
  RemoteSlot epoch = b.good, generation = b.good, slot = b.good, crc = b.good, node = b.good;
  epoch.epoch = 4;
  generation.generation = 99;
  slot.slot = 1000;
  crc.crc32c ^= 1;
  node.node = {7};
  CHECK(b.code_of(epoch) == Code::kStale);
  CHECK(b.code_of(generation) == Code::kStale);
  CHECK(b.code_of(slot) == Code::kInvalidArgument);
  CHECK(b.code_of(crc) == Code::kCorrupt);
  CHECK(b.code_of(node) == Code::kUnavailable);
  const Status small = b.registry.copy({b.good, b.to->span(b.target).first(8)});
  CHECK(small.error().code == Code::kInvalidArgument);
  b.from->free(b.slot);
  CHECK(b.code_of(b.good) == Code::kStale);
}

TEST_CASE("arena registry: what was closed or withdrawn cannot be copied from until it is opened again") {
  Bench b;
  CHECK_FALSE(b.registry.close_peer(b.kNode, b.kEpoch - 1));  // another epoch: nothing happens
  CHECK(b.registry.copy(b.fetch_of(b.good)).ok());
  CHECK(b.registry.close_peer(b.kNode, b.kEpoch));
  CHECK(b.code_of(b.good) == Code::kUnavailable);
  CHECK(b.open(b.registry).ok());
  CHECK(b.registry.copy(b.fetch_of(b.good)).ok());
  b.registry.withdraw(b.kNode, b.kEpoch - 1);
  CHECK(b.registry.copy(b.fetch_of(b.good)).ok());
  b.registry.withdraw(b.kNode, b.kEpoch);
  CHECK(b.code_of(b.good) == Code::kUnavailable);
}

TEST_CASE("arena registry: a peer opens by the address it was published under, in the epoch it is in") {
  Bench b;
  const std::string address = b.registry.publish({2}, 3, b.from);
  CHECK(b.registry.open_peer({2}, 3, address).ok());
  CHECK(b.registry.open_peer({2}, 3, address).ok());  // again
  CHECK(b.registry.open_peer({2}, 2, address).error().code == Code::kStale);
  CHECK(b.registry.open_peer({3}, 3, "local:3").error().code == Code::kUnavailable);
  const Status foreign = b.registry.open_peer({2}, 3, "ucx:" + std::string(500, 'a'));
  CHECK(foreign.error().code == Code::kInvalidArgument);
  CHECK(foreign.error().detail.find("expected \"local:2\"") != std::string::npos);
  CHECK(foreign.error().detail.size() < 200);
}

TEST_CASE("arena registry: a later epoch replaces an earlier one, and never the other way round") {
  Bench b;
  const std::string address = b.registry.publish(b.kNode, b.kEpoch + 1, b.to);
  CHECK(b.code_of(b.good) == Code::kStale);
  b.registry.publish(b.kNode, b.kEpoch, b.from);  // late word
  CHECK(b.registry.open_peer(b.kNode, b.kEpoch, address).error().code == Code::kStale);
  CHECK(b.registry.open_peer(b.kNode, b.kEpoch + 1, address).ok());
}

TEST_CASE("arena registry: it knows the node whose arena bytes lie in") {
  Bench b;
  std::vector<std::byte> elsewhere(64);
  CHECK(!b.registry.node_of(elsewhere));
  CHECK(b.registry.node_of(b.from->span(0)) == b.good.node);
}
