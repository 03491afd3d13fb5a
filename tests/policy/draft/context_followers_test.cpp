#include "actors/policy/draft/context_followers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "policy/draft/grown_index.h"

using namespace seer;

namespace {

GrownIndex grown_from(const std::vector<Text>& streams) {
  GrownIndex grown;
  for (const Text& text : streams) grown.append(grown.log.add_stream(), text);
  return grown;
}

/// What followed `words`. REQUIRES: its state has no longer string.
ContextFollowers found(const GrownIndex& grown, const Text& words) {
  const SuffixState state = grown.find(words);
  REQUIRE(state != SuffixState::none());
  REQUIRE(grown.index.length(state) == words.size());
  ContextFollowers followers;
  followers.find(grown.log, grown.index, state, static_cast<uint32_t>(words.size()));
  return followers;
}

using Counts = std::array<uint32_t, ContextFollowers::kContexts>;

std::vector<int32_t> tokens_of(const ContextFollowers& f) {
  std::vector<int32_t> tokens;
  for (uint32_t i = 0; i < f.count; ++i) tokens.push_back(f.followers[i].token);
  std::ranges::sort(tokens);
  return tokens;
}
const ContextFollowers::Follower& follower(const ContextFollowers& f, int32_t token) {
  uint32_t at = 0;
  while (at < f.count && f.followers[at].token != token) ++at;
  REQUIRE(at < f.count);
  return f.followers[at];
}

/// `often` times the stream {1, 2}, and once {1, 3}.
GrownIndex rare_after_one(int often) {
  std::vector<Text> streams(static_cast<size_t>(often), Text{1, 2});
  streams.push_back({1, 3});
  return grown_from(streams);
}

}  // namespace

TEST_CASE("context followers: each candidate has its count after every context, the longest context first") {
  const GrownIndex grown = grown_from({{1, 2, 4}, {1, 2, 3}, {9, 2, 5}, {9, 2, 5}, {9, 2, 4}});
  const ContextFollowers f = found(grown, {1, 2});
  REQUIRE(f.contexts == 2);
  CHECK(f.lengths[0] == 2);
  CHECK(f.totals[0] == 2);
  CHECK(f.lengths[1] == 1);
  CHECK(f.totals[1] == 5);
  CHECK(tokens_of(f) == Text{3, 4, 5});
  CHECK(follower(f, 3).counts == Counts{1, 1});
  CHECK(follower(f, 4).counts == Counts{1, 2});
  CHECK(follower(f, 5).counts == Counts{0, 2});

  CHECK(follower(f, 3).match_tokens == 3);
  CHECK(follower(f, 4).state == grown.find({1, 2, 4}));
  CHECK_MESSAGE(follower(f, 5).match_tokens == 2, "it followed the shorter context only");
  CHECK(follower(f, 5).state == grown.find({2, 5}));
}

TEST_CASE("context followers: the most frequent token after a context leads, of equal ones the lowest, in any order of arrival") {
  for (const bool reversed : {false, true}) {
    CAPTURE(reversed);
    std::vector<Text> streams{{1, 2, 4}, {1, 2, 3}, {9, 2, 5}, {9, 2, 5}, {9, 2, 5}, {9, 2, 4}};
    if (reversed) std::ranges::reverse(streams);
    const ContextFollowers f = found(grown_from(streams), {1, 2});
    CHECK(follower(f, 3).leads);
    CHECK_FALSE(follower(f, 4).leads);
    CHECK(follower(f, 5).leads);
  }
}

TEST_CASE("context followers: a shorter suffix after which no more tokens came is left out") {
  const ContextFollowers f = found(grown_from({{1, 2, 3}, {1, 2, 4}, {9, 2}}), {1, 2});
  CHECK(f.contexts == 1);
  CHECK(f.lengths[0] == 2);
}

TEST_CASE("context followers: rare tokens are no candidates: below 1 in 24 of the longest context, 1 in 6 of a shorter one") {
  CHECK(tokens_of(found(rare_after_one(23), {1})) == Text{2, 3});
  CHECK(tokens_of(found(rare_after_one(24), {1})) == Text{2});

  for (const int often : {4, 5}) {  // after 1, and 2 once after 7 1
    CAPTURE(often);
    GrownIndex grown = rare_after_one(often);
    grown.append(grown.log.add_stream(), Text{7, 1, 2});
    grown.append(grown.log.add_stream(), Text{7, 1, 2});
    const ContextFollowers f = found(grown, {7, 1});
    REQUIRE(f.contexts == 2);
    CHECK(tokens_of(f) == Text{2});
  }
  GrownIndex grown = rare_after_one(3);
  grown.append(grown.log.add_stream(), Text{7, 1, 2});
  grown.append(grown.log.add_stream(), Text{7, 1, 2});
  CHECK(tokens_of(found(grown, {7, 1})) == Text{2, 3});  // 1 of 6
}

