// SchedulerDesk: a scheduler made by its name, and the calls that tests make to it, with a clock that they set.
#pragma once
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/policy/schedule/policies.h"

namespace seer {

struct GroupShape {
  uint32_t id = 0;
  uint32_t samples = 1;
  int64_t prompt_tokens = 16;
  int64_t max_tokens = 160;
  std::vector<int64_t> known_tokens = {};
};

inline GroupSpec group_of(const GroupShape& shape) {
  GroupSpec spec;
  spec.id = {shape.id};
  spec.prompt_ids.assign(static_cast<size_t>(shape.prompt_tokens), 1);
  spec.samples = shape.samples;
  spec.sampling.max_tokens = shape.max_tokens;
  spec.known_tokens = shape.known_tokens;
  return spec;
}

/// A scheduler with chunks of 32 tokens and a full reserve, so that block counts are easy to follow: a request with p
/// prompt and g output tokens needs ceil((p + g + 32) / 16) + 1 blocks.
struct SchedulerDesk {
  std::unique_ptr<ChunkScheduler> scheduler;
  int64_t now_us = 0;

  explicit SchedulerDesk(const std::string& policy, ChunkSchedulerConfig config = {.chunk_tokens = 32, .reserve_share = 1.0}) {
    config.policy = policy;
    scheduler = std::move(make_chunk_scheduler(config)).value();
  }
  SchedulerDesk& instance(uint32_t id, int64_t kv_blocks, int32_t rows_max = 256) {
    REQUIRE(scheduler->add_instance({.id = {id}, .node = {id}, .kv_blocks = kv_blocks, .rows_max = rows_max}).ok());
    return *this;
  }
  SchedulerDesk& group(const GroupShape& shape) {
    REQUIRE(scheduler->add_group(group_of(shape), now_us).ok());
    return *this;
  }
  std::vector<Placement> place() {
    std::vector<Placement> placements;
    while (auto placement = scheduler->next(now_us)) placements.push_back(*placement);
    return placements;
  }
  Placement place_one() {
    const auto placements = place();
    REQUIRE(placements.size() == 1);
    return placements[0];
  }
  void end(const Placement& placement, int64_t generated, ChunkEnd end = ChunkEnd::kChunkFull) {
    scheduler->chunk_ended(placement.request, generated, end, now_us);
  }
  /// On an instance with one row: the order in which requests get it, each running one chunk of `tokens`.
  std::vector<RequestId> serve(int turns, int64_t tokens) {
    std::vector<RequestId> order;
    for (int turn = 0; turn < turns; ++turn) {
      const Placement placement = place_one();
      order.push_back(placement.request);
      now_us += 1000;
      end(placement, scheduler->requests().at(placement.request).generated_tokens + tokens);
    }
    return order;
  }
};

inline RequestId request(uint32_t group, uint32_t sample) { return {{group}, sample}; }
inline std::vector<RequestId> requests_of(const std::vector<Placement>& placements) {
  std::vector<RequestId> ids;
  for (const Placement& placement : placements) ids.push_back(placement.request);
  return ids;
}
using Order = std::vector<RequestId>;

}  // namespace seer
