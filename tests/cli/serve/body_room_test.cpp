#include "cli/serve/body_room.h"

#include <doctest/doctest.h>

#include <vector>

using namespace seer;

namespace {

struct Bench {
  void enter(int body, uint64_t bytes, bool wanted = true) {
    room.enter(bytes, [this, body, wanted] {
      if (wanted) read.push_back(body);
      return wanted;
    });
  }
  BodyRoom room{100};
  std::vector<int> read;
};

}  // namespace

TEST_CASE("body room: a body that finds no room waits, and no later one passes it") {
  Bench b;
  b.enter(1, 60);
  b.enter(2, 60);
  b.enter(3, 10);
  CHECK(b.read == std::vector{1});
  CHECK(b.room.used() == 60);
  b.room.leave(60);
  CHECK(b.read == std::vector{1, 2, 3});
  CHECK(b.room.used() == 70);
}

TEST_CASE("body room: bodies that are no longer wanted take no room") {
  Bench b;
  b.enter(1, 100);
  b.enter(2, 100, false);
  b.enter(3, 100);
  b.room.leave(100);
  CHECK(b.read == std::vector{1, 3});
  b.room.leave(100);
  CHECK(b.room.used() == 0);
}

TEST_CASE("body room: a body larger than all room is read alone") {
  Bench b;
  b.enter(1, 1);
  b.enter(2, 1000);
  b.enter(3, 1);
  CHECK(b.read == std::vector{1});
  b.room.leave(1);
  CHECK(b.read == std::vector{1, 2});
  b.room.leave(1000);
  CHECK(b.read == std::vector{1, 2, 3});
  CHECK(b.room.used() == 1);
}

TEST_CASE("body room: a body may leave as soon as it is read") {
  BodyRoom room(100);
  int read = 0;
  for (int i = 0; i < 5; ++i)
    room.enter(80, [&] {
      ++read;
      room.leave(80);
      return true;
    });
  CHECK(read == 5);
  CHECK(room.used() == 0);
}
