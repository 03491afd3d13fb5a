#include "protocols/token_log.h"

#include <doctest/doctest.h>

#include <random>

using namespace seer;

namespace {

constexpr int64_t kSegment = TokenLog::kSegmentTokens;

std::vector<int32_t> random_tokens(std::mt19937_64& rng, size_t count) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % 100'000);
  return tokens;
}

/// A log and what must be in it.
struct Pair {
  TokenLog log;
  std::vector<int32_t> expected;

  void append(const std::vector<int32_t>& tokens) {
    log.append(tokens);
    expected.insert(expected.end(), tokens.begin(), tokens.end());
  }
  bool holds() const {
    bool same = log.tokens() == expected && log.size() == std::ssize(expected) && log.empty() == expected.empty();
    for (int64_t i = 0; i < std::ssize(expected); i += 97) same &= log[i] == expected[static_cast<size_t>(i)];
    return same && (expected.empty() || log.back() == expected.back());
  }
};

}  // namespace

TEST_CASE("token log: any number of tokens at a time, within a segment and across several") {
  std::mt19937_64 rng(1);
  for (const int64_t prompt : {int64_t{0}, int64_t{1}, kSegment - 1, kSegment, kSegment + 1, 3 * kSegment}) {
    Pair p;
    p.expected = random_tokens(rng, static_cast<size_t>(prompt));
    p.log = TokenLog(p.expected);
    CHECK(p.log.prompt_tokens() == prompt);
    for (const size_t count : {size_t{0}, size_t{1}, size_t{1023}, size_t{1}, size_t{1024}, size_t{5000}, size_t{3}}) {
      p.append(random_tokens(rng, count));
      CHECK(p.holds());
    }
    CHECK(p.log.output_tokens() == std::ssize(p.expected) - prompt);
    CHECK(p.log.output() == std::vector<int32_t>(p.expected.begin() + prompt, p.expected.end()));
    for (int i = 0; i < 50; ++i) {
      const auto first = static_cast<int64_t>(rng() % p.expected.size());
      const auto end = first + static_cast<int64_t>(rng() % (p.expected.size() - static_cast<size_t>(first) + 1));
      CHECK(p.log.tokens(first, end) == std::vector<int32_t>(p.expected.begin() + first, p.expected.begin() + end));
    }
  }
}

TEST_CASE("token log: what is added to a copy, or to what was copied, is not in the other") {
  std::mt19937_64 rng(2);
  std::vector<Pair> pairs(1);
  for (int i = 0; i < 400; ++i) {
    Pair& from = pairs[rng() % pairs.size()];
    if (rng() % 4 == 0 && pairs.size() < 30) {
      Pair copy = from;
      pairs.push_back(std::move(copy));
    } else if (rng() % 8 == 0) {
      from = pairs[rng() % pairs.size()];
    } else {
      from.append(random_tokens(rng, rng() % 3 == 0 ? static_cast<size_t>(kSegment) : rng() % 700));
    }
  }
  for (const Pair& p : pairs) CHECK(p.holds());
}

TEST_CASE("token log: copies share the memory of full segments, and one that was moved from is empty") {
  TokenLog log(std::vector<int32_t>(static_cast<size_t>(2 * kSegment + 5), 7));
  const TokenLog copy = log;
  const auto address = [](const TokenLog& of, int64_t position) {
    const int32_t* found = nullptr;
    of.visit(position, position + 1, [&](std::span<const int32_t> part) { found = part.data(); });
    return found;
  };
  CHECK(address(copy, 0) == address(log, 0));
  CHECK(address(copy, 2 * kSegment - 1) == address(log, 2 * kSegment - 1));
  CHECK(address(copy, 2 * kSegment) != address(log, 2 * kSegment));
  const int32_t* const before = address(log, 2 * kSegment);
  TokenLog moved = std::move(log);
  CHECK(address(moved, 2 * kSegment) == before);
  CHECK(log.empty());
  log.append(std::vector<int32_t>{1});
  CHECK(log.tokens() == std::vector<int32_t>{1});
  CHECK(moved.tokens() == copy.tokens());
}
