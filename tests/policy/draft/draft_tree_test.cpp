#include "actors/policy/draft/draft_tree.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

using namespace seer;

namespace {

using Text = std::vector<int32_t>;

Text random_text(uint32_t seed, size_t tokens, uint32_t alphabet = 5000) {
  std::mt19937 random(seed);
  Text text(tokens);
  for (int32_t& token : text) token = static_cast<int32_t>(random() % alphabet);
  return text;
}

/// A text in which one token in eight differs.
Text edited(const Text& text, uint32_t seed) {
  std::mt19937 random(seed);
  Text copy = text;
  for (int32_t& token : copy)
    if (random() % 8 == 0) token = static_cast<int32_t>(random() % 5000);
  return copy;
}

/// How many tokens of the text a draft after its first `at` gains, with the bonus token.
size_t gained(const Draft& draft, const Text& text, size_t at) {
  int32_t row = 0;
  size_t count = 0;
  for (size_t i = 0; i < draft.tokens.size() && at + count < text.size(); ++i)
    if (draft.parents[i] == row && draft.tokens[i] == text[at + count]) {
      row = static_cast<int32_t>(i) + 1;
      ++count;
    }
  return std::min(count + 1, text.size() - at);
}

struct Replay {
  double tokens_per_step = 0, expected_per_step = 0;
  std::vector<Draft> drafts;
};
Replay replay(DraftTree& tree, uint32_t sample, const Text& text, const DraftLimits& limits) {
  Replay r;
  for (size_t at = 0; at < text.size();) {
    Draft& draft = r.drafts.emplace_back();
    tree.draft(sample, limits, draft);
    r.expected_per_step += std::accumulate(draft.probabilities.begin(), draft.probabilities.end(), 1.0);
    const size_t count = gained(draft, text, at);
    tree.append(sample, static_cast<int64_t>(at), std::span(text).subspan(at, count));
    at += count;
  }
  r.tokens_per_step = static_cast<double>(text.size()) / static_cast<double>(r.drafts.size());
  r.expected_per_step /= static_cast<double>(r.drafts.size());
  return r;
}

}  // namespace

TEST_CASE("draft tree: a response that repeats a reference, the prompt or itself is predicted") {
  const Text text = random_text(1, 600);
  const DraftLimits limits = {.max_tokens = 8, .min_probability = 0.01f};
  DraftScores scores;
  SUBCASE("reference") {
    DraftTree tree({}, {}, scores);
    tree.append(3, 0, text);
    CHECK(replay(tree, 5, text, limits).tokens_per_step > 5);
  }
  SUBCASE("prompt") {
    DraftTree tree({}, text, scores);
    CHECK(replay(tree, 5, text, limits).tokens_per_step > 5);
  }
  SUBCASE("itself") {
    DraftTree tree({}, {}, scores);
    Text twice = text;
    twice.insert(twice.end(), text.begin(), text.end());
    CHECK(replay(tree, 5, twice, limits).tokens_per_step > 1.7);
  }
  SUBCASE("nothing") {
    DraftTree tree({}, random_text(2, 600), scores);
    tree.append(3, 0, random_text(3, 600));
    CHECK(replay(tree, 5, text, limits).tokens_per_step < 1.05);
  }
}

TEST_CASE("draft tree: with own history only, other responses are not drafted from, the prompt is") {
  const Text text = random_text(1, 600), prompt = random_text(2, 300);
  DraftScores scores;
  DraftTree tree({.own_history_only = true}, prompt, scores);
  tree.append(3, 0, text);
  const DraftLimits limits = {.min_probability = 0.01f};
  CHECK(replay(tree, 5, text, limits).tokens_per_step < 1.05);
  CHECK(replay(tree, 6, prompt, limits).tokens_per_step > 4);
  CHECK(tree.tokens(3, 0, 1000) == text);
}

