// These numbers are in seeds, in block keys and in files: they are the same on every machine and must never change.
#include <doctest/doctest.h>

#include <set>

#include "protocols/hash.h"
#include "protocols/kv.h"

using namespace seer;

TEST_CASE("hash: the values are what they have always been") {
  CHECK(mix64(0) == 0xe220a8397b1dcdafull);  // first output of SplitMix64 seeded with 0, as published
  CHECK(mix64(1) == 0x910a2dec89025cc1ull);
  CHECK(mix64(~0ull) == 0xe4d971771b652c20ull);
  CHECK(hash_pair(1, 2) == 0x048f459dad4b981bull);
  CHECK(hash_pair(2, 1) == 0xc182db64aee3f13aull);
  CHECK(hash_text("") == 0xe220a8397b1dcdafull);
  CHECK(hash_text("seer") == 0x43bac6dd76de3cecull);
  CHECK(hash_text("seer", 7) == 0xccc36ebfc35c7213ull);
  CHECK(sample_seed(0, 0, 0) == 0x58154115bc7d99fcull);
  CHECK(sample_seed(1234, 5, 6) == 0x08b462ab7715aa9cull);
}

TEST_CASE("hash: seeds of one run do not collide") {
  std::set<uint64_t> seeds;
  for (uint64_t group = 0; group < 500; ++group)
    for (uint64_t sample = 0; sample < 64; ++sample) seeds.insert(sample_seed(42, group, sample));
  CHECK(seeds.size() == 500 * 64);
}

TEST_CASE("hash: the order of a pair and the bytes of a text matter") {
  CHECK(hash_pair(3, 4) != hash_pair(4, 3));
  CHECK(hash_text("ab") != hash_text("ba"));
  CHECK(hash_text(std::string_view("a\0", 2)) != hash_text("a"));
  CHECK(hash_text("a", 1) != hash_text("a", 2));
}

TEST_CASE("hash: a prefix hash is what it has always been") {
  const int32_t tokens[] = {1, 2, 3, 151'000, -1};
  const PrefixHash all = extend_prefix({}, tokens);
  CHECK(all.hi == 0x1da8029417951925ull);
  CHECK(all.lo == 0x15dca029b39c1c02ull);
}
