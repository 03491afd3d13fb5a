#include "protocols/crc32c.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <vector>

using namespace seer;

namespace {

/// Bit by bit, as its definition says.
uint32_t slow_crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  crc = ~crc;
  for (std::byte b : bytes) {
    crc ^= static_cast<uint32_t>(b);
    for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

std::vector<std::byte> random_bytes(std::mt19937_64& rng, size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
  return bytes;
}

}  // namespace

TEST_CASE("crc32c: known answers (RFC 3720, B.4)") {
  constexpr std::string_view kDigits = "123456789";
  std::vector<std::byte> rising, falling;
  for (int i = 0; i < 32; ++i) rising.push_back(static_cast<std::byte>(i)), falling.push_back(static_cast<std::byte>(31 - i));
  CHECK(crc32c({}) == 0);
  for (const Crc32cWay& way : crc32c_ways()) {
    CAPTURE(way.name);
    CHECK(way.sum({}, 0) == 0);
    CHECK(way.sum(std::as_bytes(std::span(kDigits)), 0) == 0xe3069283u);
    CHECK(way.sum(std::vector<std::byte>(32, std::byte{0}), 0) == 0x8a9136aau);
    CHECK(way.sum(std::vector<std::byte>(32, std::byte{0xff}), 0) == 0x62a8ab43u);
    CHECK(way.sum(rising, 0) == 0x46dd794eu);
    CHECK(way.sum(falling, 0) == 0x113fdb5cu);
  }
}

TEST_CASE("crc32c: every way agrees with the definition at every length and alignment, after any other bytes") {
  std::mt19937_64 rng(1);
  const auto bytes = random_bytes(rng, 2200);
  for (size_t i = 0; i < 4200; ++i) {
    // Every length up to 2 100 once, then lengths and beginnings at random.
    const size_t from = rng() % 65, length = i < 2100 ? i : rng() % (bytes.size() - from);
    const auto part = std::span(bytes).subspan(from, length);
    const uint32_t start = i % 2 == 0 ? 0 : static_cast<uint32_t>(rng());
    const uint32_t expected = slow_crc32c(part, start);
    const size_t cut = length == 0 ? 0 : rng() % length;
    CAPTURE(from);
    CAPTURE(length);
    CAPTURE(start);
    CHECK(crc32c(part, start) == expected);
    for (const Crc32cWay& way : crc32c_ways()) {
      CAPTURE(way.name);
      CHECK(way.sum(part, start) == expected);
      CHECK(way.sum(part.subspan(cut), way.sum(part.first(cut), start)) == expected);
    }
  }
}

TEST_CASE("crc32c: every way agrees with the table over megabytes, and notices any bit that flips") {
  std::mt19937_64 rng(2);
  auto bytes = random_bytes(rng, (3 << 20) + 77);
  const uint32_t expected = crc32c_ways().front().sum(bytes, 0);
  for (const Crc32cWay& way : crc32c_ways()) CHECK_MESSAGE(way.sum(bytes, 0) == expected, way.name);
  CHECK(crc32c(bytes) == expected);
  for (int i = 0; i < 200; ++i) {
    const size_t at = rng() % bytes.size();
    const auto bit = static_cast<std::byte>(1u << rng() % 8);
    bytes[at] ^= bit;
    CHECK(crc32c(bytes) != expected);
    bytes[at] ^= bit;
  }
}

TEST_CASE("crc32c: a copy writes all bytes and nothing else, and gives their checksum") {
  std::mt19937_64 rng(3);
  const auto source = random_bytes(rng, 300'000);
  for (int i = 0; i < 300; ++i) {
    const size_t from = rng() % 65, to = rng() % 65;
    const size_t length = rng() % (i % 2 == 0 ? 1000 : source.size() - 65);
    const auto part = std::span(source).subspan(from, length);
    std::vector<std::byte> target(to + length + 64, std::byte{0xa5});
    CAPTURE(from);
    CAPTURE(to);
    CAPTURE(length);
    const auto before = static_cast<uint32_t>(i % 3 == 0 ? 0 : rng());
    CHECK(copy_and_crc32c(std::span(target).subspan(to, length), part.data(), before) == crc32c_ways().front().sum(part, before));
    CHECK(std::ranges::equal(std::span(target).subspan(to, length), part));
    const auto is_untouched = [](std::byte b) { return b == std::byte{0xa5}; };
    CHECK(std::ranges::all_of(std::span(target).first(to), is_untouched));
    CHECK(std::ranges::all_of(std::span(target).last(64), is_untouched));
  }
}
