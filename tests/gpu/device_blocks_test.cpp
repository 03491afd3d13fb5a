#include "gpu/device_blocks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

using namespace seer;

namespace {

constexpr uint32_t kBlockTokens = 4;

std::vector<BlockRef> chain_of(const std::vector<int32_t>& tokens, uint64_t version = 1) {
  return block_chain(WeightVersion{version}, 7, TokenLog(tokens), std::ssize(tokens), kBlockTokens);
}

// A sequence of these tokens runs and ends: its blocks are named, then released.
std::vector<DeviceBlockId> run_and_release(DeviceBlocks& blocks, const std::vector<BlockRef>& chain) {
  std::vector<DeviceBlockId> table;
  REQUIRE(blocks.allocate(static_cast<int32_t>(chain.size()), table).ok());
  for (size_t i = 0; i < chain.size(); ++i) REQUIRE(blocks.name(table[i], chain[i]));
  blocks.release(table);
  return table;
}

}  // namespace

TEST_CASE("device blocks: a full device refuses and takes nothing") {
  DeviceBlocks blocks(3, kBlockTokens);
  std::vector<DeviceBlockId> table;
  REQUIRE(blocks.allocate(2, table).ok());
  CHECK(table == std::vector<DeviceBlockId>{0, 1});
  const Status full = blocks.allocate(2, table);
  REQUIRE(!full.ok());
  CHECK(full.error().code == Code::kFull);
  CHECK(full.error().detail == "no room for 2 KV blocks: 1 free and 0 cached of 3");
  CHECK(table.size() == 2);
  CHECK(blocks.counts().free == 1);
}

TEST_CASE("device blocks: a released chain is found again by key, as far as it is here") {
  DeviceBlocks blocks(8, kBlockTokens);
  const auto chain = chain_of({1, 2, 3, 4, 5, 6, 7, 8});
  const auto table = run_and_release(blocks, chain);
  CHECK(blocks.counts().cached == 2);
  std::vector<DeviceBlockId> found;
  CHECK(blocks.retain_run(chain_of({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}), found) == 2);
  CHECK(found == table);
  CHECK(blocks.counts().in_use == 2);
  found.clear();
  CHECK(blocks.retain_run(chain_of({1, 2, 3, 4, 5, 6, 7, 9}), found) == 1);
  CHECK(blocks.users(table[0]) == 2);
  CHECK(blocks.sole_user_count(table) == 1);
}

TEST_CASE("device blocks: KV of other weights is never found") {
  DeviceBlocks blocks(8, kBlockTokens);
  run_and_release(blocks, chain_of({1, 2, 3, 4}, 1));
  std::vector<DeviceBlockId> found;
  CHECK(blocks.retain_run(chain_of({1, 2, 3, 4}, 2), found) == 0);
}

TEST_CASE("device blocks: the tail of a cached chain is evicted before its prefix, older chains first") {
  DeviceBlocks blocks(4, kBlockTokens);
  const auto old_chain = chain_of({1, 2, 3, 4, 5, 6, 7, 8}), new_chain = chain_of({9, 9, 9, 9, 8, 8, 8, 8});
  run_and_release(blocks, old_chain);
  run_and_release(blocks, new_chain);
  std::vector<DeviceBlockId> table;
  REQUIRE(blocks.allocate(1, table).ok());
  CHECK(!blocks.find(old_chain[1].key));
  CHECK(blocks.find(old_chain[0].key));
  REQUIRE(blocks.allocate(2, table).ok());
  CHECK(!blocks.find(old_chain[0].key));
  CHECK(!blocks.find(new_chain[1].key));
  CHECK(blocks.find(new_chain[0].key));
}

TEST_CASE("device blocks: the second copy of a block stays unnamed and is free when released") {
  DeviceBlocks blocks(4, kBlockTokens);
  const auto chain = chain_of({1, 2, 3, 4});
  std::vector<DeviceBlockId> first, second;
  REQUIRE(blocks.allocate(1, first).ok());
  REQUIRE(blocks.allocate(1, second).ok());
  CHECK(blocks.name(first[0], chain[0]));
  CHECK(blocks.name(first[0], chain[0]));
  CHECK(!blocks.name(second[0], chain[0]));
  blocks.release(second);
  blocks.release(first);
  CHECK(blocks.counts().free == 3);
  CHECK(blocks.counts().cached == 1);
}

TEST_CASE("device blocks: a partial tail goes to one sequence only, and loses its name when written") {
  DeviceBlocks blocks(4, kBlockTokens);
  const auto chain = chain_of({1, 2, 3, 4, 5, 6});
  const auto table = run_and_release(blocks, chain);
  CHECK(blocks.name_of(table[1])->tokens == 2);
  std::vector<DeviceBlockId> first, second;
  CHECK(blocks.retain_run(chain, first) == 2);
  CHECK(blocks.retain_run(chain, second) == 1);
  blocks.will_write(first[1]);
  CHECK(!blocks.name_of(first[1]));
  blocks.will_write(first[1]);
  blocks.release(first);
  CHECK(blocks.counts().free == 3);
  CHECK(blocks.counts().in_use == 1);
}

