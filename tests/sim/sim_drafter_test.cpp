#include "actors/sim/sim_drafter.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace seer;

namespace {

constexpr RequestId kRequest{GroupId{3}, 1};

/// Says that the token at each position is ten times the position.
SimDrafts tens() {
  return {.fill = [](RequestId request, int64_t position, std::span<int32_t> tokens) {
    CHECK(request == kRequest);
    for (int32_t& token : tokens) token = static_cast<int32_t>(10 * position++);
  }};
}
Draft drafted(SimDrafter& drafter, const DraftLimits& limits) {
  const TokenLog log(std::vector<int32_t>{7, 7, 7, 7, 7}, 3);
  Draft draft{.tokens = {1}, .parents = {9}, .probabilities = {0.5f}};  // of the step before
  drafter.draft({kRequest, log}, limits, draft);
  return draft;
}

}  // namespace

TEST_CASE("sim drafter: a path has the given tokens from the end of the text on, as many as allowed") {
  SimDrafter drafter(tens());
  const Draft draft = drafted(drafter, {.max_tokens = 4});
  CHECK(draft.tokens == std::vector<int32_t>{50, 60, 70, 80});
  CHECK(draft.is_path());
  CHECK(draft.probabilities.empty());
}

TEST_CASE("sim drafter: where a count is given, so many tokens are drafted") {
  SimDrafts drafts = tens();
  drafts.count = [](RequestId, const DraftLimits& limits) { return int64_t{limits.max_tokens / 2}; };
  SimDrafter drafter(std::move(drafts));
  CHECK(drafted(drafter, {.max_tokens = 5}).tokens == std::vector<int32_t>{50, 60});
  CHECK(drafted(drafter, {.max_tokens = 1}).tokens.empty());
}

TEST_CASE("sim drafter: in a tree every third row is a branch with a wrong token, and the row after it goes on beside it") {
  SimDrafter drafter(tens());
  const Draft draft = drafted(drafter, {.max_tokens = 6, .tree = true});
  CHECK(draft.tokens == std::vector<int32_t>{50, 61, 60, 70, 81, 80});
  CHECK(draft.parents == std::vector<int32_t>{0, 1, 1, 3, 4, 4});
}

TEST_CASE("sim drafter: a longer draft begins with the shorter one") {
  SimDrafter drafter(tens());
  for (const bool tree : {false, true})
    for (int32_t tokens = 1; tokens < 10; ++tokens) {
      Draft longer = drafted(drafter, {.max_tokens = tokens + 1, .tree = tree});
      const Draft shorter = drafted(drafter, {.max_tokens = tokens, .tree = tree});
      longer.shorten(static_cast<size_t>(tokens));
      CHECK(longer.tokens == shorter.tokens);
      CHECK(longer.parents == shorter.parents);
    }
}

TEST_CASE("sim drafter: what a request has written is passed on, without its prompt") {
  int64_t learned = 0;
  SimDrafts drafts = tens();
  drafts.learn = [&](RequestId, int64_t output_tokens) { learned = output_tokens; };
  SimDrafter drafter(std::move(drafts)), deaf(tens());
  const TokenLog log(std::vector<int32_t>{7, 7, 7, 7, 7}, 3);
  drafter.learn({kRequest, log});
  deaf.learn({kRequest, log});
  CHECK(learned == 2);
}
