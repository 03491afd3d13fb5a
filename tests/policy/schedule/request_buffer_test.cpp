#include "actors/policy/schedule/request_buffer.h"

#include <doctest/doctest.h>

using namespace seer;

namespace {

GroupSpec group_of(uint32_t id, uint32_t samples) {
  GroupSpec spec;
  spec.id = {id};
  spec.prompt_ids.assign(20, 1);
  spec.samples = samples;
  spec.sampling.max_tokens = 100;
  return spec;
}

}  // namespace

TEST_CASE("request buffer: a new group waits, with sample 0 as its probe, and its hint or its limit as estimate") {
  RequestBuffer buffer;
  buffer.add_group(group_of(3, 4), 77);
  CHECK(buffer.totals().waiting == 4);
  CHECK(buffer.group({3}).estimated_tokens == 100);
  for (const auto& [id, hint, estimate] : {std::tuple{4u, 30, 30}, {5u, 300, 100}}) {
    GroupSpec hinted = group_of(id, 1);
    hinted.length_hint = hint;
    buffer.add_group(hinted, 77);
    CHECK(buffer.group({id}).estimated_tokens == estimate);
  }
  CHECK(buffer.group({3}).prompt_tokens == 20);
  CHECK(buffer.at({{3}, 0}).probe);
  CHECK_FALSE(buffer.at({{3}, 1}).probe);
  CHECK(buffer.at({{3}, 1}).waiting_since_us == 77);
  CHECK_FALSE(buffer.has_group({0}));
}

TEST_CASE("request buffer: a request goes from waiting to running and back until it finishes") {
  RequestBuffer buffer;
  buffer.add_group(group_of(0, 1), 0);
  const RequestState& request = buffer.at({{0}, 0});
  buffer.start(request.id, {1}, {0});
  CHECK(request.phase == RequestPhase::kRunning);
  buffer.progress(request.id, 10);
  buffer.end(request.id, 12, ChunkEnd::kChunkFull, 500);
  CHECK(request.phase == RequestPhase::kWaiting);
  CHECK(request.waiting_since_us == 500);
  CHECK(request.generated_tokens == 12);
  CHECK(request.instance == InstanceId{1});
  buffer.start(request.id, {1}, {0});
  CHECK(request.migrations == 0);
  buffer.end(request.id, 12, ChunkEnd::kYielded, 600);
  buffer.start(request.id, {2}, {1});
  CHECK(request.migrations == 1);
  buffer.end(request.id, 14, ChunkEnd::kPreempted, 700);
  buffer.start(request.id, {2}, {1});
  buffer.end(request.id, 20, ChunkEnd::kFinished, 800);
  CHECK(request.phase == RequestPhase::kFinished);
  CHECK(request.finished_us == 800);
  const RequestTotals& totals = buffer.totals();
  CHECK(totals.waiting == 0);
  CHECK(totals.running == 0);
  CHECK(totals.finished == 1);
  CHECK(totals.chunks == 4);
  CHECK(totals.yields == 1);
  CHECK(totals.preemptions == 1);
  CHECK(totals.migrations == 1);
  CHECK(totals.generated_tokens == 20);
}

TEST_CASE("request buffer: references stay good while groups are added") {
  RequestBuffer buffer;
  buffer.add_group(group_of(0, 2), 0);
  const RequestState& request = buffer.at({{0}, 1});
  for (uint32_t id = 1; id < 500; ++id) buffer.add_group(group_of(id, 2), 0);
  CHECK(&request == &buffer.at({{0}, 1}));
}
