#include "gpu/cpu/huge_pages.h"

#include <doctest/doctest.h>

#include <cstring>
#include <optional>
#include <vector>

#include "gpu/cpu/aligned_array.h"

namespace seer {
namespace {

TEST_CASE("huge pages: memory begins at one, and is all zeros") {
  for (size_t bytes : {size_t{1}, HugePages::kPageBytes, 3 * HugePages::kPageBytes + 64}) {
    const auto pages = HugePages::try_map(bytes);
    REQUIRE(pages);
    CHECK(reinterpret_cast<uintptr_t>(pages->data()) % HugePages::kPageBytes == 0);
    for (size_t i = 0; i < bytes; i += 61) REQUIRE(pages->data()[i] == std::byte{0});
    std::memset(pages->data(), 1, bytes);
  }
  CHECK(HugePages::try_map(size_t{1} << 60) == nullptr);
}

TEST_CASE("page arena: arrays follow each other, outlive the arena, and may be larger than what it maps at a time") {
  std::optional<PageArena> arena(std::in_place);
  const size_t sizes[] = {100, 64, 1, 5'000'000, 0, 100'000'000, 7, 40'000'000, 64};
  std::vector<AlignedArray<uint8_t>> arrays;
  for (size_t size : sizes) {
    arrays.emplace_back(size, &*arena);
    CHECK(arrays.back().size() == size);
    CHECK(reinterpret_cast<uintptr_t>(arrays.back().data()) % 64 == 0);
    for (size_t i = 0; i < size; i += 4093) REQUIRE(arrays.back()[i] == 0);
  }
  CHECK(arrays[1].data() == arrays[0].data() + 128);
  CHECK(arrays[2].data() == arrays[1].data() + 64);
  CHECK(arrays[3].data() == arrays[2].data() + 64);
  arena.reset();
  for (size_t i = 0; i < arrays.size(); ++i) std::memset(arrays[i].data(), static_cast<int>(i + 1), sizes[i]);
  arrays.erase(arrays.begin());
  for (size_t i = 0; i < arrays.size(); ++i)
    for (size_t at = 0; at < arrays[i].size(); at += 4093) REQUIRE(arrays[i][at] == i + 2);
}

}  // namespace
}  // namespace seer