TEST_CASE("device blocks: names of older weights go at once, used blocks stay until released") {
  DeviceBlocks blocks(6, kBlockTokens);
  const auto old_chain = chain_of({1, 2, 3, 4, 5, 6, 7, 8}, 1), new_chain = chain_of({1, 2, 3, 4}, 2);
  run_and_release(blocks, old_chain);
  run_and_release(blocks, new_chain);
  std::vector<DeviceBlockId> running;
  REQUIRE(blocks.retain_run(std::span(old_chain).first(1), running) == 1);
  CHECK(blocks.drop_names_below(WeightVersion{2}) == 2);
  CHECK(!blocks.find(old_chain[0].key));
  CHECK(blocks.counts().in_use == 1);
  CHECK(blocks.counts().cached == 1);
  blocks.release(running);
  CHECK(blocks.counts().free == 5);
  CHECK(blocks.drop_name(new_chain[0].key));
  CHECK(!blocks.drop_name(new_chain[0].key));
  CHECK(blocks.counts().free == 6);
  CHECK(blocks.counts().in_use_peak == 2);
}

namespace {

// The obvious reference: every block is a row, every question a walk over all rows.
struct SlowBlocks {
  struct Row {
    int users = 0;
    std::optional<BlockRef> name;
    int64_t released_at = 0;
  };
  std::vector<Row> rows;
  int64_t now = 0;
  int peak = 0;

  int free() const {
    return count([](const Row& r) { return r.users == 0 && !r.name; });
  }
  int cached() const {
    return count([](const Row& r) { return r.users == 0 && r.name; });
  }
  int in_use() const {
    return count([](const Row& r) { return r.users > 0; });
  }
  template <class F>
  int count(F is) const {
    return static_cast<int>(std::count_if(rows.begin(), rows.end(), is));
  }
  int find(const BlockKey& key) const {
    for (size_t i = 0; i < rows.size(); ++i)
      if (rows[i].name && rows[i].name->key == key) return static_cast<int>(i);
    return -1;
  }
  // Blocks which allocate(count) must evict: the cached ones released longest ago, where free ones do not suffice.
  std::vector<int> evicted_by(int count) const {
    std::vector<int> cached_ids;
    for (size_t i = 0; i < rows.size(); ++i)
      if (rows[i].users == 0 && rows[i].name) cached_ids.push_back(static_cast<int>(i));
    std::sort(cached_ids.begin(), cached_ids.end(),
              [&](int a, int b) { return rows[a].released_at < rows[b].released_at; });
    cached_ids.resize(static_cast<size_t>(std::max(0, count - free())));
    return cached_ids;
  }
};

// A sequence in the random test: which tokens it holds, and in which blocks.
struct Sequence {
  std::vector<int32_t> tokens;
  std::vector<DeviceBlockId> table;
  uint64_t version = 1;
};

class RandomRun {
 public:
  RandomRun(uint64_t seed, int total) : rng_(seed), blocks_(total, kBlockTokens) {
    slow_.rows.resize(static_cast<size_t>(total));
  }
  void step() {
    switch (below(8)) {
      case 0:
      case 1:
        start();
        break;
      case 2:
      case 3:
      case 4:
        grow();
        break;
      case 5:
        park();
        break;
      case 6:
        finish();
        break;
      case 7:
        forget();
        break;
    }
    compare();
  }

 private:
  size_t below(size_t n) { return rng_() % n; }

