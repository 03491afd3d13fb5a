#include "protocols/output_tokens.h"

#include <doctest/doctest.h>

using namespace seer;

namespace {

/// Tokens first, first + 1, ..., each with its log-probability and kept ids.
OutputTokens tokens(int32_t first, int32_t end) {
  OutputTokens all;
  for (int32_t id = first; id < end; ++id) {
    all.ids.push_back(id);
    all.logprobs.push_back(-static_cast<float>(id));
    all.kept_ids.add(std::vector<int32_t>(static_cast<size_t>(id), id));
  }
  return all;
}

}  // namespace

TEST_CASE("output tokens: what is told of a token goes with it") {
  OutputTokens all = tokens(1, 4);
  all.append(tokens(4, 9));
  CHECK(all == tokens(1, 9));
  for (int32_t cut = 0; cut <= 9; ++cut) {
    OutputTokens first = all;
    first.cut(static_cast<size_t>(cut));
    CHECK(first == tokens(1, std::min(1 + cut, 9)));
    CHECK(all.from(static_cast<size_t>(cut)) == tokens(1 + cut, 9));
    first.append(all.from(static_cast<size_t>(cut)));
    CHECK(first == all);
  }
}

TEST_CASE("output tokens: without log-probabilities and kept ids") {
  OutputTokens all{{1, 2, 3}};
  CHECK(all.from(1) == OutputTokens{{2, 3}});
  all.cut(2);
  all.append({{4}});
  CHECK(all == OutputTokens{{1, 2, 4}});
  CHECK(OutputTokens{}.empty());
}
