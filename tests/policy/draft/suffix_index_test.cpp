#include "actors/policy/draft/suffix_index.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

using namespace seer;

namespace {

using Text = std::vector<int32_t>;

/// A log and its index, grown together as DraftTree does it.
struct Grown {
  StreamLog log;
  SuffixIndex index;
  SuffixState start = SuffixIndex::kRoot;  // where streams begin

  void append(uint32_t stream, std::span<const int32_t> tokens) {
    int64_t position = log.end(stream);
    log.append(stream, position, tokens);
    for (; position < log.end(stream); ++position) {
      const bool first = position == 0;
      const SuffixState last = first ? start : index.state(log.place(stream, position - 1));
      index.append(log, log.place(stream, position), last, first);
    }
  }
  SuffixState find(const Text& words) const {
    SuffixState s = SuffixIndex::kRoot;
    for (int32_t token : words) {
      s = index.following(log, s, token);
      if (s == SuffixState::none()) break;
    }
    return s;
  }
};

/// Streams that copy from each other with edits, over a small or a large alphabet; some repeat one token for long.
std::vector<Text> random_streams(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Text> streams(1 + seed % 6);
  const uint32_t alphabet = 2 + seed % 5 + (seed % 4 == 0 ? 30 : 0);
  for (size_t i = 0; i < streams.size(); ++i) {
    const size_t length = 40 + random() % 400;
    while (streams[i].size() < length) {
      if (seed % 7 == 3 && random() % 50 == 0) streams[i].insert(streams[i].end(), random() % 80, 1);
      const bool copies = i > 0 && random() % 16 != 0 && streams[i].size() < streams[i - 1].size();
      streams[i].push_back(copies ? streams[i - 1][streams[i].size()] : static_cast<int32_t>(random() % alphabet));
    }
  }
  return streams;
}

/// Grows the streams interleaved, in pieces of 1 to 9 tokens.
void grow(Grown& grown, const std::vector<Text>& streams, uint32_t seed) {
  std::mt19937 random(seed);
  const uint32_t base = grown.log.stream_count();
  for (size_t i = 0; i < streams.size(); ++i) grown.log.add_stream();
  for (size_t open = streams.size(); open > 0;) {
    const uint32_t i = random() % streams.size();
    const auto at = static_cast<size_t>(grown.log.end(base + i));
    const size_t count = std::min<size_t>(1 + random() % 9, streams[i].size() - at);
    if (count == 0) continue;
    grown.append(base + i, std::span(streams[i]).subspan(at, count));
    if (at + count == streams[i].size()) --open;
  }
}

std::map<Text, uint32_t> count_strings(const std::vector<Text>& streams, size_t skip = 0) {
  std::map<Text, uint32_t> counts;
  for (const Text& text : streams)
    for (size_t end = skip + 1; end <= text.size(); ++end)
      for (size_t length = 1; length <= std::min<size_t>(end, SuffixIndex::kDepth); ++length)
        ++counts[Text(text.begin() + end - length, text.begin() + end)];
  return counts;
}

}  // namespace

TEST_CASE("suffix index: counts are those of brute force, whatever the order of arrival") {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const std::vector<Text> streams = random_streams(seed);
    Grown one, other;
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

TEST_CASE("suffix index: the followers of a string are what followed it, the most frequent where there are many") {
  for (uint32_t seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    const std::vector<Text> streams = random_streams(seed);
    Grown grown;
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
    Grown grown;
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
  Grown grown;
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
  Grown grown;
  grown.log.add_stream();
  grown.append(0, Text(20'000, 7));
  CHECK(grown.index.count(grown.find(Text(SuffixIndex::kDepth, 7))) == 20'000 - SuffixIndex::kDepth + 1);
  CHECK(grown.index.bytes() < 20'000 * 4 + 16'384);
}
