#include "gpu/accept_draft.h"

#include <doctest/doctest.h>

#include <random>
#include <span>
#include <vector>

using namespace seer;

namespace {

std::vector<SampledToken> sampled_of(std::vector<int32_t> tokens) {
  std::vector<SampledToken> sampled;
  for (int32_t token : tokens) sampled.push_back({token, -0.5f * static_cast<float>(sampled.size())});
  return sampled;
}

int32_t gained(std::vector<int32_t> draft, std::vector<int32_t> sampled) {
  return acceptance_length(draft, sampled_of(std::move(sampled)));
}

}  // namespace

TEST_CASE("accept draft: the tokens up to the first difference are accepted, and one more is gained") {
  CHECK(gained({}, {5}) == 1);
  CHECK(gained({1}, {5, 6}) == 1);
  CHECK(gained({1, 2, 3}, {1, 2, 3, 4}) == 4);
  CHECK(gained({1, 2, 3}, {1, 9, 3, 4}) == 2);
  CHECK(gained({1, 2, 3}, {9, 2, 3, 4}) == 1);
}

TEST_CASE("accept draft: decoding with any drafts gives the tokens of decoding without") {
  // The model of this test: the next token is a function of the tokens before it.
  const auto next = [](const std::vector<int32_t>& tokens) {
    return static_cast<int32_t>((tokens.back() * 7u + tokens.size() * 3u) % 4u);
  };
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    std::vector<int32_t> plain = {1}, drafted = {1};
    while (plain.size() < 60) plain.push_back(next(plain));
    while (drafted.size() < plain.size()) {
      std::vector<int32_t> draft(rng() % 5);
      for (size_t i = 0; i < draft.size(); ++i)
        draft[i] =
            rng() % 4 == 0 ? static_cast<int32_t>(rng() % 4) : plain[std::min(drafted.size() + i, plain.size() - 1)];
      std::vector<int32_t> context = drafted, rows;
      for (size_t i = 0; i <= draft.size(); ++i) {
        rows.push_back(next(context));
        if (i < draft.size()) context.push_back(draft[i]);
      }
      drafted.insert(drafted.end(), rows.begin(), rows.begin() + gained(draft, rows));
    }
    drafted.resize(plain.size());
    REQUIRE(drafted == plain);
  }
}

TEST_CASE("accept draft: in a tree the path is accepted whose tokens were sampled at their parents") {
  const std::vector<int32_t> tokens{9, 4, 5, 6, 7, 5}, parents{-1, 0, 0, 1, 2, 3};
  const auto path = [&](std::vector<int32_t> sampled) {
    return accepted_path(tokens, parents, sampled_of(std::move(sampled)));
  };
  CHECK(path({1, 0, 0, 0, 0, 0}) == std::vector{0});
  CHECK(path({4, 0, 0, 0, 0, 0}) == std::vector{0, 1});
  CHECK(path({5, 6, 0, 5, 0, 0}) == std::vector{0, 2});
  CHECK(path({5, 6, 7, 5, 0, 0}) == std::vector{0, 2, 4});
  CHECK(path({4, 6, 7, 5, 0, 8}) == std::vector{0, 1, 3, 5});
  CHECK(accepted_path(std::vector{3, 8, 8}, std::vector{-1, 0, 0}, sampled_of({8, 1, 1})) == std::vector{0, 1});
}

TEST_CASE("accept draft: the path that a text follows is the one that a verify accepts whose samples are that text") {
  const std::vector<int32_t> tokens{9, 4, 5, 6, 7, 5}, parents{-1, 0, 0, 1, 2, 3};
  const std::vector<size_t> depths{0, 1, 1, 2, 2, 3};
  for (const std::vector<int32_t>& came : std::vector<std::vector<int32_t>>{{1, 6, 5}, {4, 7, 5}, {5, 6, 5}, {5, 7, 0}, {4, 6, 5}, {4, 6, 8}}) {
    CAPTURE(came[0]);
    CAPTURE(came[1]);
    std::vector<int32_t> sampled;
    for (const size_t depth : depths) sampled.push_back(depth < came.size() ? came[depth] : 0);
    CHECK(path_of_text(std::span(tokens).subspan(1), std::span(parents).subspan(1), came) == accepted_path(tokens, parents, sampled_of(sampled)));
  }
  CHECK(path_of_text(std::vector{4, 5}, std::vector{0, 1}, std::vector{4, 5}) == std::vector{0, 1, 2});
  CHECK(path_of_text({}, {}, {}) == std::vector{0});
}
