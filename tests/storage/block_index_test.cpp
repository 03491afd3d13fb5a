#include "storage/block_index.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

using namespace seer;

namespace {

BlockKey key(uint64_t n) { return {WeightVersion{1}, 7, {n, n}}; }
Block& add(BlockIndex& index, uint64_t n, uint32_t chain_index) { return index.add({key(n), 4}, chain_index, false); }
/// As if it had been written.
void seal(BlockIndex& index, Block& block) {
  index.apply(block, BlockEvent::kGrant);
  index.apply(block, BlockEvent::kSeal);
}
Block& add_sealed(BlockIndex& index, uint64_t n, uint32_t chain_index, OwnerId owner) {
  Block& block = add(index, n, chain_index);
  CHECK(index.retain(owner, block) == nullptr);
  seal(index, block);
  return block;
}
void discard(BlockIndex& index, Block& block) {
  if (block.state == BlockState::kWriting) index.apply(block, BlockEvent::kAbort);
  index.apply(block, BlockEvent::kDiscard);
  index.apply(block, BlockEvent::kDrained);
  index.remove(block);
}

constexpr OwnerId kA{1}, kB{2};

}  // namespace

TEST_CASE("block index: a block is found by its key and by its slot until it is removed") {
  BlockIndex index;
  Block& block = add(index, 5, 0);
  index.set_slot(block, 3);
  CHECK(index.find(key(5)) == &block);
  CHECK(index.in_slot(3) == &block);
  CHECK(index.in_slot(2) == nullptr);
  CHECK(index.in_slot(1000) == nullptr);
  index.set_slot(block, kNoSlot);
  CHECK(index.in_slot(3) == nullptr);
  index.apply(block, BlockEvent::kGrant);
  discard(index, block);
  CHECK(index.find(key(5)) == nullptr);
  CHECK(index.block_count() == 0);
}

TEST_CASE("block index: only a block that is sealed, owned and not leased may leave DRAM") {
  BlockIndex index;
  Block& block = add(index, 1, 0);
  CHECK(index.spill_order().size() == 0);  // no owner, not sealed
  index.retain(kA, block);
  CHECK(index.spill_order().size() == 0);  // not sealed
  seal(index, block);
  CHECK(index.spill_order().size() == 1);
  index.add_lease(block);
  index.add_lease(block);
  CHECK(index.spill_order().size() == 0);
  CHECK(index.counts().leased == 1);
  index.drop_lease(block);
  CHECK(index.spill_order().size() == 0);
  index.drop_lease(block);
  CHECK(index.spill_order().size() == 1);
  CHECK(index.release(kA, block));
  CHECK(index.spill_order().size() == 0);
}

TEST_CASE("block index: an owner holds one block per chain index, and learns which one it released") {
  BlockIndex index;
  Block& tail = add_sealed(index, 1, 2, kA);
  Block& filled = add(index, 2, 2);  // the same tokens and more: another name
  CHECK(index.retain(kA, filled) == &tail);
  CHECK_FALSE(index.holds(kA, tail));
  CHECK(index.holds(kA, filled));
  CHECK(index.retain(kA, filled) == nullptr);  // again: nothing changes
  CHECK(filled.owners.size() == 1);
  Block& third = add(index, 3, 2);
  index.retain(kB, filled);
  CHECK(index.retain(kA, third) == nullptr);  // another owner still has the one before
}

TEST_CASE("block index: releasing an owner frees its own blocks, tail first, and leaves the shared ones") {
  BlockIndex index;
  Block& prompt = add_sealed(index, 1, 0, kA);
  index.retain(kB, prompt);
  Block& first = add_sealed(index, 2, 1, kA);
  Block& last = add_sealed(index, 3, 4, kA);  // with a gap: other nodes may have what is between
  CHECK(index.held_from(kA, 1) == std::vector<Block*>{&last, &first});
  CHECK(index.held_from(kA, 2) == std::vector<Block*>{&last});
  CHECK(index.release_all(kA) == std::vector<Block*>{&last, &first});
  CHECK(prompt.owners == std::vector<OwnerId>{kB});
  CHECK(index.held_from(kA, 0).empty());
  CHECK(index.owner_count() == 1);
}

TEST_CASE("block index: an owner without blocks is forgotten with its urgency, one with blocks is not") {
  BlockIndex index;
  index.set_urgency(kA, {.pinned = true});
  index.set_urgency(kB, {.pinned = false, .next_use = 8});
  add_sealed(index, 1, 0, kB);
  CHECK(index.urgency(kA).pinned);
  index.forget_idle_owners();
  CHECK(index.owner_count() == 1);
  CHECK(index.urgency(kA) == Urgency{});
  CHECK(index.urgency(kB).next_use == 8);
}

TEST_CASE("block index: removed blocks leave their memory, not their past, to new ones") {
  BlockIndex index;
  Block* const first = &add_sealed(index, 1, 5, kA);
  first->crc32c = 99;
  index.set_cold_copy(*first, true);
  CHECK(index.counts().cold == 1);
  index.release(kA, *first);
  discard(index, *first);
  CHECK(index.counts().cold == 0);
  Block& second = add(index, 2, 1);
  CHECK(&second == first);
  CHECK(second.crc32c == 0);
  CHECK(second.index == 1);
  CHECK(second.owners.empty());
}

