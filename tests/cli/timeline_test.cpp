#include "cli/timeline.h"

#include <doctest/doctest.h>

using namespace seer;

TEST_CASE("timeline: between two stretches the instance has nothing to do, and after the last neither") {
  TimelineRecorder recorder;
  recorder.add(0, 1, 4, 0.5);
  recorder.add(3, 4, 2, 0.25);
  const InstanceTimeline samples = recorder.take(10);
  REQUIRE(samples.size() == 5);
  CHECK(samples[0].running == 4);
  CHECK(samples[1].time_s == 1);
  CHECK(samples[1].running == 0);
  CHECK(samples[2].time_s == 3);
  CHECK(samples[2].kv_used_share == 0.25);
  CHECK(samples[3].time_s == 4);
  CHECK(samples[3].running == 0);
  CHECK(samples[4].time_s == 10);
}

TEST_CASE("timeline: however many stretches there are, the samples are bounded and span all of the time") {
  TimelineRecorder recorder;
  for (int i = 0; i < 1'000'000; ++i) recorder.add(i, i + 1, 1 + i / 1000, 0);
  const InstanceTimeline samples = recorder.take(1'000'000);
  CHECK(samples.size() <= TimelineRecorder::kSamplesMax + 2);
  CHECK(samples.size() >= TimelineRecorder::kSamplesMax / 8);
  for (size_t i = 1; i < samples.size(); ++i) {
    CHECK(samples[i].time_s >= samples[i - 1].time_s);
    CHECK(samples[i].time_s - samples[i - 1].time_s < 20'000);
    if (samples[i].running > 0) CHECK(samples[i].running == 1 + static_cast<int64_t>(samples[i].time_s) / 1000);
  }
}
