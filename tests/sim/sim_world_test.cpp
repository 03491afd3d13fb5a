#include "actors/sim/sim_world.h"

#include <doctest/doctest.h>

#include <memory>
#include <set>
#include <vector>

using namespace seer;

namespace {

/// Notes the group of each message. Sends a message with estimated tokens to itself again after that many microseconds.
struct Noter {
  using handle = EstimateSink;
  static constexpr const char* kActorName = "noter";
  Noter(rt::self_ptr<Noter> self_in, std::shared_ptr<std::vector<uint32_t>> log_in) : self(self_in), log(std::move(log_in)) {}
  handle::behavior_type make_behavior() {
    return {[this](const GroupEstimate& what) {
      log->push_back(what.group.index);
      if (what.estimated_tokens > 0)
        rt::tell_after(self, what.estimated_tokens, self, GroupEstimate{what.group, again ? what.estimated_tokens : 0});
    }};
  }
  rt::self_ptr<Noter> self;
  std::shared_ptr<std::vector<uint32_t>> log;
  bool again = false;
};

using Order = std::vector<uint32_t>;

/// The order in which eight actors that get a message at once take their turns.
Order turns(uint64_t seed) {
  auto log = std::make_shared<Order>();
  SimWorld world(seed);
  for (uint32_t i = 0; i < 8; ++i) rt::post(world.spawn<Noter>(log), GroupEstimate{GroupId{i}, 0});
  CHECK(world.run_until(0) == 8);
  return *log;
}

}  // namespace

TEST_CASE("sim world: without a seed actors take turns in order of arrival, with a seed in an order of its own") {
  CHECK(turns(0) == Order{0, 1, 2, 3, 4, 5, 6, 7});
  std::set<Order> orders;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    CHECK(turns(seed) == turns(seed));
    orders.insert(turns(seed));
  }
  CHECK(orders.size() > 10);
}

TEST_CASE("sim world: at equal times the lowest rank fires first, then the timer set first, then the actors' own") {
  auto log = std::make_shared<Order>();
  SimWorld world;
  const auto note = [&](uint32_t what) { return [&, what] { log->push_back(what); }; };
  rt::post(world.spawn<Noter>(log), GroupEstimate{GroupId{0}, 5});  // again at 5 us
  world.run_until(0);
  world.after_ns(5000, note(4), 7);
  world.after_ns(5000, note(2), 3);
  world.after_ns(5000, note(3), 3);
  world.after_ns(4999, note(1), 9);
  world.run_until(10);
  CHECK(*log == Order{0, 1, 2, 3, 4, 0});
}

TEST_CASE("sim world: a timer that is set while another fires, for the same time and rank, is not lost") {
  Order fired;
  SimWorld world;
  world.after(3, [&] {
    fired.push_back(1);
    world.after_ns(0, [&] { fired.push_back(2); });
  });
  world.run_until(3);
  CHECK(fired == Order{1, 2});
  CHECK(world.now_us() == 3);
}

TEST_CASE("sim world: all timers of a rank have fired until now, or until just before if a lower rank is firing") {
  SimWorld world;
  std::vector<int64_t> fired;
  world.after_ns(500, [&] {
    for (const uint64_t rank : {1, 2, 3}) fired.push_back(world.fired_ns(rank));
  }, 2);
  world.run_until(1);
  CHECK(fired == std::vector<int64_t>{500, 500, 499});
}

TEST_CASE("sim world: it stops at its limit, when there are no events, or when the caller is done") {
  SimWorld world;
  int fired = 0;
  for (int64_t us = 10; us <= 50; us += 10) world.after(us, [&] { ++fired; });
  world.run_until(25);
  CHECK(fired == 2);
  CHECK(world.now_us() == 25);
  world.run_until(100, [&] { return fired == 4; });
  CHECK(fired == 4);
  CHECK(world.now_us() == 40);
  world.run_until(100, [] { return false; });
  CHECK(fired == 5);
  CHECK_MESSAGE(world.now_us() == 50, "waiting for something that never comes moves the clock no further");
  world.run_until(100);
  CHECK(world.now_us() == 100);
}

TEST_CASE("sim world: its end ends its actors, also one that keeps setting timers") {
  auto log = std::make_shared<Order>();
  {
    SimWorld world;
    const EstimateSink noter = world.spawn<Noter>(log);
    world.run_until(0);
    rt::look<Noter>(noter).again = true;
    rt::post(noter, GroupEstimate{GroupId{0}, 10});
    world.run_until(1000);
    CHECK(log->size() == 101);
    CHECK(log.use_count() == 2);
  }
  CHECK(log.use_count() == 1);
}
