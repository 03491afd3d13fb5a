#include <doctest/doctest.h>

#include <random>
#include <set>

#include "protocols/kv.h"

using namespace seer;

namespace {

std::vector<int32_t> random_tokens(std::mt19937_64& rng, size_t count) {
  std::vector<int32_t> tokens(count);
  for (int32_t& t : tokens) t = static_cast<int32_t>(rng() % 150'000);
  return tokens;
}

}  // namespace

TEST_CASE("prefix: many tokens at once give what they give one by one, negative ones too") {
  std::mt19937_64 rng(12);
  for (int i = 0; i < 100; ++i) {
    std::vector<int32_t> tokens(rng() % 400);
    for (int32_t& token : tokens) token = static_cast<int32_t>(i % 2 == 0 ? rng() : -1);
    PrefixHash one_by_one;
    for (const int32_t& token : tokens) one_by_one = extend_prefix(one_by_one, {&token, 1});
    CHECK(extend_prefix({}, tokens) == one_by_one);
  }
}

TEST_CASE("prefix: extending in pieces is extending at once") {
  std::mt19937_64 rng(2);
  for (int i = 0; i < 200; ++i) {
    const auto tokens = random_tokens(rng, rng() % 300);
    const auto all = std::span<const int32_t>(tokens);
    const size_t cut = tokens.empty() ? 0 : rng() % tokens.size();
    CHECK(extend_prefix(extend_prefix({}, all.first(cut)), all.subspan(cut)) == extend_prefix({}, all));
  }
}

TEST_CASE("block chain: as many blocks as the tokens need, the last one partial, each named by all tokens up to its end") {
  std::mt19937_64 rng(3);
  for (int i = 0; i < 300; ++i) {
    // Blocks that lie in one segment of a log, and some that begin in one and end in the next.
    const auto tokens = random_tokens(rng, i % 10 == 0 ? 2000 + rng() % 1000 : rng() % 80);
    const auto block_tokens = static_cast<uint32_t>(1 + rng() % 17);
    const auto chain = block_chain(WeightVersion{9}, 77, TokenLog(tokens), std::ssize(tokens), block_tokens);
    REQUIRE(chain.size() == (tokens.size() + block_tokens - 1) / block_tokens);
    size_t end = 0;
    for (size_t b = 0; b < chain.size(); ++b) {
      CHECK(chain[b].tokens == std::min<size_t>(block_tokens, tokens.size() - end));
      end += chain[b].tokens;
      CHECK(chain[b].key.version == WeightVersion{9});
      CHECK(chain[b].key.kv_hash == 77);
      const auto until = std::span<const int32_t>(tokens).first(end);
      CHECK(chain[b].key == block_chain(WeightVersion{9}, 77, TokenLog(until), std::ssize(until), block_tokens).back().key);
    }
    CHECK(end == tokens.size());
    std::vector<BlockRef> grown;
    while (grown.size() < chain.size()) {
      const auto whole = static_cast<int64_t>((grown.size() + rng() % 3) * block_tokens);
      extend_chain(grown, WeightVersion{9}, 77, TokenLog(tokens), std::min(whole, std::ssize(tokens)), block_tokens);
    }
    CHECK(std::ranges::equal(grown, chain, [](const BlockRef& a, const BlockRef& b) {
      return a.key == b.key && a.tokens == b.tokens;
    }));
  }
}

TEST_CASE("block chain: names are the first bytes of SHA-256 over the name before and the tokens") {
  // From Python's hashlib.
  const auto chain = block_chain(WeightVersion{1}, 1, TokenLog(std::vector<int32_t>{1, 2, 3, 4, 5, 6}), 6, 4);
  REQUIRE(chain.size() == 2);
  CHECK(chain[0].key.prefix == PrefixHash{0xb7f5d4b817ee603a, 0x74669b9a711868d5});
  CHECK(chain[1].key.prefix == PrefixHash{0x9a87b0f88cd283f2, 0x25b65869702c3c21});
}

TEST_CASE("block chain: tokens chosen to have the same prefix hash have other names") {
  // Their differences were found by reducing a lattice: the polynomial of each is 0 in both fields.
  constexpr int32_t kDifferences[] = {-47, 9, 15, 16, -110, 91, -15, -120, -69, -89, -117, -20, 14, 100, 53, 47};
  std::vector<int32_t> one, other;
  for (int32_t i = 0; i < 16; ++i) {
    one.push_back(5000 + 37 * i);
    other.push_back(one.back() + kDifferences[i]);
  }
  CHECK(extend_prefix({}, one) == extend_prefix({}, other));
  CHECK(block_chain(WeightVersion{1}, 1, TokenLog(one), 16, 16)[0].key != block_chain(WeightVersion{1}, 1, TokenLog(other), 16, 16)[0].key);
}

TEST_CASE("block chain: chains are equal exactly as far as their tokens are") {
  std::mt19937_64 rng(4);
  for (int i = 0; i < 300; ++i) {
    auto a = random_tokens(rng, 64), b = a;
    const size_t differs = rng() % 64;
    b[differs] ^= 1 << (rng() % 17);
    const auto chain_a = block_chain(WeightVersion{1}, 1, TokenLog(a), 64, 8);
    const auto chain_b = block_chain(WeightVersion{1}, 1, TokenLog(b), 64, 8);
    for (size_t block = 0; block < 8; ++block) CHECK((chain_a[block].key == chain_b[block].key) == (block < differs / 8));
  }
}

TEST_CASE("block chain: keys of other weights, layouts or positions never match") {
  const TokenLog same(std::vector<int32_t>(64, 5));  // one token over and over: only the position differs
  std::set<BlockKey> keys;
  for (uint64_t version = 1; version <= 3; ++version)
    for (uint64_t layout = 1; layout <= 3; ++layout)
      for (const BlockRef& ref : block_chain(WeightVersion{version}, layout, same, 64, 4)) keys.insert(ref.key);
  CHECK(keys.size() == 3 * 3 * 16);
}
