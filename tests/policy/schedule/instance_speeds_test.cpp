#include "actors/policy/schedule/instance_speeds.h"

#include <doctest/doctest.h>

using namespace seer;

TEST_CASE("instance speeds: one is known after enough tokens, and is the time per token") {
  InstanceSpeeds speeds;
  speeds.add({0}, kSpeedTokensLeast - 1, 1000, 0);
  CHECK(speeds.token_us({0}) == 0);
  speeds.add({0}, 1, 600, 0);
  CHECK(speeds.token_us({0}) == doctest::Approx(1600.0 / kSpeedTokensLeast));
  CHECK(speeds.token_us({1}) == 0);
  speeds.remove({0});
  CHECK(speeds.token_us({0}) == 0);
}

TEST_CASE("instance speeds: an instance that becomes slow is known as slow after a few windows") {
  InstanceSpeeds speeds;
  for (int64_t i = 0; i < 100; ++i) speeds.add({0}, kSpeedWindowTokens, kSpeedWindowTokens * 10, 0);
  for (int64_t i = 0; i < 4; ++i) speeds.add({0}, kSpeedWindowTokens, kSpeedWindowTokens * 40, 0);
  CHECK(speeds.token_us({0}) > 36);
  CHECK(speeds.token_us({0}) < 40);
}

TEST_CASE("instance speeds: one that gets nothing any more is unknown again after a while") {
  InstanceSpeeds speeds;
  speeds.add({0}, 100, 1'000'000, 0);
  for (int64_t s = 0; s <= 30; ++s) {
    speeds.add({1}, 100, 1000, s * 1'000'000);
    CHECK(speeds.forget_old(s * 1'000'000).empty());
  }
  CHECK(speeds.token_us({0}) > 0);
  CHECK(speeds.forget_old(kSpeedForgottenUs + 1'000'000) == std::vector{InstanceId{0}});
  CHECK(speeds.token_us({0}) == 0);
  CHECK(speeds.token_us({1}) > 0);
}
