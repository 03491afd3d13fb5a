#include "actors/policy/schedule/divided_scheduler.h"

#include <doctest/doctest.h>

#include "policy/schedule/scheduler_desk.h"

using namespace seer;

namespace {

constexpr int64_t kSecondUs = 1'000'000;

}  // namespace

TEST_CASE("divided: up to misses_max requests that fit nowhere are passed over") {
  for (const int32_t misses_max : {1, 2}) {
    CAPTURE(misses_max);
    SchedulerDesk desk("divided", {.chunk_tokens = 32, .reserve_share = 1.0, .misses_max = misses_max});
    desk.instance(0, 12);
    desk.group({}).place_one();                                                      // 4 of 12 blocks
    desk.group({.id = 1, .prompt_tokens = 112, .max_tokens = 32}).group({.id = 2});  // 10 blocks, 4 blocks
    CHECK(requests_of(desk.place()) == (misses_max == 1 ? Order{} : Order{request(2, 0)}));
  }
}

TEST_CASE("divided: an idle fleet looks past any number of requests that are too large for it") {
  SchedulerDesk desk("las", {.chunk_tokens = 32, .reserve_share = 1.0, .misses_max = 1});
  desk.instance(0, 100);
  for (uint32_t id = 0; id < 5; ++id) desk.group({.id = id, .prompt_tokens = 1000});
  desk.group({.id = 9});
  desk.scheduler->remove_instance({0});
  desk.instance(1, 20);
  const Placement placement = desk.place_one();
  CHECK(placement.request == request(9, 0));
  CHECK(desk.scheduler->stalled().ok());
  desk.end(placement, 10, ChunkEnd::kFinished);
  CHECK(desk.place().empty());
  const Status stalled = desk.scheduler->stalled();
  REQUIRE_FALSE(stalled.ok());
  CHECK(stalled.error().code == Code::kFull);
  CHECK(stalled.error().detail ==
        "request 0.0 has 1000 prompt and 0 output tokens and may grow to 73 KV blocks; the largest instance left holds "
        "20");
}

TEST_CASE("divided: the first submitted goes on until it is over, whatever it has generated and how long others wait") {
  SchedulerDesk desk("divided");
  desk.instance(0, 100, 1).group({.id = 7, .samples = 2}).group({.id = 1, .samples = 1});  // ids say nothing of the order
  CHECK(desk.serve(3, 32) == Order{request(7, 0), request(7, 0), request(7, 0)});
  desk.end(desk.place_one(), 120, ChunkEnd::kFinished);
  CHECK(desk.serve(2, 32) == Order{request(7, 1), request(7, 1)});
}

TEST_CASE("divided: the last submitted gives way first, even if it started before others") {
  SchedulerDesk desk("divided");
  desk.instance(0, 100).group({.samples = 3});
  const auto placements = desk.place();
  REQUIRE(placements.size() == 3);
  desk.end(placements[0], 32);
  const Placement again = desk.place_one();
  CHECK(again.request == request(0, 0));
  CHECK(again.yield_rank < placements[1].yield_rank);
  CHECK(placements[1].yield_rank < placements[2].yield_rank);
}

TEST_CASE("divided-rr: the longest waiting goes first, and a request that had a chunk goes to the back") {
  SchedulerDesk desk("divided-rr");
  desk.instance(0, 100, 1).group({.samples = 2}).group({.id = 1, .samples = 1});
  CHECK(desk.serve(5, 8) == Order{request(0, 0), request(0, 1), request(1, 0), request(0, 0), request(0, 1)});
}

TEST_CASE("divided-rr: the latest started gives way first") {
  SchedulerDesk desk("divided-rr");
  desk.instance(0, 100).group({.samples = 3});
  const auto placements = desk.place();
  REQUIRE(placements.size() == 3);
  CHECK(placements[0].yield_rank < placements[1].yield_rank);
  CHECK(placements[1].yield_rank < placements[2].yield_rank);
}

TEST_CASE("divided: a cancelled request is never placed, neither in its turn nor as a starved one") {
  SchedulerDesk desk("seer", {.chunk_tokens = 32, .reserve_share = 1.0, .starve_us = 30 * kSecondUs});
  desk.group({.samples = 4});
  desk.scheduler->cancel(request(0, 1), 0);
  desk.now_us = 31 * kSecondUs;
  desk.scheduler->cancel(request(0, 2), desk.now_us);
  desk.instance(0, 100);
  CHECK(requests_of(desk.place()) == Order{request(0, 0), request(0, 3)});
}

TEST_CASE("las: the least generated goes first and the most generated gives way first") {
  SchedulerDesk desk("las");
  desk.instance(0, 100, 1).group({.samples = 2});
  Placement placement = desk.place_one();
  desk.end(placement, 30);
  placement = desk.place_one();
  CHECK(placement.request == request(0, 1));
  desk.end(placement, 10);
  CHECK(desk.serve(2, 5) == Order{request(0, 1), request(0, 1)});
  desk.instance(1, 100);
  const auto placements = desk.place();
  REQUIRE(requests_of(placements) == Order{request(0, 1), request(0, 0)});
  CHECK(placements[1].yield_rank > placements[0].yield_rank);
}

