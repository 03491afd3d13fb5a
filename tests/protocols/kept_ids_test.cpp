#include "protocols/kept_ids.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace seer;

TEST_CASE("kept ids: lists are appended and cut with their tokens") {
  KeptIds all;
  all.cut(3);
  CHECK(all == KeptIds{});
  all.add(std::vector{4, 7});
  all.add(std::vector<int32_t>{});
  KeptIds more;
  more.add(std::vector{1});
  more.add(std::vector{2, 3, 5});
  all.append(more);
  all.append({});
  REQUIRE(all.tokens() == 4);
  CHECK(std::ranges::equal(all.of(0), std::vector{4, 7}));
  CHECK(all.of(1).empty());
  CHECK(std::ranges::equal(all.of(2), std::vector{1}));
  CHECK(std::ranges::equal(all.of(3), std::vector{2, 3, 5}));
  all.cut(4);
  CHECK(all.tokens() == 4);
  all.cut(2);
  CHECK(all.tokens() == 2);
  CHECK(all.ids == std::vector{4, 7});
  all.cut(0);
  CHECK(all == KeptIds{});
}