TEST_CASE("draft tree: drafts keep to their limits, and trees name a row before their own as parent") {
  const Text text = random_text(1, 3000, 40);
  for (const bool is_tree : {false, true})
    for (const float min_probability : {0.01f, 0.2f}) {
      CAPTURE(is_tree);
      CAPTURE(min_probability);
      DraftScores scores;
      DraftTree tree({}, {}, scores);
      for (uint32_t i = 0; i < 4; ++i) tree.append(i, 0, edited(text, i));
      const DraftLimits limits = {.max_tokens = 12, .min_probability = min_probability, .tree = is_tree};
      size_t longest = 0;
      for (const Draft& draft : replay(tree, 9, edited(text, 9), limits).drafts) {
        longest = std::max(longest, draft.tokens.size());
        REQUIRE(draft.parents.size() == draft.tokens.size());
        REQUIRE(draft.probabilities.size() == draft.tokens.size());
        std::vector<std::pair<int32_t, int32_t>> seen;
        for (int32_t i = 0; i < static_cast<int32_t>(draft.tokens.size()); ++i) {
          if (is_tree) CHECK(draft.parents[i] <= i);
          if (!is_tree) CHECK(draft.parents[i] == i);
          CHECK(draft.probabilities[i] >= min_probability);
          if (i > 0) CHECK(draft.probabilities[i] <= draft.probabilities[i - 1]);
          seen.emplace_back(draft.parents[i], draft.tokens[i]);
        }
        std::sort(seen.begin(), seen.end());
        CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());  // no branch twice
      }
      CHECK(longest <= 12);
      CHECK(longest > 3);
    }
}