TEST_CASE("seer: probes go first, the one with the least generated tokens before the others") {
  SchedulerDesk desk("seer");
  desk.instance(0, 100, 1).group({.samples = 2}).group({.id = 1, .samples = 2, .max_tokens = 200});
  CHECK(desk.serve(4, 8) == Order{request(0, 0), request(1, 0), request(0, 0), request(1, 0)});
}

TEST_CASE("seer: after the probes the largest group estimate goes first") {
  SchedulerDesk desk("seer");
  desk.instance(0, 100, 3);
  for (uint32_t id = 0; id < 3; ++id) desk.group({.id = id, .samples = 2});
  const auto probes = desk.place();
  REQUIRE(requests_of(probes) == Order{request(0, 0), request(1, 0), request(2, 0)});
  desk.end(probes[0], 30, ChunkEnd::kFinished);
  desk.scheduler->estimate_changed({0}, 30);
  CHECK_MESSAGE(desk.place_one().request == request(1, 1), "a group without a finished member counts as long");
  desk.end(probes[1], 50, ChunkEnd::kFinished);
  desk.scheduler->estimate_changed({1}, 50);
  CHECK(desk.place_one().request == request(2, 1));
  desk.scheduler->estimate_changed({0}, 80);
  desk.end(probes[2], 40, ChunkEnd::kFinished);
  CHECK(desk.place_one().request == request(0, 1));
}

TEST_CASE("seer: a request that outgrew its group's estimate counts with its own length") {
  SchedulerDesk desk("seer");
  desk.instance(0, 100, 1).group({.samples = 2}).group({.id = 1, .samples = 2});
  desk.end(desk.place_one(), 10, ChunkEnd::kFinished);
  desk.end(desk.place_one(), 10, ChunkEnd::kFinished);
  desk.scheduler->estimate_changed({0}, 20);
  desk.scheduler->estimate_changed({1}, 10);
  const Placement placement = desk.place_one();
  REQUIRE(placement.request == request(0, 1));
  desk.scheduler->estimate_changed({0}, 5);
  desk.end(placement, 12);
  CHECK(desk.place_one().request == request(0, 1));
}

TEST_CASE("seer: the smallest estimate gives way first and probes last") {
  SchedulerDesk desk("seer");
  desk.instance(0, 100).group({.samples = 2, .max_tokens = 100}).group({.id = 1, .samples = 2, .max_tokens = 150});
  const auto placements = desk.place();
  REQUIRE(requests_of(placements) == Order{request(0, 0), request(1, 0), request(1, 1), request(0, 1)});
  CHECK(placements[0].yield_rank < placements[2].yield_rank);
  CHECK(placements[1].yield_rank < placements[2].yield_rank);
  CHECK(placements[2].yield_rank < placements[3].yield_rank);
}

TEST_CASE("seer: a starved request goes before a longer estimate, but only now and then") {
  SchedulerDesk desk("seer", {.chunk_tokens = 32, .reserve_share = 1.0, .starve_us = 30 * kSecondUs});
  desk.instance(0, 100, 1).group({.samples = 3, .max_tokens = 100}).group({.id = 1, .samples = 3, .max_tokens = 1000});
  desk.end(desk.place_one(), 1, ChunkEnd::kFinished);
  desk.end(desk.place_one(), 1, ChunkEnd::kFinished);
  CHECK(desk.serve(1, 1) == Order{request(1, 1)});
  desk.now_us = 30 * kSecondUs;
  CHECK_MESSAGE(desk.serve(1, 1) == Order{request(1, 1)}, "waited no longer than the limit");
  desk.now_us = 31 * kSecondUs;
  CHECK(desk.serve(1, 1) == Order{request(0, 1)});
  const Order after = desk.serve(kStarvedEvery - 1, 1);
  CHECK(after == Order(kStarvedEvery - 1, request(1, 1)));
  CHECK_MESSAGE(desk.serve(1, 1) == Order{request(0, 2)}, "the next of those that starve");
}

TEST_CASE("oracle: the longest remaining goes first and the shortest remaining gives way first") {
  SchedulerDesk desk("oracle");
  desk.instance(0, 100, 1).group({.samples = 3, .known_tokens = {40, 60, 50}});
  CHECK(desk.serve(4, 8) == Order{request(0, 1), request(0, 1), request(0, 2), request(0, 1)});
  desk.instance(1, 100);
  const auto placements = desk.place();
  REQUIRE(requests_of(placements) == Order{request(0, 2), request(0, 0), request(0, 1)});  // 42, 40, 36 remaining
  CHECK(placements[0].yield_rank < placements[1].yield_rank);
  CHECK(placements[1].yield_rank < placements[2].yield_rank);
}

TEST_CASE("oracle: a group without known lengths is refused") {
  SchedulerDesk desk("oracle");
  desk.instance(0, 100);
  const Status refused = desk.scheduler->add_group(group_of({.samples = 2, .known_tokens = {40}}), 0);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == Code::kInvalidArgument);
  CHECK(refused.error().detail == "group 0 has 1 known lengths for 2 samples; the oracle policy needs one each");
}
