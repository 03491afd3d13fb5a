#include "gpu/model/finite_scan.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

using namespace seer;

namespace {

/// The plain way: the exponent's bits are all set.
bool is_finite(uint32_t bits, TensorType type) {
  switch (type) {
    case TensorType::kF32: return (bits & 0x7f800000) != 0x7f800000;
    case TensorType::kF16: return (bits & 0x7c00) != 0x7c00;
    default: return (bits & 0x7f80) != 0x7f80;
  }
}

std::span<const std::byte> bytes_of(const auto& values) { return std::as_bytes(std::span(values)); }

}  // namespace

TEST_CASE("finite scan: each of the 65536 numbers of 16 bits is classified right, in either format") {
  for (const TensorType type : {TensorType::kF16, TensorType::kBf16}) {
    size_t wrong = 0;
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const std::vector<uint16_t> one = {static_cast<uint16_t>(bits)};
      wrong += (first_not_finite(bytes_of(one), type) == -1) != is_finite(bits, type) ? 1 : 0;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("finite scan: the first number that is not finite is found at any place, in any length and alignment") {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    const size_t size = 1 + random() % 40, shift = random() % 8;
    std::vector<float> values(size);
    for (float& v : values) v = std::ldexp(static_cast<float>(random()) - 2e9f, static_cast<int>(random() % 90) - 50);
    int64_t first = -1;
    for (int n = static_cast<int>(random() % 3); n > 0; --n) {
      const size_t at = random() % size;
      const float bad[] = {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::nanf("")};
      values[at] = bad[random() % 3];
    }
    for (size_t i = size; i-- > 0;)
      if (!std::isfinite(values[i])) first = static_cast<int64_t>(i);
    std::vector<std::byte> moved(shift + 4 * size);
    std::memcpy(moved.data() + shift, values.data(), 4 * size);
    CHECK(first_not_finite(std::span(moved).subspan(shift), TensorType::kF32) == first);
  }
}

TEST_CASE("finite scan: the largest, the smallest and the denormal numbers are finite, and so is an empty tensor") {
  using Limits = std::numeric_limits<float>;
  const std::vector<float> values = {Limits::max(), Limits::lowest(), Limits::min(), Limits::denorm_min(), -0.0f, 0.0f};
  CHECK(first_not_finite(bytes_of(values), TensorType::kF32) == -1);
  CHECK(first_not_finite({}, TensorType::kF32) == -1);
}
