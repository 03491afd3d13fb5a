#include "protocols/key_buckets.h"

#include <doctest/doctest.h>

#include <deque>
#include <map>
#include <random>

using namespace seer;

namespace {

struct Node {
  BlockKey key;
  Node* next_in_bucket = nullptr;
};

// Many of them fall into the same bucket: the lower bits of their hash are alike.
BlockKey key_of(uint64_t n) { return {WeightVersion{1}, 7, {n % 8 << 32 | n % 3, n}}; }

}  // namespace

TEST_CASE("key buckets: random adds, removals and lookups agree with a map, before and after they grow") {
  std::mt19937_64 rng(1);
  std::deque<Node> nodes;
  std::map<BlockKey, Node*> expected;
  KeyBuckets<Node> buckets(4);
  for (int i = 0; i < 5000; ++i) {
    const BlockKey key = key_of(rng() % 200);
    CHECK(buckets.find(key) == (expected.contains(key) ? expected[key] : nullptr));
    if (!expected.contains(key)) {
      nodes.push_back({key});
      buckets.add(nodes.back());
      expected[key] = &nodes.back();
    } else if (rng() % 3 == 0) {
      buckets.remove(*expected[key]);
      expected.erase(key);
    }
    REQUIRE(buckets.size() == expected.size());
  }
  CHECK(expected.size() > 100);
  std::map<BlockKey, Node*> walked;
  buckets.for_each_unordered([&](Node& node) { walked[node.key] = &node; });
  CHECK(walked == expected);
}
