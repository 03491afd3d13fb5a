#include "actors/weight_fetch.h"

#include <doctest/doctest.h>

#include <span>
#include <vector>

#include "protocols/crc32c.h"

using namespace seer;

namespace {

NewWeights weights_of(const std::string& bytes) {
  return {.version = WeightVersion{2}, .folder = "upload", .source = {}, .bytes = bytes.size(), .crc = crc32c(std::as_bytes(std::span(bytes)))};
}
WeightPart part_of(const std::string& bytes, uint64_t offset) {
  return {WeightVersion{2}, offset, bytes.substr(offset, kWeightPartBytes)};
}
std::vector<uint64_t> asks(WeightFetch& fetch) {
  std::vector<uint64_t> offsets;
  while (const auto offset = fetch.next()) offsets.push_back(*offset);
  return offsets;
}

}  // namespace

TEST_CASE("weight fetch: it asks for a window of parts ahead, and is whole with the last one") {
  constexpr uint64_t kPart = kWeightPartBytes;
  std::string bytes(6 * kPart + 3, 'a');
  bytes.back() = 'z';
  auto fetch = WeightFetch::begin(weights_of(bytes));
  REQUIRE(fetch.ok());
  CHECK(asks(*fetch) == std::vector<uint64_t>{0, kPart, 2 * kPart, 3 * kPart});
  CHECK(fetch->take(part_of(bytes, 0)).ok());
  CHECK(asks(*fetch) == std::vector<uint64_t>{4 * kPart});
  for (uint64_t offset = kPart; offset < bytes.size(); offset += kPart) {
    CHECK_FALSE(fetch->is_whole());
    CHECK(fetch->take(part_of(bytes, offset)).ok());
    for (const uint64_t next : asks(*fetch)) CHECK(next > offset);
  }
  REQUIRE(fetch->is_whole());
  CHECK(fetch->memory()->read(0, bytes.size()).value() == bytes);
  CHECK(fetch->memory()->read(bytes.size() - 2, 100).value() == "az");
  CHECK(fetch->memory()->read(bytes.size(), 100).value().empty());
}

TEST_CASE("weight fetch: parts that overtake others are put in order, and those that come twice or unasked are ignored") {
  constexpr uint64_t kPart = kWeightPartBytes;
  std::string bytes(5 * kPart + 3, 'a');
  for (uint64_t i = 0; i < bytes.size(); i += 7) bytes[i] = static_cast<char>('b' + i % 11);
  auto fetch = WeightFetch::begin(weights_of(bytes));
  REQUIRE(fetch.ok());
  CHECK(asks(*fetch).size() == WeightFetch::kWindowParts);
  for (const uint64_t i : {3, 1, 2, 1, 5}) CHECK(fetch->take(part_of(bytes, i * kPart)).ok());
  CHECK(asks(*fetch).empty());  // those that wait count
  CHECK(fetch->take(part_of(bytes, 0)).ok());
  CHECK(asks(*fetch) == std::vector<uint64_t>{4 * kPart, 5 * kPart});
  for (const uint64_t i : {0, 5, 2}) CHECK(fetch->take(part_of(bytes, i * kPart)).ok());
  CHECK_FALSE(fetch->is_whole());
  CHECK(fetch->take(part_of(bytes, 4 * kPart)).ok());
  REQUIRE(fetch->is_whole());
  CHECK(fetch->memory()->read(0, bytes.size()).value() == bytes);
}

TEST_CASE("weight fetch: a part cut short, or of other bytes, is refused with a sentence") {
  const std::string bytes(kWeightPartBytes + 10, 'a');
  auto fetch = WeightFetch::begin(weights_of(bytes));
  REQUIRE(fetch.ok());
  CHECK(asks(*fetch).size() == 2);
  CHECK(fetch->take({WeightVersion{2}, kWeightPartBytes, "aaa"}).error().detail == "3 bytes of new weights came for byte 1048576: expected 10");
  CHECK(fetch->take({WeightVersion{2}, 0, ""}).error().code == Code::kCorrupt);
  CHECK(fetch->take(part_of(bytes, 0)).ok());
  CHECK(fetch->take({WeightVersion{2}, kWeightPartBytes, "aaaaaaaaab"}).error().detail.starts_with("the new weights arrived damaged: "));
}
