#include "actors/policy/draft/drafter.h"

#include <doctest/doctest.h>

using namespace seer;

namespace {

/// Drafts, and shares nothing.
class Alone final : public Drafter {
 public:
  void draft(const DraftText&, const DraftLimits&, Draft& draft) override { draft.clear(); }
};

}  // namespace

TEST_CASE("draft: it is a path where each token follows the one before it") {
  CHECK(Draft{}.is_path());
  CHECK(Draft{.tokens = {7, 8, 9}, .parents = {0, 1, 2}, .probabilities = {}}.is_path());
  CHECK_FALSE(Draft{.tokens = {7, 8, 9}, .parents = {0, 1, 1}, .probabilities = {}}.is_path());
  CHECK_FALSE(Draft{.tokens = {7, 8}, .parents = {0, 0}, .probabilities = {}}.is_path());
}

TEST_CASE("draft: shortened, it keeps its first tokens, whether or not probabilities are known") {
  Draft known{.tokens = {7, 8, 9}, .parents = {0, 0, 2}, .probabilities = {0.9f, 0.5f, 0.4f}};
  known.shorten(2);
  CHECK(known.tokens == std::vector<int32_t>{7, 8});
  CHECK(known.parents == std::vector<int32_t>{0, 0});
  CHECK(known.probabilities == std::vector<float>{0.9f, 0.5f});

  Draft unknown{.tokens = {7, 8, 9}, .parents = {0, 1, 2}, .probabilities = {}};
  unknown.shorten(1);
  CHECK(unknown.tokens.size() == 1);
  CHECK(unknown.parents.size() == 1);
  CHECK(unknown.probabilities.empty());

  known.clear();
  CHECK(known.tokens.size() + known.parents.size() + known.probabilities.size() == 0);
}

TEST_CASE("drafter: one that shares nothing has no updates, no cursor and no losses") {
  Alone drafter;
  Drafter& any = drafter;
  std::vector<CstTokens> parts;
  any.take_updates([](GroupId) { return true; }, 100, parts);
  CHECK(parts.empty());
  CHECK_FALSE(any.cursor(GroupId{0}).has_value());
  CHECK(any.losses().dropped_tokens + any.losses().dropped_trees + any.losses().refused_groups == 0);
}
