#include "storage/kv_tiers.h"

#include <doctest/doctest.h>

#include <array>
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>

#include "protocols/hash.h"
#include "storage/sim_cold_store.h"

using namespace seer;

namespace {

constexpr int64_t kBlockBytes = 64;

/// A node with its queue of posted functions and a virtual clock for the cold store.
struct Node {
  explicit Node(uint32_t slots, std::optional<SimColdStoreConfig> cold = {}, SimColdFaults faults = {},
                KvTiersConfig config = {.spill_batch_bytes = 4 * kBlockBytes, .free_share = 0.0}, bool has_neighbour = false) {
    arena = *HostArena::create({.dram_bytes = slots * kBlockBytes, .block_bytes = kBlockBytes});
    std::unique_ptr<SimColdStore> store;
    if (cold)
      store = std::make_unique<SimColdStore>(
          *cold, [this](int64_t delay, std::function<void()> fn) { clock.emplace(now_us + delay, std::move(fn)); },
          std::move(faults));
    store_view = store.get();
    KvTiersHooks hooks{.post = [this](auto fn) { mailbox.push_back(std::move(fn)); },
                       .room = [this] { ++room_calls; },
                       .lost = [this](const BlockKey& k) { lost.push_back(k); }};
    if (has_neighbour) {
      hooks.find_away_room = [this](int64_t) { ++away_questions; };
      hooks.move_away = [this](const LeavingBlocks& blocks) { leaving.push_back(blocks); };
    }
    tiers = std::make_unique<KvTiers>(config, arena, std::move(store), std::move(hooks));
  }

