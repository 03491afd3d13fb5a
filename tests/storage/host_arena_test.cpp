#include "storage/host_arena.h"

#include <doctest/doctest.h>

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <set>

using namespace seer;

namespace {

/// Of this process, now.
int64_t resident_bytes() {
  int64_t pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident_pages;
  return resident_pages * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

TEST_CASE("host arena: slots are cache-line aligned, do not overlap, and stay below dram_bytes") {
  auto arena = *HostArena::create({.dram_bytes = 1000, .block_bytes = 100});
  CHECK(arena->slot_bytes() == 128);
  CHECK(arena->slot_count() == 7);  // 1000 / 128
  for (uint32_t i = 0; i < arena->slot_count(); ++i) {
    const auto slot = arena->span(i);
    CHECK(slot.size() == 100);
    CHECK(reinterpret_cast<uintptr_t>(slot.data()) % 64 == 0);
    std::memset(slot.data(), static_cast<int>(i), slot.size());
  }
  for (uint32_t i = 0; i < arena->slot_count(); ++i)
    for (const std::byte b : arena->span(i)) CHECK(b == static_cast<std::byte>(i));
}

TEST_CASE("host arena: every slot is handed out once, and a freed slot comes back with a new generation") {
  auto arena = *HostArena::create({.dram_bytes = 64 * 4, .block_bytes = 64});
  std::set<uint32_t> taken;
  for (int i = 0; i < 4; ++i) taken.insert(*arena->take());
  CHECK(taken.size() == 4);
  CHECK_FALSE(arena->take().has_value());
  const uint64_t before = arena->generation(2);
  arena->free(2);
  CHECK_FALSE(arena->is_taken(2));
  CHECK(arena->free_count() == 1);
  CHECK(*arena->take() == 2);
  CHECK(arena->generation(2) > before);
}

TEST_CASE("host arena: a tier of any size takes memory only as its slots are used") {
  const int64_t before = resident_bytes();
  auto arena = *HostArena::create({.dram_bytes = int64_t{1} << 40, .block_bytes = 4096});
  REQUIRE(arena->slot_count() == 1 << 28);
  CHECK(arena->free_count() == 1 << 28);
  CHECK(arena->generation((1 << 28) - 1) == 1);
  for (uint32_t i = 0; i < 1000; ++i) CHECK(*arena->take() == i);
  for (uint32_t i = 0; i < 1000; i += 2) arena->free(i);
  CHECK(arena->free_count() == (1 << 28) - 500);
  CHECK_FALSE(arena->is_taken(1 << 27));
  CHECK(resident_bytes() - before < 16 << 20);  // of 2^28 slots, each with a mere byte of its own: 256 MiB
}

TEST_CASE("host arena: a freed slot is taken before one that was never used") {
  auto arena = *HostArena::create({.dram_bytes = 64 * 4, .block_bytes = 64});
  CHECK(*arena->take() == 0);
  CHECK(*arena->take() == 1);
  arena->free(0);
  CHECK(*arena->take() == 0);
  CHECK(*arena->take() == 2);
  CHECK(*arena->take() == 3);
  CHECK_FALSE(arena->take().has_value());
  arena->free(1);
  arena->free(3);
  CHECK(*arena->take() == 3);
  CHECK(*arena->take() == 1);
}

TEST_CASE("host arena: too small a tier is refused with the sizes in the message") {
  const auto arena = HostArena::create({.dram_bytes = 100, .block_bytes = 4096});
  REQUIRE_FALSE(arena.ok());
  CHECK(arena.error().code == Code::kInvalidArgument);
  CHECK(arena.error().detail.find("4096") != std::string::npos);
}
