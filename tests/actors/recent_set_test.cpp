#include "actors/recent_set.h"

#include <doctest/doctest.h>

using namespace seer;

TEST_CASE("recent set: it has the last values, whatever their order, and those that were put in again keep their place") {
  RecentSet<int> set(3);
  for (const int value : {9, 1, 5, 1, 9}) set.insert(value);
  CHECK(set.size() == 3);
  set.insert(2);
  CHECK_FALSE(set.contains(9));
  for (const int value : {1, 5, 2}) CHECK(set.contains(value));
  set.erase(5);
  set.erase(7);
  set.insert(8);
  CHECK(set.size() == 3);
  set.insert(3);
  CHECK_FALSE(set.contains(1));
  for (const int value : {2, 8, 3}) CHECK(set.contains(value));
}