TEST_CASE("context followers: a long match uses two contexts, others four, the last of them for counts only") {
  for (const int32_t longest : {9, 10}) {
    CAPTURE(longest);
    Text words;  // 9 8 ... 1: each shorter suffix is followed by a token of its own once more
    for (int32_t t = longest; t > 0; --t) words.push_back(t);
    std::vector<Text> streams;
    for (int32_t drop = 0; drop < 5; ++drop)
      for (int copies = 0; copies < 2; ++copies) {
        streams.push_back(Text(words.begin() + drop, words.end()));
        streams.back().insert(streams.back().begin(), 50 + drop);  // so that no longer string occurs twice
        streams.back().push_back(100 + drop);
      }
    const GrownIndex grown = grown_from(streams);
    const SuffixState state = grown.find(words);
    ContextFollowers f;
    f.find(grown.log, grown.index, state, static_cast<uint32_t>(longest));
    CHECK(f.contexts == (longest == 10 ? 2 : 4));
    CHECK(f.lengths[1] == static_cast<uint32_t>(longest) - 1);
    CHECK(tokens_of(f) == (longest == 10 ? Text{100, 101} : Text{100, 101, 102}));
  }
}

TEST_CASE("context followers: the source's token leads; one that followed nothing is a candidate only if it adds") {
  const GrownIndex grown = grown_from({{1, 2}, {1, 2}, {1, 3}});
  ContextFollowers f = found(grown, {1});
  f.add_source(3, false);
  CHECK(follower(f, 3).leads);
  CHECK(follower(f, 3).counts == Counts{1});
  f.add_source(8, false);
  CHECK(tokens_of(f) == Text{2, 3});
  f.add_source(8, true);
  CHECK(tokens_of(f) == Text{2, 3, 8});
  CHECK(follower(f, 8).leads);
  CHECK(follower(f, 8).state == SuffixIndex::kRoot);
  CHECK(follower(f, 8).match_tokens == 1);
  CHECK(follower(f, 8).counts == Counts{});
}

TEST_CASE("context followers: there are never more candidates than room, whatever the source adds") {
  ContextFollowers f;
  for (int32_t token = 0; token < 40; ++token) f.add_source(token, true);
  CHECK(f.count == ContextFollowers::kCandidatesMax);
}

TEST_CASE("context followers: counts, states and contexts are those of brute force") {
  for (uint32_t seed = 0; seed < 16; ++seed) {
    CAPTURE(seed);
    const std::vector<Text> streams = random_streams(seed);
    GrownIndex grown;
    grow(grown, streams, seed);
    const std::map<Text, uint32_t> counts = count_strings(streams);
    const auto counted = [&](Text words, int32_t token) {
      words.push_back(token);
      const auto at = counts.find(words);
      return at == counts.end() ? 0 : at->second;
    };
    size_t looked_at = 0, wrong = 0;
    std::map<Text, std::vector<int32_t>> after;  // the tokens that followed
    for (const auto& [words, count] : counts) after[Text(words.begin(), words.end() - 1)].push_back(words.back());
    for (const auto& [words, count] : counts) {
      const SuffixState state = grown.find(words);
      if (words.size() >= SuffixIndex::kDepth || grown.index.length(state) != words.size()) continue;
      ++looked_at;
      ContextFollowers f;
      f.find(grown.log, grown.index, state, static_cast<uint32_t>(words.size()));
      for (uint32_t c = 0; c < f.contexts; ++c) {
        const Text context(words.end() - f.lengths[c], words.end());
        wrong += c > 0 && (f.lengths[c] >= f.lengths[c - 1] || f.totals[c] <= f.totals[c - 1]);
        const bool few = after[context].size() <= SuffixIndex::kFewTokens;  // of many only the most frequent are seen
        for (uint32_t i = 0; i < f.count; ++i) {
          const uint32_t n = f.followers[i].counts[c], all = counted(context, f.followers[i].token);
          if (f.followers[i].match_tokens > f.lengths[c])  // a candidate since this context or a longer one
            wrong += n != all && (few || n > 0);
          else  // too rare here; a shorter context made it one
            wrong += n != 0 || (few && all * (c == 0 ? 24 : 6) >= f.totals[c]);
        }
      }
      for (uint32_t i = 0; i < f.count; ++i) {
        const auto& [token, leads, next, match_tokens, seen] = f.followers[i];
        const Text context(words.end() - (match_tokens - 1), words.end());
        wrong += grown.index.count(next) != counted(context, token);
      }
    }
    CHECK(looked_at > 30);
    CHECK(wrong == 0);
  }
}