  bool step() {  // one posted function, or else the next completion of the store
    if (!mailbox.empty()) {
      auto fn = std::move(mailbox.front());
      mailbox.pop_front();
      fn();
      return true;
    }
    if (clock.empty()) return false;
    auto node = clock.extract(clock.begin());
    now_us = node.key();
    node.mapped()();
    return true;
  }
  void run() {
    for (int steps = 0; step(); ++steps) {
      tiers->check_invariants();
      REQUIRE(steps < 10'000);  // no work without end
    }
  }

  std::vector<Reservation> reserve(uint64_t owner, const std::vector<BlockRef>& chain, ReserveOptions options = {}) {
    auto answers = tiers->reserve({owner}, chain, options);
    tiers->check_invariants();
    return answers;
  }
  Status fill_and_seal(const Reservation& r, const BlockRef& ref);
  /// Reserves and seals the whole chain. REQUIRES: there is room.
  void store(uint64_t owner, const std::vector<BlockRef>& chain, ReserveOptions options = {}) {
    const auto answers = reserve(owner, chain, options);
    for (size_t i = 0; i < chain.size(); ++i) {
      REQUIRE(answers[i].state == GrantState::kWrite);
      REQUIRE(fill_and_seal(answers[i], chain[i]).ok());
    }
    run();
  }
  /// The same, one block after the other, waiting for room.
  void store_waiting(uint64_t owner, const std::vector<BlockRef>& chain) {
    for (uint32_t i = 0; i < chain.size(); ++i) {
      auto r = reserve(owner, {chain[i]}, {.first_index = i})[0];
      if (r.state == GrantState::kLater) {
        const int calls = room_calls;
        run();
        REQUIRE(room_calls > calls);
        r = reserve(owner, {chain[i]}, {.first_index = i})[0];
      }
      REQUIRE(r.state == GrantState::kWrite);
      REQUIRE(fill_and_seal(r, chain[i]).ok());
    }
    run();
  }
  OpenResult open(uint64_t owner, const std::vector<BlockRef>& chain) {
    std::optional<OpenResult> result;
    std::vector<BlockKey> keys;
    for (const auto& ref : chain) keys.push_back(ref.key);
    tiers->open({owner}, keys, [&](OpenResult r) { result = std::move(r); });
    run();
    REQUIRE(result.has_value());
    return std::move(*result);
  }
  bool holds_right_bytes(const OpenBlock& b) const;

  std::deque<std::function<void()>> mailbox;
  std::multimap<int64_t, std::function<void()>> clock;
  int64_t now_us = 0;
  int room_calls = 0;
  std::vector<BlockKey> lost;
  int away_questions = 0;
  std::vector<LeavingBlocks> leaving;  // all so far
  std::shared_ptr<HostArena> arena;
  SimColdStore* store_view = nullptr;
  std::unique_ptr<KvTiers> tiers;
};

std::vector<BlockRef> chain_of(uint64_t request, uint32_t blocks, uint64_t version = 1) {
  std::vector<BlockRef> chain;
  for (uint32_t i = 0; i < blocks; ++i)
    chain.push_back({{WeightVersion{version}, 3, {hash_pair(request, i), request * 1000 + i}}, 16});
  return chain;
}

// What the engine would have computed: a function of the key alone.
std::array<std::byte, kBlockBytes> content(const BlockKey& key) {
  std::array<std::byte, kBlockBytes> bytes;
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(mix64(key.prefix.hi ^ (key.version.value << 32) ^ i));
  return bytes;
}

Status Node::fill_and_seal(const Reservation& r, const BlockRef& ref) {
  const auto bytes = content(ref.key);
  std::copy(bytes.begin(), bytes.end(), arena->span(r.slot).begin());
  return tiers->seal(r.token, crc32c(bytes));
}

bool Node::holds_right_bytes(const OpenBlock& b) const {
  const auto bytes = content(b.key);
  const auto slot = arena->span(b.slot);
  return b.crc32c == crc32c(bytes) && std::equal(slot.begin(), slot.end(), bytes.begin());
}

std::vector<GrantState> kinds(const std::vector<Reservation>& answers) {
  std::vector<GrantState> out;
  for (const auto& a : answers) out.push_back(a.state);
  return out;
}

}  // namespace

TEST_CASE("kv tiers: sealed blocks are read back bit by bit, and released memory is free at once") {
  Node node(8);
  const auto chain = chain_of(1, 5);
  node.store(1, chain);
  const auto result = node.open(1, chain);
  REQUIRE(result.blocks.size() == 5);
  for (size_t i = 0; i < 5; ++i) {
    CHECK(result.blocks[i].key == chain[i].key);
    CHECK(result.blocks[i].tokens == 16);
    CHECK(node.holds_right_bytes(result.blocks[i]));
  }
  CHECK(node.tiers->close(result.lease).ok());
  CHECK(node.tiers->close(result.lease).error().code == Code::kStale);
  CHECK(node.tiers->stats().dram_used_bytes == 5 * kBlockBytes);
  node.tiers->release({1});
  CHECK(node.tiers->is_drained());
  CHECK(node.tiers->stats().dram_peak_bytes == 5 * kBlockBytes);
}

TEST_CASE("kv tiers: a second completion of a write changes nothing") {
  Node node(2);
  const auto chain = chain_of(1, 1);
  const auto r = node.reserve(1, chain)[0];
  CHECK(node.fill_and_seal(r, chain[0]).ok());
  CHECK(node.tiers->seal(r.token, 12345).error().code == Code::kStale);
  CHECK(node.tiers->abort(r.token).error().code == Code::kStale);
  CHECK(node.holds_right_bytes(node.open(1, chain).blocks.at(0)));
  CHECK(node.tiers->stats().stale_completions == 2);
}

TEST_CASE("kv tiers: the slot of a released owner is not given away while its writer may still write") {
  Node node(1);
  const auto a = chain_of(1, 1), b = chain_of(2, 1);
  const auto r = node.reserve(1, a)[0];
  node.tiers->release({1});
  node.tiers->check_invariants();
  CHECK(node.reserve(2, b)[0].state == GrantState::kLater);
  CHECK(node.reserve(1, a)[0].state == GrantState::kLater);  // its own key is in quarantine too
  node.run();
  CHECK(node.room_calls == 0);
  CHECK(node.fill_and_seal(r, a[0]).error().code == Code::kStale);
  node.run();
  CHECK(node.room_calls == 1);
  CHECK(node.reserve(2, b)[0].state == GrantState::kWrite);
}

TEST_CASE("kv tiers: leased blocks outlive their owner and keep their bytes until the lease is closed") {
  Node node(2);
  const auto a = chain_of(1, 2);
  node.store(1, a);
  const auto result = node.open(9, a);
  node.tiers->release({1});
  CHECK(node.reserve(2, chain_of(2, 1))[0].state == GrantState::kLater);
  for (const auto& b : result.blocks) CHECK(node.holds_right_bytes(b));
  CHECK(node.open(9, a).blocks.empty());  // nobody new gets them
  CHECK(node.tiers->close(result.lease).ok());
  node.tiers->release({2});
  CHECK(node.tiers->is_drained());
}

TEST_CASE("kv tiers: a prompt is stored once for its group and freed with its last owner") {
  Node node(8);
  const auto prompt = chain_of(7, 3);
  node.store(100, prompt, {.prompt = true});
  for (uint64_t r = 1; r <= 4; ++r) CHECK(kinds(node.reserve(r, prompt)) == std::vector(3, GrantState::kHere));
  node.tiers->release({100});
  for (uint64_t r = 1; r <= 3; ++r) node.tiers->release({r});
  CHECK(node.tiers->stats().dram_used_bytes == 3 * kBlockBytes);
  node.tiers->release({4});
  CHECK(node.tiers->is_drained());
}

TEST_CASE("kv tiers: a partial tail block goes when the block that replaces it is written") {
  Node node(4);
  auto chain = chain_of(1, 2);
  auto partial = chain_of(50, 2)[1];
  partial.tokens = 5;
  node.store(1, {chain[0], partial});
  node.store(1, {chain[1]}, {.first_index = 1});
  CHECK(node.tiers->stats().dram_used_bytes == 2 * kBlockBytes);
  CHECK(node.open(1, {chain[0], partial}).blocks.size() == 1);
  CHECK(node.open(1, chain).blocks.size() == 2);
}

TEST_CASE("kv tiers: without a cold tier a nearer owner takes the tail of the furthest parked one, and no other") {
  Node node(6);
  node.store(1, chain_of(1, 3));
  node.store(2, chain_of(2, 3));
  node.tiers->unpin({1}, 10);
  node.tiers->unpin({2}, 20);
  node.tiers->unpin({3}, 15);
  CHECK(kinds(node.reserve(3, chain_of(3, 4))) ==
        std::vector{GrantState::kWrite, GrantState::kWrite, GrantState::kWrite, GrantState::kRefused});
  CHECK(node.open(1, chain_of(1, 3)).blocks.size() == 3);
  CHECK(node.open(2, chain_of(2, 3)).blocks.empty());
  CHECK(node.tiers->stats().dropped_blocks == 3);
  CHECK(node.lost.size() == 3);
  CHECK(node.lost.front() == chain_of(2, 3)[2].key);  // tail first
}

TEST_CASE("kv tiers: running owners and prompts are never dropped") {
  Node node(4);
  node.store(1, chain_of(1, 2), {.prompt = true});
  node.store(2, chain_of(2, 2));
  node.tiers->pin({2});
  node.tiers->pin({3});
  CHECK(node.reserve(3, chain_of(3, 1))[0].state == GrantState::kRefused);
  CHECK(node.tiers->stats().dropped_blocks == 0);
}

TEST_CASE("kv tiers: a full DRAM spills the furthest chain, and it comes back with the same bits") {
  Node node(6, SimColdStoreConfig{});
  node.store(1, chain_of(1, 3));
  node.store(2, chain_of(2, 3));
  node.tiers->unpin({1}, 10);
  node.tiers->unpin({2}, 20);
  node.tiers->pin({3});
  const auto chain = chain_of(3, 2);
  CHECK(kinds(node.reserve(3, chain)) == std::vector{GrantState::kLater, GrantState::kLater});
  node.run();
  CHECK(node.room_calls == 1);
  node.store(3, chain);
  CHECK(node.tiers->probe(std::vector{chain_of(2, 1)[0].key}).dram_blocks == 1);
  CHECK(node.tiers->stats().spilled_bytes == 2 * kBlockBytes);
  CHECK(node.tiers->stats().cold_used_bytes == 2 * kBlockBytes);
  const auto result = node.open(2, chain_of(2, 3));
  REQUIRE(result.blocks.size() == 3);
  for (const auto& b : result.blocks) CHECK(node.holds_right_bytes(b));
  CHECK(node.tiers->stats().promoted_bytes == 2 * kBlockBytes);
}

TEST_CASE("kv tiers: a block that comes back and leaves again is not written twice") {
  Node node(2, SimColdStoreConfig{});
  node.store(1, chain_of(1, 2));
  node.tiers->unpin({1}, 10);
  for (int round = 0; round < 5; ++round) {
    node.store_waiting(2, chain_of(2, 2));
    node.tiers->release({2});
    const auto result = node.open(1, chain_of(1, 2));
    REQUIRE(result.blocks.size() == 2);
    CHECK(node.tiers->close(result.lease).ok());
  }
  CHECK(node.tiers->stats().spilled_bytes == 2 * kBlockBytes);
}

TEST_CASE("kv tiers: an open larger than DRAM answers with the prefix that fits") {
  Node node(3, SimColdStoreConfig{});
  const auto chain = chain_of(1, 6);
  node.store_waiting(1, chain);
  const auto result = node.open(1, chain);
  REQUIRE(result.blocks.size() == 3);
  for (const auto& b : result.blocks) CHECK(node.holds_right_bytes(b));
}

TEST_CASE("kv tiers: two opens that cannot both fit do not wait for each other") {
  Node node(4, SimColdStoreConfig{});
  for (uint64_t r = 1; r <= 2; ++r) node.store_waiting(r, chain_of(r, 3));
  node.store_waiting(3, chain_of(3, 4));  // pushes both out
  node.tiers->release({3});
  int answered = 0;
  for (uint64_t r = 1; r <= 2; ++r) {
    std::vector<BlockKey> keys;
    for (const auto& ref : chain_of(r, 3)) keys.push_back(ref.key);
    node.tiers->open({r}, keys, [&, r](OpenResult result) {
      ++answered;
      CHECK(result.blocks.size() == 3);
      CHECK(node.tiers->close(result.lease).ok());
    });
  }
  node.run();
  CHECK(answered == 2);
}

TEST_CASE("kv tiers: a new weight version ends opens, refuses old writes and leaves nothing of the old data") {
  Node node(4, SimColdStoreConfig{});
  node.store(1, chain_of(1, 3));
  const auto answers = node.reserve(2, chain_of(2, 2));
  CHECK(kinds(answers) == std::vector{GrantState::kWrite, GrantState::kLater});
  const auto pending = answers[0];
  node.run();  // one block of owner 1 is cold now
  std::optional<OpenResult> result;
  std::vector<BlockKey> keys;
  for (const auto& ref : chain_of(1, 3)) keys.push_back(ref.key);
  node.tiers->open({1}, keys, [&](OpenResult r) { result = std::move(r); });
  node.tiers->bump_version({2});
  node.tiers->check_invariants();
  CHECK(node.fill_and_seal(pending, chain_of(2, 1)[0]).error().code == Code::kStale);
  node.run();
  REQUIRE(result.has_value());
  CHECK(result->blocks.empty());
  CHECK(result->status.error().code == Code::kStale);
  CHECK(node.reserve(1, chain_of(1, 1))[0].state == GrantState::kRefused);
  CHECK(node.open(1, chain_of(1, 1)).status.error().code == Code::kStale);
  node.run();
  CHECK(node.store_view->stats().used_bytes == 0);
  for (const auto& r : node.reserve(2, chain_of(2, 1, 2))) CHECK(node.tiers->abort(r.token).ok());
  node.tiers->release({2});
  CHECK(node.tiers->is_drained());
}

TEST_CASE("kv tiers: a corrupt cold read ends the opening before it, is counted, and is not offered again") {
  const auto bad = chain_of(1, 4)[1].key;
  Node node(4, SimColdStoreConfig{}, {.get = [bad](const BlockKey& k) {
              return k == bad ? std::optional(Code::kCorrupt) : std::nullopt;
            }});
  node.store(1, chain_of(1, 4));
  node.tiers->unpin({1}, 1);
  CHECK(node.reserve(2, chain_of(2, 4))[0].state == GrantState::kLater);
  node.run();
  const auto result = node.open(1, chain_of(1, 4));
  REQUIRE(result.blocks.size() == 1);
  CHECK(node.holds_right_bytes(result.blocks[0]));
  CHECK(node.tiers->stats().corrupt_blocks == 1);
  CHECK(node.lost == std::vector{bad});
  CHECK(node.open(1, chain_of(1, 4)).blocks.size() == 1);
}

TEST_CASE("kv tiers: a block that a reader found corrupt is gone for all at once, its slot when the lease ends") {
  Node node(2);
  node.store(1, chain_of(1, 2));
  const auto result = node.open(1, chain_of(1, 2));
  node.tiers->report_corrupt(result.blocks[1].key);
  node.tiers->check_invariants();
  CHECK(node.open(2, chain_of(1, 2)).blocks.size() == 1);
  CHECK(node.tiers->stats().dram_quarantined_bytes == kBlockBytes);
  CHECK(node.tiers->close(result.lease).ok());
  CHECK(node.tiers->stats().dram_used_bytes == kBlockBytes);
}

TEST_CASE("kv tiers: with a full cold tier writers are refused, and spilling starts again when space is freed") {
  Node node(4, SimColdStoreConfig{.capacity_bytes = 2 * kBlockBytes});
  node.store(1, chain_of(1, 4));
  node.tiers->pin({1});
  node.tiers->pin({2});
  const auto two = chain_of(2, 4);
  CHECK(node.reserve(2, two)[0].state == GrantState::kLater);
  node.run();
  node.store(2, {two.begin(), two.begin() + 2});
  CHECK(node.tiers->stats().cold_full == 2);  // of the four blocks that were to make room
  CHECK(node.reserve(2, {two[2]}, {.first_index = 2})[0].state == GrantState::kRefused);
  node.tiers->release({1});
  node.run();
  node.store(2, {two[2], two[3]}, {.first_index = 2});
  node.reserve(3, chain_of(3, 2));
  node.run();
  CHECK(node.tiers->stats().cold_used_bytes == 2 * kBlockBytes);
}

TEST_CASE("kv tiers: a wrong chain index or length of a known block is refused") {
  Node node(4);
  auto chain = chain_of(1, 2);
  node.store(1, chain);
  CHECK(node.reserve(2, {chain[1]})[0].state == GrantState::kRefused);
  chain[1].tokens = 3;
  CHECK(kinds(node.reserve(2, chain)) == std::vector{GrantState::kHere, GrantState::kRefused});
}

TEST_CASE("kv tiers: a quarantined write keeps its slot until it is aborted, and nobody gets its block meanwhile") {
  Node node(2);
  const auto chain = chain_of(1, 2);
  const auto writes = node.reserve(1, chain);
  REQUIRE(writes[1].state == GrantState::kWrite);
  REQUIRE(node.fill_and_seal(writes[0], chain[0]).ok());
  node.tiers->quarantine(writes[1].token);
  node.tiers->quarantine(writes[1].token);  // again: nothing more
  node.tiers->check_invariants();
  CHECK(node.tiers->stats().dram_quarantined_bytes == kBlockBytes);
  CHECK(node.tiers->probe(std::array{chain[0].key, chain[1].key}).dram_blocks == 1);
  CHECK(node.reserve(1, chain)[1].state == GrantState::kLater);
  CHECK(node.reserve(2, chain_of(2, 1))[0].state != GrantState::kWrite);  // the slot is taken
  CHECK(node.tiers->abort(writes[1].token).ok());
  node.run();
  CHECK(node.room_calls == 1);
  CHECK(node.arena->free_count() == 1);
  CHECK(node.reserve(1, chain)[1].state == GrantState::kWrite);
}

TEST_CASE("kv tiers: a seal that comes after the quarantine is too late") {
  Node node(1);
  const auto chain = chain_of(1, 1);
  const auto write = node.reserve(1, chain)[0];
  node.tiers->quarantine(write.token);
  CHECK(node.fill_and_seal(write, chain[0]).error().code == Code::kStale);
  CHECK(node.arena->free_count() == 1);
  node.tiers->quarantine(write.token);  // ended: nothing to quarantine
  CHECK(node.tiers->is_drained());
}

// ---- blocks that leave for another machine --------------------------------------------------------------------------

namespace {

/// Four slots, a cold tier and a neighbour.
Node node_with_neighbour(bool has_cold = true) {
  return Node(4, has_cold ? std::optional(SimColdStoreConfig{.capacity_bytes = 100 * kBlockBytes}) : std::nullopt, {},
              {.spill_batch_bytes = 4 * kBlockBytes, .free_share = 0.0}, true);
}
std::vector<BlockKey> keys_of(const LeavingBlocks& leaving) {
  std::vector<BlockKey> keys;
  for (const OpenBlock& block : leaving.blocks) keys.push_back(block.key);
  return keys;
}

}  // namespace

TEST_CASE("kv tiers: a full node asks for room elsewhere before it writes to disk, and the tail of the chain used last leaves") {
  auto n = node_with_neighbour();
  n.store(1, chain_of(1, 2));
  n.store(2, chain_of(2, 2));
  n.tiers->unpin({1}, 5);
  n.tiers->unpin({2}, 9);
  CHECK(n.away_questions == 0);
  const auto more = chain_of(3, 3);
  CHECK(n.reserve(3, more)[0].state == GrantState::kLater);
  CHECK(n.away_questions == 1);
  n.run();
  CHECK(n.tiers->stats().spilled_bytes == 0);  // nothing before the answer
  n.tiers->away_room(3);
  n.tiers->check_invariants();
  REQUIRE(n.leaving.size() == 2);
  CHECK(n.leaving[0].owner == OwnerId{2});
  CHECK(n.leaving[0].next_use == 9);
  CHECK(keys_of(n.leaving[0]) == std::vector{chain_of(2, 2)[0].key, chain_of(2, 2)[1].key});
  CHECK(n.leaving[1].owner == OwnerId{1});
  CHECK(n.leaving[1].first_index == 1);
  CHECK(n.room_calls == 0);
  for (const LeavingBlocks& leaving : n.leaving) CHECK(n.tiers->close(leaving.lease, keys_of(leaving)).ok());
  n.run();
  CHECK(n.room_calls == 1);
  n.store(3, more);
  CHECK(n.tiers->stats().moved_blocks == 3);
  CHECK(n.tiers->stats().spilled_bytes == 0);
  CHECK(n.lost.empty());
  CHECK(n.open(2, chain_of(2, 2)).blocks.empty());
  CHECK(n.open(1, chain_of(1, 2)).blocks.size() == 1);
}

TEST_CASE("kv tiers: where no machine has room blocks go to disk, or without one are dropped, until somebody looks again") {
  for (const bool has_cold : {true, false}) {
    CAPTURE(has_cold);
    auto n = node_with_neighbour(has_cold);
    n.store(1, chain_of(1, 4));
    n.tiers->unpin({1}, 5);
    n.tiers->pin({3});
    CHECK(n.reserve(3, chain_of(3, 1))[0].state == GrantState::kLater);
    n.tiers->away_room(0);
    n.run();
    CHECK(n.room_calls == 1);
    CHECK(n.reserve(3, chain_of(3, 1))[0].state == GrantState::kWrite);
    CHECK((n.tiers->stats().spilled_bytes > 0) == has_cold);
    CHECK(n.lost.empty() == has_cold);
    CHECK(n.away_questions == 1);
    n.tiers->look_for_away_room();
    (void)n.reserve(3, chain_of(3, 4));
    CHECK(n.away_questions == 2);
  }
}

TEST_CASE("kv tiers: a block that was not taken, or that somebody wants by now, stays") {
  auto n = node_with_neighbour(false);
  const auto chain = chain_of(1, 3);
  n.store(1, chain);
  n.tiers->unpin({1}, 5);
  n.tiers->pin({3});
  (void)n.reserve(3, chain_of(3, 4));
  n.tiers->away_room(4);
  REQUIRE(n.leaving.size() == 1);
  REQUIRE(n.leaving[0].blocks.size() == 3);
  const OpenResult read = n.open(1, {chain[0]});
  CHECK(n.reserve(2, {chain[1]}, {.first_index = 1})[0].state == GrantState::kHere);  // a second owner
  CHECK(n.tiers->close(n.leaving[0].lease, std::vector{chain[0].key, chain[1].key}).ok());
  n.run();
  CHECK(n.open(1, chain).blocks.size() == 3);
  CHECK(n.tiers->stats().moved_blocks == 0);
  CHECK_FALSE(n.tiers->close(n.leaving[0].lease).ok());  // a second time
  CHECK(n.tiers->close(read.lease).ok());
}

TEST_CASE("kv tiers: guests do not leave for a third machine; they go to disk, or are dropped") {
  for (const bool has_cold : {true, false}) {
    CAPTURE(has_cold);
    auto n = node_with_neighbour(has_cold);
    n.store(1, chain_of(1, 4));
    n.tiers->set_urgency({1}, {.pinned = false, .next_use = 5, .guest = true});
    n.tiers->pin({3});
    const auto more = chain_of(3, 2);
    (void)n.reserve(3, more);
    n.run();
    CHECK(n.reserve(3, more)[1].state == (has_cold ? GrantState::kWrite : GrantState::kHere));  // dropping makes room at once
    CHECK(n.away_questions == 0);
    CHECK(n.lost.empty() == has_cold);
  }
}

TEST_CASE("kv tiers: blocks that leave when their owner is released, or the weights change, are gone once they are given back") {
  for (const bool bumps : {false, true}) {
    auto n = node_with_neighbour(false);
    n.store(1, chain_of(1, 4));
    n.tiers->unpin({1}, 5);
    (void)n.reserve(3, chain_of(3, 2, 2));
    n.tiers->away_room(2);
    REQUIRE(n.leaving.size() == 1);
    if (bumps)
      n.tiers->bump_version({2});
    else
      n.tiers->release({1});
    n.tiers->check_invariants();
    CHECK(n.arena->taken_count() == 2);
    CHECK(n.tiers->close(n.leaving[0].lease, keys_of(n.leaving[0])).ok());
    n.tiers->release({3});
    n.run();
    CHECK(n.tiers->is_drained());
  }
}

TEST_CASE("kv tiers: what parked owners use next comes back before it is asked for, and what is used later leaves for it") {
  for (const bool reads_ahead : {true, false}) {
    CAPTURE(reads_ahead);
    Node n(8, SimColdStoreConfig{}, {}, {.spill_batch_bytes = 4 * kBlockBytes, .free_share = 0.0, .reads_ahead = reads_ahead});
    const auto first = chain_of(1, 4), second = chain_of(2, 4), third = chain_of(3, 4);
    const auto in_dram = [&](const std::vector<BlockRef>& chain) {
      std::vector<BlockKey> keys;
      for (const BlockRef& ref : chain) keys.push_back(ref.key);
      return n.tiers->probe(keys).dram_blocks;
    };
    n.store(1, first);
    n.tiers->unpin({1}, 5);
    n.store(2, second);
    n.tiers->unpin({2}, 9);
    n.store_waiting(3, third);
    n.tiers->unpin({3}, 1);
    const auto something_happens = [&] {
      CHECK(n.tiers->close(n.open(3, third).lease).ok());
      n.run();
    };
    something_happens();
    CHECK(in_dram(first) == 4);
    CHECK(in_dram(second) == 0);  // used last: nothing leaves for it
    CHECK(n.tiers->stats().ahead_blocks == 0);

    n.tiers->unpin({2}, 2);
    something_happens();
    CHECK(in_dram(first) == (reads_ahead ? 0 : 4));
    CHECK(in_dram(second) == (reads_ahead ? 4 : 0));
    CHECK(in_dram(third) == 4);
    CHECK(n.tiers->stats().ahead_blocks == (reads_ahead ? 4 : 0));
    const OpenResult opened = n.open(2, second);
    REQUIRE(opened.blocks.size() == 4);
    for (const OpenBlock& block : opened.blocks) CHECK(n.holds_right_bytes(block));
    CHECK(n.tiers->stats().open_cold_blocks == (reads_ahead ? 0 : 4));
    CHECK(n.tiers->close(opened.lease).ok());

    n.tiers->release({3});
    n.run();
    CHECK(in_dram(first) == (reads_ahead ? 4 : 0));  // there is room for it again
    n.tiers->release({1});
    n.tiers->release({2});
    n.run();
    CHECK(n.tiers->is_drained());
  }
}

TEST_CASE("kv tiers: for what is used next only blocks leave that are used later") {
  Node n(32, SimColdStoreConfig{});  // two blocks are read ahead at a time
  const auto in_dram = [&](uint64_t owner, uint32_t blocks) {
    std::vector<BlockKey> keys;
    for (const BlockRef& ref : chain_of(owner, blocks)) keys.push_back(ref.key);
    return n.tiers->probe(keys).dram_blocks;
  };
  n.store(1, chain_of(1, 8));
  n.tiers->unpin({1}, 20);
  n.store(2, chain_of(2, 23));
  n.tiers->unpin({2}, 3);
  n.store_waiting(4, chain_of(4, 8));  // 1 leaves
  n.tiers->unpin({4}, 1);
  n.store_waiting(3, chain_of(3, 1));
  n.tiers->unpin({3}, 9);
  REQUIRE(in_dram(1, 8) == 0);
  REQUIRE(in_dram(3, 1) == 1);
  const int64_t spilled_bytes = n.tiers->stats().spilled_bytes;
  n.tiers->unpin({1}, 5);
  CHECK(n.tiers->close(n.open(4, chain_of(4, 8)).lease).ok());
  n.run();
  CHECK(in_dram(1, 8) == 1);
  CHECK(n.tiers->stats().spilled_bytes == spilled_bytes + kBlockBytes);  // 3, but nothing of 2
}

TEST_CASE("kv tiers: after a read that failed nothing is read ahead until one that is waited for succeeds") {
  int gets = 0;
  bool fails = true;
  SimColdFaults faults;
  faults.get = [&](const BlockKey&) { return ++gets, fails ? std::optional(Code::kIo) : std::nullopt; };
  Node n(8, SimColdStoreConfig{}, std::move(faults));
  n.store(1, chain_of(1, 4));
  n.tiers->unpin({1}, 9);
  n.store(2, chain_of(2, 4));
  n.tiers->unpin({2}, 5);
  n.store_waiting(3, chain_of(3, 4));
  n.tiers->unpin({3}, 1);
  n.tiers->release({2});
  n.run();
  CHECK(gets == 1);  // one block at a time
  fails = false;
  n.tiers->release({3});
  n.run();
  CHECK(gets == 1);
}

TEST_CASE("kv tiers: an open waits for slots that others read") {
  Node node(4, SimColdStoreConfig{});
  node.store_waiting(1, chain_of(1, 3));
  node.store_waiting(2, chain_of(2, 4));  // pushes it out
  const auto held = node.open(2, chain_of(2, 4));
  REQUIRE(held.blocks.size() == 4);
  std::optional<OpenResult> result;
  node.tiers->open({1}, keys_of(chain_of(1, 3)), [&](OpenResult opened) { result = std::move(opened); });
  node.run();
  CHECK_FALSE(result);
  CHECK(node.tiers->close(held.lease).ok());
  node.run();
  REQUIRE(result);
  CHECK(result->blocks.size() == 3);
}

TEST_CASE("kv tiers: opens whose reads hang end with what is in DRAM, and later ones do not wait") {
  Node node(4, SimColdStoreConfig{.latency_us = 100});
  node.store_waiting(1, chain_of(1, 4));
  node.store_waiting(2, chain_of(2, 2));  // two of the first go to disk
  node.tiers->release({2});
  const auto step_all = [&] {
    while (!node.mailbox.empty()) node.step();
  };
  for (const bool ends_opens : {true, false}) {
    CAPTURE(ends_opens);
    std::optional<OpenResult> result;
    node.tiers->open({1}, keys_of(chain_of(1, 4)), [&](OpenResult opened) { result = std::move(opened); });
    step_all();
    CHECK(result.has_value() != ends_opens);
    if (ends_opens) node.tiers->note_silence();
    step_all();
    REQUIRE(result);
    CHECK(result->blocks.size() == 2);
    CHECK(node.tiers->close(result->lease).ok());
  }
  node.run();  // the read ends
  CHECK(node.open(1, chain_of(1, 4)).blocks.size() == 4);
}
