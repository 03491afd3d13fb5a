#include "storage/slab.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "storage/host_arena.h"

using namespace seer;

namespace {

/// Notes what happens to the memory, in order.
struct Machine {
  SlabAllocator allocator() {
    return [this](int64_t bytes) -> Result<Slab> {
      log += cat("allocate ", bytes, ";");
      memory.resize(static_cast<size_t>(bytes));
      return Slab(memory, [this](std::span<std::byte> freed) { log += cat("free ", freed.size(), ";"); });
    };
  }
  SlabRegistrar registrar(std::string name) {
    return [this, name](std::span<std::byte> bytes) -> Result<std::shared_ptr<void>> {
      CHECK(bytes.data() == memory.data());
      if (name == refuses) return fail(Code::kIo, name, " refuses ", bytes.size(), " bytes");
      log += "+" + name + ";";
      return std::shared_ptr<void>(nullptr, [this, name](void*) { log += "-" + name + ";"; });
    };
  }

  std::vector<std::byte> memory;
  std::string log, refuses;
};

}  // namespace

TEST_CASE("slab: registrations end in reverse order, before the memory goes") {
  Machine m;
  {
    auto slab = make_slab(128, {m.allocator(), {m.registrar("cuda"), m.registrar("net")}});
    REQUIRE(slab.ok());
    CHECK(slab->bytes().size() == 128);
    const Slab moved = *std::move(slab);  // what was moved from frees nothing
    CHECK(moved.bytes().data() == m.memory.data());
  }
  CHECK(m.log == "allocate 128;+cuda;+net;-net;-cuda;free 128;");
}

TEST_CASE("slab: a registrar that refuses leaves nothing allocated or registered, and its sentence is the error") {
  Machine m;
  m.refuses = "net";
  const auto slab = make_slab(64, {m.allocator(), {m.registrar("cuda"), m.registrar("net")}});
  REQUIRE_FALSE(slab.ok());
  CHECK(slab.error().detail == "net refuses 64 bytes");
  CHECK(m.log == "allocate 64;+cuda;-cuda;free 64;");
}

TEST_CASE("slab: memory of the system is zero, may be written, and is refused with its size when there is too much of it") {
  const auto slab = map_slab(10'000);
  REQUIRE(slab.ok());
  CHECK(slab->bytes().size() == 10'000);
  CHECK(std::ranges::count(slab->bytes(), std::byte{0}) == 10'000);
  slab->bytes().back() = std::byte{1};
  const auto huge = map_slab(int64_t{1} << 60);
  REQUIRE_FALSE(huge.ok());
  CHECK(huge.error().code == Code::kIo);
  CHECK(huge.error().detail.find(cat(int64_t{1} << 60)) != std::string::npos);
}

TEST_CASE("slab: a host arena cuts its slots from the slab of its maker, and returns it at its end") {
  Machine m;
  {
    const auto arena = *HostArena::create({.dram_bytes = 1000, .block_bytes = 100}, {m.allocator(), {m.registrar("net")}});
    CHECK(arena->slot_count() == 7);  // of 128 bytes
    for (uint32_t slot = 0; slot < 7; ++slot) CHECK(arena->span(slot).data() == m.memory.data() + 128 * slot);
  }
  CHECK(m.log == "allocate 896;+net;-net;free 896;");
  m.refuses = "net";
  const auto refused = HostArena::create({.dram_bytes = 1000, .block_bytes = 100}, {m.allocator(), {m.registrar("net")}});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().detail == "no memory for the DRAM tier: net refuses 896 bytes");
}