  // Finds what is here of a prompt out of few possible ones, then allocates the rest.
  void start() {
    Sequence s;
    s.version = version_;
    const size_t length = 1 + below(4 * kBlockTokens);
    for (size_t i = 0; i < length; ++i) s.tokens.push_back(i == kBlockTokens ? static_cast<int32_t>(below(2)) : 5);
    const auto chain = chain_of(s.tokens, s.version);
    size_t expected = 0;
    for (; expected < chain.size(); ++expected) {
      const int at = slow_.find(chain[expected].key);
      if (at < 0 || (chain[expected].tokens < kBlockTokens && slow_.rows[at].users > 0)) break;
      ++slow_.rows[at].users;
    }
    slow_.peak = std::max(slow_.peak, slow_.in_use());
    REQUIRE(blocks_.retain_run(chain, s.table) == static_cast<int>(expected));
    for (size_t i = 0; i < expected; ++i) REQUIRE(s.table[i] == slow_.find(chain[i].key));
    if (!allocate(chain.size() - expected, s.table)) {
      release(s.table);
      return;
    }
    if (expected < chain.size() || chain.back().tokens < kBlockTokens) write(s.table.back());
    for (size_t i = 0; i < chain.size(); ++i)
      if (chain[i].tokens == kBlockTokens) name(s.table[i], chain[i]);
    sequences_.push_back(s);
  }
  // One more token, which fills the tail block or opens a new one.
  void grow() {
    if (sequences_.empty()) return;
    Sequence& s = sequences_[below(sequences_.size())];
    if (s.tokens.size() % kBlockTokens == 0 && !allocate(1, s.table)) return;
    write(s.table.back());
    s.tokens.push_back(static_cast<int32_t>(below(2)));
    if (s.tokens.size() % kBlockTokens == 0) name(s.table.back(), chain_of(s.tokens, s.version).back());
  }
  // The partial tail is named, then the sequence leaves.
  void park() {
    if (sequences_.empty()) return;
    const size_t i = below(sequences_.size());
    const Sequence s = sequences_[i];
    sequences_.erase(sequences_.begin() + static_cast<long>(i));
    name(s.table.back(), chain_of(s.tokens, s.version).back());
    release(s.table);
  }
  void finish() {
    if (sequences_.empty()) return;
    const size_t i = below(sequences_.size());
    release(sequences_[i].table);
    sequences_.erase(sequences_.begin() + static_cast<long>(i));
  }
  void forget() {
    if (below(10) == 0) {
      ++version_;
      int expected = 0;
      for (auto& row : slow_.rows) {
        if (!row.name || row.name->key.version.value >= version_) continue;
        row.name.reset();
        ++expected;
      }
      REQUIRE(blocks_.drop_names_below(WeightVersion{version_}) == expected);
      return;
    }
    const size_t i = below(slow_.rows.size());
    if (!slow_.rows[i].name) return;
    REQUIRE(blocks_.drop_name(slow_.rows[i].name->key));
    slow_.rows[i].name.reset();
  }

  bool allocate(size_t count, std::vector<DeviceBlockId>& table) {
    const int n = static_cast<int>(count);
    const bool fits = n <= slow_.free() + slow_.cached();
    const size_t before = table.size();
    REQUIRE(blocks_.allocate(n, table).ok() == fits);
    if (!fits) {
      REQUIRE(table.size() == before);
      return false;
    }
    for (int i : slow_.evicted_by(n)) slow_.rows[i].name.reset();
    REQUIRE(table.size() == before + count);
    for (size_t i = before; i < table.size(); ++i) {
      REQUIRE(slow_.rows[table[i]].users == 0);
      REQUIRE(!slow_.rows[table[i]].name);
      slow_.rows[table[i]].users = 1;
    }
    slow_.peak = std::max(slow_.peak, slow_.in_use());
    return true;
  }
  void release(const std::vector<DeviceBlockId>& table) {
    blocks_.release(table);
    for (size_t i = table.size(); i-- > 0;) {
      --slow_.rows[table[i]].users;
      slow_.rows[table[i]].released_at = ++slow_.now;
    }
  }
  void name(DeviceBlockId block, const BlockRef& ref) {
    const int holder = slow_.find(ref.key);
    REQUIRE(blocks_.name(block, ref) == (holder < 0 || holder == block));
    if (holder < 0) slow_.rows[block].name = ref;
  }
  void write(DeviceBlockId block) {
    if (slow_.rows[block].name && slow_.rows[block].name->tokens == kBlockTokens) return;
    blocks_.will_write(block);
    slow_.rows[block].name.reset();
  }

  void compare() {
    const BlockCounts c = blocks_.counts();
    REQUIRE(c.free + c.cached + c.in_use == c.total);
    REQUIRE(c.free == slow_.free());
    REQUIRE(c.cached == slow_.cached());
    REQUIRE(c.in_use == slow_.in_use());
    REQUIRE(c.in_use_peak == slow_.peak);
    for (DeviceBlockId i = 0; i < c.total; ++i) {
      const auto& row = slow_.rows[i];
      REQUIRE(blocks_.users(i) == row.users);
      REQUIRE(blocks_.name_of(i).has_value() == row.name.has_value());
      if (!row.name) continue;
      REQUIRE(blocks_.name_of(i)->key == row.name->key);
      REQUIRE(blocks_.name_of(i)->tokens == row.name->tokens);
      REQUIRE(blocks_.find(row.name->key) == i);
      REQUIRE((row.name->tokens == kBlockTokens || row.users <= 1));
    }
  }

  std::mt19937_64 rng_;
  DeviceBlocks blocks_;
  SlowBlocks slow_;
  std::vector<Sequence> sequences_;
  uint64_t version_ = 1;
};

}  // namespace

TEST_CASE("device blocks: random sequences agree with the slow obvious reference") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    RandomRun run(seed, 4 + static_cast<int>(seed));
    for (int i = 0; i < 400; ++i) run.step();
  }
}
