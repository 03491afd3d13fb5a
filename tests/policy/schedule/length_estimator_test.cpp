#include "actors/policy/schedule/length_estimator.h"

#include <doctest/doctest.h>

#include <cmath>

using namespace seer;

TEST_CASE("length estimator: the estimate of a group is the longest seen of it") {
  LengthEstimator lengths;
  lengths.observe({0}, 300);
  CHECK(lengths.estimate({0}) == 300);
  lengths.observe({1}, 0);
  CHECK(lengths.estimate({1}) == 1);
  lengths.observe({0}, 200);
  CHECK(lengths.estimate({0}) == 300);
  lengths.observe({0}, 400);
  CHECK(lengths.estimate({0}) == 400);
  CHECK(lengths.estimate({1}) == 1);
}

TEST_CASE("length estimator: the error leaves out the first finish of each group") {
  LengthEstimator lengths;
  lengths.observe({0}, 100);
  lengths.observe({1}, 900);
  CHECK(lengths.estimate_error() == 0);
  lengths.observe({0}, 200);  // |100 - 200| / 200 = 0.5
  lengths.observe({0}, 160);  // |200 - 160| / 160 = 0.25
  CHECK(lengths.estimate_error() == doctest::Approx(0.375));
}

TEST_CASE("length estimator: the ICC of two groups is what the ANOVA table gives by hand") {
  // log2 lengths: group 0 {1, 3}, group 1 {5, 7}: means 2 and 6, total mean 4.
  // MSB = (2*4 + 2*4) / 1 = 16, MSW = (1+1+1+1) / 2 = 2, n0 = 2, var_between = 7, ICC = 7/9. Log's base does not
  // matter.
  LengthEstimator lengths;
  for (int64_t length : {2, 8}) lengths.observe({0}, length);
  for (int64_t length : {32, 128}) lengths.observe({1}, length);
  CHECK(lengths.length_icc() == doctest::Approx(7.0 / 9.0));
}

TEST_CASE("length estimator: the ICC of groups of unequal size uses their typical size") {
  // log2 lengths: group 0 {1, 3}, group 1 {4, 6, 8}, group 2 {10}: means 2, 6, 10; N = 6, k = 3, total mean 32/6.
  // Between: 2*(10/3)^2 + 3*(2/3)^2 + (14/3)^2 = 408/9, MSB = 204/9. Within: 2 + 8 = 10, MSW = 10/3.
  // n0 = (6 - 14/6) / 2 = 11/6. var_between = (204/9 - 30/9) / (11/6) = 116/11. ICC = (116/11) / (116/11 + 10/3).
  LengthEstimator lengths;
  for (int64_t length : {2, 8}) lengths.observe({0}, length);
  for (int64_t length : {16, 64, 256}) lengths.observe({1}, length);
  lengths.observe({2}, 1024);
  CHECK(lengths.length_icc() == doctest::Approx(116.0 / 11 / (116.0 / 11 + 10.0 / 3)));
}

TEST_CASE("length estimator: the ICC is 1 when only groups differ and 0 when only members do") {
  LengthEstimator between;
  for (int64_t length : {100, 100}) between.observe({0}, length);
  for (int64_t length : {700, 700}) between.observe({1}, length);
  CHECK(between.length_icc() == doctest::Approx(1.0));
  LengthEstimator within;
  for (uint32_t group : {0u, 1u})
    for (int64_t length : {100, 700}) within.observe({group}, length);
  CHECK(within.length_icc() == 0);
}

TEST_CASE("length estimator: the ICC is 0 where it is not defined") {
  CHECK(LengthEstimator().length_icc() == 0);
  LengthEstimator one_group;
  for (int64_t length : {3, 5, 9}) one_group.observe({0}, length);
  CHECK(one_group.length_icc() == 0);
  LengthEstimator singles;
  for (uint32_t group = 0; group < 3; ++group) singles.observe({group}, 10 + group);
  CHECK(singles.length_icc() == 0);
  LengthEstimator equal;
  for (uint32_t group = 0; group < 3; ++group)
    for (int member = 0; member < 7; ++member) equal.observe({group}, 777);
  CHECK(equal.length_icc() == 0);
}
