#include "gpu/philox.h"

#include <doctest/doctest.h>

using namespace seer;

using Counter = std::array<uint32_t, 4>;

TEST_CASE("philox: gives the known answers of Random123") {
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) == Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("philox: a uniform number takes its 53 bits from the block of its position, all of position and seed") {
  const auto bits = philox4x32({5, 2, 0, 0}, {7, 3});
  const double expected = static_cast<double>((uint64_t{bits[1]} << 32 | bits[0]) >> 11) / 9007199254740992.0;
  CHECK(philox_uniform(uint64_t{3} << 32 | 7, int64_t{2} << 32 | 5) == expected);
}

TEST_CASE("philox: uniform numbers are in [0, 1), with the mean and variance of the uniform distribution") {
  const int n = 200'000;
  double sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) {
    const double u = philox_uniform(static_cast<uint64_t>(i % 100) * 0x9e3779b97f4a7c15ull, i / 100);
    REQUIRE(u >= 0.0);
    REQUIRE(u < 1.0);
    sum += u;
    squares += u * u;
  }
  const double mean = sum / n;
  CHECK(mean == doctest::Approx(0.5).epsilon(0.005));                           // 4 sigma = 0.0026
  CHECK(squares / n - mean * mean == doctest::Approx(1.0 / 12).epsilon(0.01));  // 4 sigma = 0.8 %
}
