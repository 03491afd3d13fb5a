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

TEST_CASE("weight fetch: a part out of order, cut short, or of other bytes is refused with a sentence") {
  const std::string bytes(kWeightPartBytes + 10, 'a');
  const auto begun = [&] {
    auto fetch = WeightFetch::begin(weights_of(bytes));
    REQUIRE(fetch.ok());
    return *std::move(fetch);
  };
  WeightFetch fetch = begun();
  CHECK(fetch.take(part_of(bytes, kWeightPartBytes)).error().detail ==
        "10 bytes of new weights came for byte 1048576: expected 1048576 for byte 0");
  CHECK(fetch.take({WeightVersion{2}, 0, ""}).error().code == Code::kCorrupt);
  CHECK(fetch.take(part_of(bytes, 0)).ok());
  CHECK(fetch.take({WeightVersion{2}, kWeightPartBytes, "aaaaaaaaab"}).error().detail.starts_with("the new weights arrived damaged: "));
}