TEST_CASE("draft tree: the acceptance to expect is the acceptance that comes") {
  const Text text = random_text(1, 20'000);
  for (const bool is_tree : {false, true}) {
    DraftScores scores;
    DraftTree tree({}, {}, scores);
    for (uint32_t i = 0; i < 4; ++i) tree.append(i, 0, edited(text, i));
    const Replay r = replay(tree, 9, edited(text, 9), {.max_tokens = 8, .min_probability = 0.02f, .tree = is_tree});
    CHECK(r.expected_per_step == doctest::Approx(r.tokens_per_step).epsilon(0.05));
    CHECK(r.tokens_per_step > 3);
  }
}

TEST_CASE("draft tree: after warm-up, paths of texts that are hard to predict are accepted as often as predicted") {
  // Phrases of 8 words in random order, with every other word replaced.
  for (const uint32_t phrase_count : {20, 60}) {
    CAPTURE(phrase_count);
    std::vector<Text> phrases;
    for (uint32_t i = 0; i < phrase_count; ++i) phrases.push_back(random_text(1000 + i, 8, 300));
    const auto make = [&](uint32_t seed) {
      std::mt19937 random(seed);
      Text text;
      while (text.size() < 20'000)
        for (int32_t token : phrases[random() % phrase_count])
          text.push_back(random() % 2 == 0 ? static_cast<int32_t>(random() % 300) : token);
      return text;
    };
    DraftScores scores;
    DraftTree tree({}, {}, scores);
    for (uint32_t i = 0; i < 4; ++i) tree.append(i, 0, make(10 + i));
    const DraftLimits limits = {.max_tokens = 16, .min_probability = 0.12f};
    const Text text = make(99);
    double expected = 0, accepted = 0;
    Draft draft;
    for (size_t at = 0; at < text.size();) {
      tree.draft(9, limits, draft);
      const size_t count = gained(draft, text, at);
      if (at > text.size() / 2) {
        expected += std::accumulate(draft.probabilities.begin(), draft.probabilities.end(), 0.0);
        accepted += static_cast<double>(count - 1);
      }
      tree.append(9, static_cast<int64_t>(at), std::span(text).subspan(at, count));
      at += count;
    }
    CHECK(std::abs(expected / accepted - 1) < 0.03);
    CHECK(accepted > 800);
  }
}

TEST_CASE("draft tree: tokens scored as too unlikely are drafted once they prove likely") {
  const Text text = random_text(1, 4000);
  DraftScores scores;
  DraftTree tree({}, {}, scores);
  tree.append(0, 0, text);
  const DraftLimits limits = {.max_tokens = 8, .min_probability = 0.97f};
  const Replay r = replay(tree, 1, text, limits);
  for (size_t i = 0; i < 8; ++i) CHECK(r.drafts[i].tokens.empty());
  CHECK(!r.drafts.back().tokens.empty());
}

TEST_CASE("draft tree: drafting keeps no memory") {
  const Text text = random_text(1, 500);
  DraftScores scores;
  DraftTree tree({}, {}, scores);
  for (uint32_t i = 0; i < 4; ++i) tree.append(i, 0, edited(text, i));
  tree.append(9, 0, std::span(text).first(50));
  Draft draft;
  const auto drafts = [&](int count) {
    for (int i = 0; i < count; ++i) tree.draft(9, {.max_tokens = 16, .min_probability = 0.01f, .tree = true}, draft);
  };
  drafts(2);
  REQUIRE(!draft.tokens.empty());
  const size_t before = tree.bytes();
  drafts(1000);
  CHECK(tree.bytes() == before);
}

TEST_CASE("draft tree: duplicate, late and out-of-order appends give the drafts of those in order") {
  const Text text = random_text(1, 400), own = edited(text, 2);
  DraftScores scores, same_scores;
  DraftTree one({}, {}, scores), other({}, {}, same_scores);
  one.append(0, 0, text);
  one.append(1, 0, std::span(own).first(200));
  CHECK(other.append(1, 0, std::span(own).first(100)) == 100);
  CHECK(other.append(0, 200, std::span(text).subspan(200)) == 0);
  CHECK(other.append(1, 50, std::span(own).subspan(50, 150)) == 100);
  CHECK(other.append(1, 0, std::span(own).first(200)) == 0);
  CHECK(other.end(0) == 0);
  CHECK(other.append(0, 0, std::span(text).first(200)) == 400);
  CHECK(other.end(0) == 400);
  CHECK(other.tokens(0, 395, 100) == Text(text.begin() + 395, text.end()));
  Draft a, b;
  for (const bool tree : {false, true}) {
    const DraftLimits limits = {.max_tokens = 16, .min_probability = 0.001f, .tree = tree};
    one.draft(1, limits, a);
    other.draft(1, limits, b);
    CHECK(!a.tokens.empty());
    CHECK(a.tokens == b.tokens);
    CHECK(a.parents == b.parents);
  }
}

TEST_CASE("draft tree: above its limit the oldest references are dropped, and drafts come from the rest") {
  DraftScores scores;
  DraftTree tree({.bytes_max = 1 << 20}, random_text(100, 500), scores);
  std::vector<Text> texts;
  for (uint32_t i = 0; i < 30; ++i) {
    texts.push_back(random_text(i, 5000));
    tree.append(i, 0, texts.back());
    CHECK(tree.bytes() <= 1 << 20);
    CHECK(tree.end(i) == 5000);
  }
  CHECK(tree.dropped_tokens() > 0);
  CHECK(tree.tokens(0, 0, 10).empty());
  CHECK(tree.tokens(29, 0, 10'000) == texts[29]);
  const DraftLimits limits = {.min_probability = 0.01f};
  CHECK(replay(tree, 99, texts[29], limits).tokens_per_step > 4);
  CHECK(replay(tree, 98, texts[0], limits).tokens_per_step < 1.05);

  // A reference that was dropped and goes on is a new one from there.
  CHECK(tree.append(0, 4990, Text(20, 7)) == 10);
  CHECK(tree.end(0) == 5010);
}

TEST_CASE("draft tree: a single request above the limit keeps its later tokens") {
  DraftScores scores;
  DraftTree tree({.bytes_max = 1 << 20}, {}, scores);
  const Text text = random_text(1, 200'000);
  for (size_t at = 0; at < text.size(); at += 500)
    tree.append(0, static_cast<int64_t>(at), std::span(text).subspan(at, 500));
  CHECK(tree.bytes() <= 1 << 20);
  CHECK(tree.end(0) == 200'000);
  CHECK(tree.tokens(0, 190'000, 10'000) == Text(text.begin() + 190'000, text.end()));
  CHECK(tree.token_count() + tree.dropped_tokens() == 200'000);
  CHECK(replay(tree, 1, Text(text.begin() + 190'000, text.end()), {.min_probability = 0.01f}).tokens_per_step > 4);
}

TEST_CASE("draft tree: a response that repeats one of an earlier iteration is predicted, whenever that one was added") {
  const Text text = random_text(1, 600), prompt = random_text(2, 50);
  const DraftLimits limits = {.max_tokens = 8, .min_probability = 0.01f};
  const std::vector<Text> past = {random_text(3, 400), text};
  DraftScores scores, same_scores;
  DraftTree before({}, prompt, scores), later({}, prompt, same_scores);
  before.add_past(past);
  before.append(3, 0, random_text(4, 300));
  later.append(3, 0, random_text(4, 300));
  CHECK_FALSE(later.has_past());
  later.add_past(past);
  CHECK(later.has_past());
  CHECK(later.end(3) == 300);
  CHECK(before.token_count() == 50 + 1000 + 300);
  const Replay a = replay(before, 5, text, limits), b = replay(later, 5, text, limits);
  CHECK(a.tokens_per_step > 5);
  REQUIRE(a.drafts.size() == b.drafts.size());
  for (size_t i = 0; i < a.drafts.size(); ++i) CHECK(a.drafts[i].tokens == b.drafts[i].tokens);
}

TEST_CASE("draft tree: if this iteration and earlier ones differ, drafts follow this one") {
  const Text text = random_text(1, 20), here = random_text(2, 20), past = random_text(3, 20);
  Text now = text, then = text;
  now.insert(now.end(), here.begin(), here.end());
  then.insert(then.end(), past.begin(), past.end());
  DraftScores scores;
  DraftTree tree({}, {}, scores);
  tree.append(0, 0, now);
  tree.add_past(std::vector<Text>{then});
  tree.append(1, 0, text);
  Draft draft;
  tree.draft(1, {.max_tokens = 8, .min_probability = 0.01f}, draft);
  REQUIRE(draft.tokens.size() == 8);
  CHECK(std::equal(draft.tokens.begin(), draft.tokens.end(), here.begin()));
}

TEST_CASE("draft tree: a past that this iteration does not repeat is dropped, and its drafts are those without") {
  const Text text = random_text(1, 3000);
  const DraftLimits limits = {.max_tokens = 8, .min_probability = 0.01f};
  std::vector<Text> past;
  for (uint32_t i = 0; i < 4; ++i) past.push_back(random_text(10 + i, 3000));
  DraftScores scores, plain_scores;
  DraftTree tree({}, {}, scores), plain({}, {}, plain_scores);
  tree.add_past(past);
  for (DraftTree* t : {&tree, &plain}) {
    t->append(0, 0, std::span(text).first(1000));
    CHECK(t->has_past() == (t == &tree));
    t->append(0, 1000, std::span(text).subspan(1000));
    CHECK_FALSE(t->has_past());
  }
  CHECK(tree.dropped_tokens() == 12'000);
  CHECK(tree.token_count() == 3000);
  CHECK(tree.bytes() == plain.bytes());
  const Text again = edited(text, 5);
  const Replay a = replay(tree, 1, again, limits), b = replay(plain, 1, again, limits);
  REQUIRE(a.drafts.size() == b.drafts.size());
  for (size_t i = 0; i < a.drafts.size(); ++i) CHECK(a.drafts[i].tokens == b.drafts[i].tokens);
}

TEST_CASE("draft tree: above its limit earlier iterations are dropped before the references") {
  std::vector<Text> past;
  for (uint32_t i = 0; i < 10; ++i) past.push_back(random_text(10 + i, 1000));
  DraftScores scores;
  DraftTree tree({.bytes_max = 4 << 20}, {}, scores);
  tree.add_past(past);
  CHECK(tree.token_count() == 10'000);
  std::vector<Text> texts;
  const auto add = [&] {
    Text text = random_text(100 + static_cast<uint32_t>(texts.size()), 900);
    const Text& quoted = past[texts.size() % 10];  // so that the past helps
    const auto from = quoted.begin() + 500 + static_cast<std::ptrdiff_t>(texts.size() / 10 % 4 * 100);
    text.insert(text.end(), from, from + 100);
    tree.append(static_cast<uint32_t>(texts.size()), 0, text);
    texts.push_back(text);
  };
  while (tree.dropped_tokens() == 0) add();
  CHECK_FALSE(tree.has_past());
  CHECK(tree.dropped_tokens() >= 10'000);
  CHECK(tree.dropped_tokens() < 10'000 + std::ssize(texts) * 1000 / 2);
  Draft draft;
  const auto foresees = [&](uint32_t sample, const Text& text) {
    tree.append(sample, 0, std::span(text).first(10));
    tree.draft(sample, {.max_tokens = 1, .min_probability = 0.01f}, draft);
    return draft.tokens == Text{text[10]};
  };
  CHECK(foresees(1001, texts.back()));
  CHECK_FALSE(foresees(1002, past[0]));

  // At most a quarter of the limit is taken, at 256 bytes a token; the oldest tokens beyond that are left out.
  DraftTree full({.bytes_max = 1 << 20}, {}, scores);
  full.add_past(std::vector<Text>{random_text(1, 3000), random_text(2, 3000)});
  CHECK(full.token_count() == 4096);
  CHECK(full.bytes() < 256 << 10);
}

TEST_CASE("draft tree: one append does bounded work and stays below the limit, however full the tree is") {
  DraftScores scores;
  DraftTree tree({.bytes_max = 1 << 20}, random_text(100, 500), scores);
  std::vector<Text> texts;
  for (uint32_t i = 0; i < 8; ++i) texts.push_back(random_text(i, 30'000));
  int64_t longest = 0;
  for (size_t at = 0; at < 30'000;) {
    const size_t piece = std::min<size_t>(at % 7 == 0 ? 3000 : 10, 30'000 - at);
    for (uint32_t i = 0; i < 8; ++i) {
      const int64_t before = tree.indexed_tokens();
      REQUIRE(tree.append(i, static_cast<int64_t>(at), std::span(texts[i]).subspan(at, piece)) == static_cast<int64_t>(piece));
      const auto pieces = static_cast<int64_t>((piece + DraftTree::kPieceTokens - 1) / DraftTree::kPieceTokens);
      REQUIRE(tree.indexed_tokens() - before <= pieces * DraftTree::kRenewTokens +
                                                    static_cast<int64_t>(piece) * (1 + DraftTree::kRenewFactor));
      REQUIRE(tree.bytes() <= 1 << 20);
      REQUIRE(tree.end(i) == static_cast<int64_t>(at + piece));
      longest = std::max(longest, tree.indexed_tokens() - before);
    }
    at += piece;
  }
  CHECK(longest > 10 * DraftTree::kRenewTokens);
  CHECK(tree.token_count() + tree.dropped_tokens() == 500 + 8 * 30'000);
  CHECK(tree.token_count() > 5000);
  CHECK(replay(tree, 99, Text(texts[7].end() - 1000, texts[7].end()), {.min_probability = 0.01f}).tokens_per_step > 4);
}

TEST_CASE("draft tree: a tree with a lower limit shrinks to it with the appends, and still drafts") {
  DraftScores scores;
  DraftTree tree({.bytes_max = 8 << 20}, {}, scores);
  const Text text = random_text(1, 80'000);
  tree.append(0, 0, std::span(text).first(60'000));
  const size_t before = tree.bytes();
  CHECK(before > 2 << 20);
  tree.set_bytes_wanted(1 << 20);
  for (size_t at = 60'000; at < 80'000; at += 10) tree.append(0, static_cast<int64_t>(at), std::span(text).subspan(at, 10));
  CHECK(tree.bytes() < 1 << 20);
  CHECK(tree.end(0) == 80'000);
  CHECK(replay(tree, 1, Text(text.end() - 2000, text.end()), {.min_probability = 0.01f}).tokens_per_step > 4);
}

TEST_CASE("draft tree: a renewal also copies requests and tokens that come meanwhile") {
  DraftScores scores;
  DraftTree tree({.bytes_max = 4 << 20}, {}, scores);
  const Text old = random_text(1, 42'000), text = random_text(2, 400);
  tree.append(0, 0, old);
  size_t at = 0;
  for (; tree.dropped_tokens() == 0; at += 10) {  // a renewal begins on the way: 256 tokens with every append
    REQUIRE(at < 20'000);
    const Text more = random_text(static_cast<uint32_t>(3 + at), 10);
    tree.append(1, static_cast<int64_t>(at), more);
    if (at == 1000) tree.append(2, 0, std::span(text).first(200));
    if (at == 1010) tree.begin_at(2, 300);
    if (at == 1020) tree.append(2, 300, std::span(text).subspan(300));
  }
  CHECK(tree.end(1) == static_cast<int64_t>(at));
  CHECK(tree.end(2) == 400);
  CHECK(tree.tokens(2, 300, 100) == Text(text.begin() + 300, text.end()));
  CHECK(tree.append(2, 400, Text{5}) == 1);
}

TEST_CASE("draft tree: ends of dropped text stay known, and its pages go back in steps") {
  DraftScores scores;
  DraftTree tree({}, random_text(2, 100), scores);
  const Text text = random_text(1, 100'000);
  tree.append(4, 0, text);
  const size_t before = tree.bytes();
  PageBin bin;
  tree.drop_text(bin);
  CHECK(tree.end(4) == 100'000);
  CHECK(tree.token_count() == 0);
  CHECK(tree.bytes() < 64 << 10);
  CHECK(bin.bytes() > before / 2);
  CHECK(tree.append(4, 99'990, Text(20, 7)) == 10);
  CHECK(tree.tokens(4, 100'000, 100) == Text(10, 7));
  const size_t full = bin.bytes();
  bin.release(PageBin::kPageBytes + 1);
  CHECK(bin.bytes() == full - 2 * PageBin::kPageBytes);
  bin.release(full);
  CHECK(bin.bytes() == 0);

  tree.append(5, 0, text);
  tree.give_up(bin);
  CHECK(bin.bytes() > before / 2);
}

TEST_CASE("draft tree: with own history only, earlier iterations are not drafted from") {
  DraftScores scores;
  DraftTree tree({.own_history_only = true}, {}, scores);
  tree.add_past(std::vector<Text>{random_text(1, 600)});
  CHECK_FALSE(tree.has_past());
  CHECK(replay(tree, 5, random_text(1, 600), {.min_probability = 0.01f}).tokens_per_step < 1.05);
}

TEST_CASE("draft tree: the same calls give the same drafts") {
  const Text text = random_text(1, 3000, 60);
  std::vector<Replay> replays;
  for (int run = 0; run < 2; ++run) {
    DraftScores scores;
    DraftTree tree({}, Text(text.begin(), text.begin() + 50), scores);
    for (uint32_t i = 0; i < 3; ++i) tree.append(i, 0, edited(text, i));
    replays.push_back(replay(tree, 9, text, {.max_tokens = 8, .min_probability = 0.02f, .tree = true}));
  }
  REQUIRE(replays[0].drafts.size() == replays[1].drafts.size());
  for (size_t i = 0; i < replays[0].drafts.size(); ++i) {
    CHECK(replays[0].drafts[i].tokens == replays[1].drafts[i].tokens);
    CHECK(replays[0].drafts[i].probabilities == replays[1].drafts[i].probabilities);
  }
}
