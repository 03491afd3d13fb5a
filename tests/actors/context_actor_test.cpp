#include <doctest/doctest.h>

#include "actors/context_actor.h"
#include "actors/recorder.h"

using namespace seer;

TEST_CASE("context: the first length of a group is its estimate, and only a longer one changes it") {
  SimWorld world;
  Recorder<EstimateSink, GroupEstimate> rollout(world);
  auto context = world.spawn<ContextActor>();
  const auto seen = [&](uint32_t group, uint32_t sample, int64_t tokens) {
    rt::post(context, LengthSeen{{GroupId{group}, sample}, tokens, rollout.handle()});
    world.run_until(world.now_us() + 10);
    return rollout.all<GroupEstimate>().back();
  };
  CHECK(seen(0, 0, 120).estimated_tokens == 120);
  CHECK(seen(0, 1, 80).estimated_tokens == 120);
  CHECK(seen(0, 2, 300).estimated_tokens == 300);
  const GroupEstimate other = seen(1, 0, 7);
  CHECK(other.group == GroupId{1});
  CHECK(other.estimated_tokens == 7);
  CHECK(rollout.all<GroupEstimate>().size() == 4);  // one answer for each
}
