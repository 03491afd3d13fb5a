#include "cli/serve/body_room.h"

#include <doctest/doctest.h>

#include <vector>

using namespace seer;

namespace {

struct Bench {
  uint64_t enter(uint64_t bytes) {
    return room.enter(bytes, [this, bytes] { read.push_back(bytes); });
  }
  BodyRoom room{100};
  std::vector<uint64_t> read;  // bytes of bodies, as they were read
};

using Bytes = std::vector<uint64_t>;

}  // namespace

TEST_CASE("body room: a body that finds no room waits, and no later one passes it") {
  Bench b;
  const uint64_t first = b.enter(60), second = b.enter(61);
  b.enter(10);
  CHECK(b.read == Bytes{60});
  CHECK(b.room.used() == 60);
  CHECK(!b.room.waits(first));
  CHECK(b.room.waits(second));
  b.room.leave(first);
  CHECK(b.read == Bytes{60, 61, 10});
  CHECK(b.room.used() == 71);
}

TEST_CASE("body room: a body that leaves while it waits is not read, and lets later ones in") {
  Bench b;
  const uint64_t first = b.enter(60), second = b.enter(100);
  b.enter(40);
  b.room.leave(second);
  CHECK(b.read == Bytes{60, 40});
  b.room.leave(first);
  b.room.leave(first);  // ignored
  CHECK(b.room.used() == 40);
}

TEST_CASE("body room: a body larger than all room is read alone") {
  Bench b;
  const uint64_t small = b.enter(1), large = b.enter(1000);
  b.enter(2);
  CHECK(b.read == Bytes{1});
  b.room.leave(small);
  CHECK(b.read == Bytes{1, 1000});
  b.room.leave(large);
  CHECK(b.read == Bytes{1, 1000, 2});
  CHECK(b.room.used() == 2);
}
