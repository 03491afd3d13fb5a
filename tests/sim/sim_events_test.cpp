#include "actors/sim/sim_events.h"

#include <doctest/doctest.h>

using namespace seer;

namespace {

Response response(uint32_t group, int64_t start_us) {
  Response made;
  made.request = {GroupId{group}, 0};
  made.output.ids = {1, 2, 3};
  made.start_us = start_us;
  return made;
}

/// Two responses, at 100 and 250 us, then a summary.
SimEvents collected(uint32_t second_group, int64_t second_at_us, bool keep_responses) {
  SimEvents events;
  SimWorld world;
  const RolloutEvents sink = collect_events(world, events, keep_responses);
  world.after(100, [=] { rt::post(sink, response(0, 20)); });
  world.after(100, [=] { rt::post(sink, RolloutProgress{.requests = 2, .done = 1}); });
  world.after(second_at_us, [=] { rt::post(sink, response(second_group, 30)); });
  world.run_until(1000);
  CHECK_FALSE(events.over());
  rt::post(sink, RolloutSummary{.complete = true});
  world.run_until(2000);
  CHECK(events.over());
  return events;
}

}  // namespace

TEST_CASE("sim events: events of a rollout are kept in order, with the times of the world") {
  const SimEvents events = collected(1, 250, true);
  CHECK(events.completions_s == std::vector<double>{100e-6, 250e-6});
  CHECK(events.starts_s == std::vector<double>{20e-6, 30e-6});
  REQUIRE(events.responses.size() == 2);
  CHECK(events.responses[1].request == RequestId{GroupId{1}, 0});
  CHECK(events.responses[1].output.ids.size() == 3);
  REQUIRE(events.progress.size() == 1);
  CHECK(events.progress[0].done == 1);
  REQUIRE(events.summaries.size() == 1);
  CHECK(events.summaries[0].complete);
}

TEST_CASE("sim events: the hash depends on names and times of responses, which need not be kept") {
  const uint64_t hash = collected(1, 250, true).hash;
  const SimEvents times_only = collected(1, 250, false);
  CHECK(times_only.responses.empty());
  CHECK(times_only.completions_s.size() == 2);
  CHECK(times_only.hash == hash);
  CHECK(collected(2, 250, true).hash != hash);
  CHECK(collected(1, 251, true).hash != hash);
}
