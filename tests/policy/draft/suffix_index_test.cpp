#include "actors/policy/draft/suffix_index.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "policy/draft/grown_index.h"

using namespace seer;

TEST_CASE("suffix index: counts are those of brute force, whatever the order of arrival") {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const std::vector<Text> streams = random_streams(seed);
    GrownIndex one, other;
    grow(one, streams, 1);
    grow(other, streams, 99);
    size_t wrong = 0, by_order = 0;
    for (const auto& [words, count] : count_strings(streams)) {
      const SuffixState a = one.find(words), b = other.find(words);
      const uint32_t counted = a == SuffixState::none() ? 0 : one.index.count(a);
      wrong += counted != count;
      by_order += b == SuffixState::none() || other.index.count(b) != counted;
    }
    CHECK(wrong == 0);
    CHECK(by_order == 0);
  }
}

TEST_CASE("suffix index: followers of a string are the tokens that followed it, or the most frequent of many") {
  for (uint32_t seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    const std::vector<Text> streams = random_streams(seed);
    GrownIndex grown;
    grow(grown, streams, seed);
    const std::map<Text, uint32_t> counts = count_strings(streams);
    std::map<Text, std::vector<std::pair<int64_t, int32_t>>> expected;  // by string: (-count, token)
    for (const auto& [words, count] : counts)
      expected[Text(words.begin(), words.end() - 1)].emplace_back(-int64_t{count}, words.back());
    size_t wrong = 0;
    for (auto& [words, tokens] : expected) {
      std::sort(tokens.begin(), tokens.end());
      if (tokens.size() > SuffixIndex::kFewTokens) tokens.resize(SuffixIndex::kTopTokens);
      const SuffixState s = grown.find(words);
      if (words.empty() || grown.index.length(s) != words.size()) continue;  // else followers of a longer string
      std::vector<std::pair<int64_t, int32_t>> found;
      grown.index.followers(grown.log, s, [&](int32_t token, SuffixState next, uint32_t count) {
        found.emplace_back(-int64_t{count}, token);
        if (next == SuffixState::none()) next = grown.index.following(grown.log, s, token);
        wrong += grown.index.count(next) != count;
      });
      std::sort(found.begin(), found.end());
      wrong += found != tokens;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("suffix index: streams that branch off from a prompt count strings across its end") {
  for (uint32_t seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    std::vector<Text> streams = random_streams(seed);
    const Text prompt = random_streams(seed + 1000)[0];
    GrownIndex grown;
    grown.append(grown.log.add_stream(), prompt);
    grown.start = grown.index.branch(grown.log, grown.log.place(0, grown.log.end(0) - 1));
    grow(grown, streams, seed);
    std::map<Text, uint32_t> expected = count_strings({prompt});
    for (Text& text : streams) text.insert(text.begin(), prompt.begin(), prompt.end());
    for (const auto& [words, count] : count_strings(streams, prompt.size())) expected[words] += count;
    size_t wrong = 0;
    for (const auto& [words, count] : expected) {
      const SuffixState s = grown.find(words);
      wrong += s == SuffixState::none() || grown.index.count(s) != count;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("suffix index: a match is the longest string that occurred before, and where") {
  GrownIndex grown;
  grown.log.add_stream();
  grown.log.add_stream();
  grown.append(0, Text{1, 2, 3, 4, 5});
  grown.append(1, Text{9, 2, 3});
  const int32_t token = 4;
  grown.log.append(1, 3, {&token, 1});
  const SuffixMatch match =
      grown.index.append(grown.log, grown.log.place(1, 3), grown.index.state(grown.log.place(1, 2)), false);
  CHECK(match.length == 3);
  CHECK(match.occurrence == grown.log.place(0, 3));
}

TEST_CASE("suffix index: one token repeated costs a bounded number of nodes") {
  GrownIndex grown;
  grown.log.add_stream();
  grown.append(0, Text(20'000, 7));
  CHECK(grown.index.count(grown.find(Text(SuffixIndex::kDepth, 7))) == 20'000 - SuffixIndex::kDepth + 1);
  CHECK(grown.index.bytes() < 20'000 * 4 + 16'384);
}