TEST_CASE("block index: thousands of random changes agree with a list that is searched from end to end") {
  struct Known {  // what the index should say of one block
    Block* block;
    uint32_t chain_index;
    std::vector<uint64_t> owners;
    bool sealed = false;
    int leases = 0;
  };
  for (uint32_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    BlockIndex index;
    std::map<uint64_t, Known> known;
    std::map<uint64_t, Urgency> urgency;
    uint64_t last = 0;
    const auto any = [&]() -> Known* {
      if (known.empty()) return nullptr;
      return &std::next(known.begin(), below(static_cast<uint32_t>(known.size())))->second;
    };
    const auto forget = [&](Known& k) {  // no owner: it goes
      const uint64_t name = k.block->key.prefix.hi;
      while (k.leases-- > 0) index.drop_lease(*k.block);
      discard(index, *k.block);
      known.erase(name);
    };
    for (int step = 0; step < 120; ++step) {
      const uint64_t owner = 1 + below(4);
      Known* const k = any();
      switch (below(7)) {
        case 0: {
          const uint32_t chain_index = below(5);
          Block& block = add(index, ++last, chain_index);
          index.apply(block, BlockEvent::kGrant);
          known[last] = {&block, chain_index, {}};
          [[fallthrough]];
        }
        case 1: {  // the newest gets an owner, or any
          if (known.empty()) break;
          Known& wanted = known.contains(last) ? known.at(last) : *k;
          Known* before = nullptr;
          for (auto& [name, other] : known)
            if (other.chain_index == wanted.chain_index && std::ranges::count(other.owners, owner) > 0) before = &other;
          Block* const orphan = index.retain({owner}, *wanted.block);
          if (before == &wanted) {
            CHECK(orphan == nullptr);
            break;
          }
          wanted.owners.push_back(owner);
          if (before != nullptr) std::erase(before->owners, owner);
          const bool expected = before != nullptr && before->owners.empty();
          CHECK(orphan == (expected ? before->block : nullptr));
          if (expected) forget(*before);
          break;
        }
        case 2:
          if (k != nullptr && !k->sealed) index.apply(*k->block, BlockEvent::kSeal), k->sealed = true;
          break;
        case 3:
          if (k != nullptr && k->sealed) index.add_lease(*k->block), ++k->leases;
          break;
        case 4:
          if (k != nullptr && k->leases > 0) index.drop_lease(*k->block), --k->leases;
          break;
        case 5: {
          urgency[owner] = {.pinned = below(2) == 0, .next_use = below(10)};
          index.set_urgency({owner}, urgency[owner]);
          break;
        }
        case 6: {
          if (below(4) > 0) break;
          std::vector<Block*> expected;
          for (uint32_t at = 5; at-- > 0;)
            for (auto& [name, other] : known)
              if (other.chain_index == at && std::erase(other.owners, owner) > 0 && other.owners.empty())
                expected.push_back(other.block);
          CHECK(index.release_all({owner}) == expected);
          for (Block* block : expected) forget(known.at(block->key.prefix.hi));
          urgency.erase(owner);
          break;
        }
      }
      int64_t may_leave = 0, leased = 0, sealed = 0;
      for (const auto& [name, one] : known) {
        CHECK(index.find(key(name)) == one.block);
        may_leave += one.sealed && one.leases == 0 && !one.owners.empty() ? 1 : 0;
        leased += one.leases > 0 ? 1 : 0;
        sealed += one.sealed ? 1 : 0;
        std::vector<uint64_t> owners;
        for (const OwnerId o : one.block->owners) owners.push_back(o.value);
        CHECK(owners == one.owners);
      }
      CHECK(index.block_count() == static_cast<int64_t>(known.size()));
      CHECK(index.spill_order().size() == may_leave);
      CHECK(index.counts().leased == leased);
      CHECK(index.counts().by_state[static_cast<int>(BlockState::kSealed)] == sealed);
      // Who leaves first, by looking at all of them.
      const auto rank = [&](const Known& one) {
        const uint64_t keeper = one.owners.front();
        const Urgency u = urgency.contains(keeper) ? urgency.at(keeper) : Urgency{};
        const int spill_class = (one.owners.size() > 1 ? 2 : 0) + (u.pinned ? 1 : 0);
        return std::tuple(spill_class, -static_cast<int64_t>(u.next_use), keeper, -static_cast<int64_t>(one.chain_index));
      };
      const Known* first = nullptr;
      for (const auto& [name, one] : known)
        if (one.sealed && one.leases == 0 && !one.owners.empty() && (first == nullptr || rank(one) < rank(*first))) first = &one;
      REQUIRE(index.spill_order().first().has_value() == (first != nullptr));
      if (first != nullptr) CHECK(index.spill_order().first()->key == first->block->key);
    }
  }
}
