// Measures how fast each policy decides, in the steady state of a large iteration: 64 instances full of running
// requests, 10 000 waiting. One turn ends a chunk somewhere and asks for placements until there are none, as
// rollout_actor does. Rates are per second of CPU time, so that a busy machine does not change them much. Chunks end
// after few tokens, which keeps the fleet equally full. Prints one JSON line per policy. Usage: bench_scheduler
// [waiting] [instances] [turns]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <vector>

#include "actors/policy/schedule/policies.h"
#include "protocols/hash.h"

namespace {

using namespace seer;

constexpr int64_t kPromptTokens = 512;
constexpr int64_t kLimitTokens = 32768;
constexpr uint32_t kGroupSize = 8;
constexpr int32_t kRowsMax = 256;
constexpr int64_t kKvBlocks = 8192;
constexpr int kRepeats = 5;

struct Turns {
  double seconds = 0;
  int64_t placements = 0;
};

struct Fleet {
  std::unique_ptr<ChunkScheduler> scheduler;
  std::vector<RequestId> running;
  int64_t now_us = 0;
  uint64_t draws = 0;

  int64_t place_all() {
    int64_t placed = 0;
    while (auto placement = scheduler->next(now_us)) {
      running.push_back(placement->request);
      ++placed;
    }
    return placed;
  }

  Turns turn(int64_t count) {
    Turns turns;
    const std::clock_t start = std::clock();
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t draw = mix64(draws++);
      std::swap(running[draw % running.size()], running.back());
      const RequestId request = running.back();
      running.pop_back();
      const int64_t generated = scheduler->requests().at(request).generated_tokens;
      now_us += 1000;
      scheduler->progressed(request, generated + 2);
      scheduler->chunk_ended(request, generated + 4, ChunkEnd::kChunkFull, now_us);
      if (i % kGroupSize == 0) scheduler->estimate_changed(request.group, 1000 + static_cast<int64_t>(draw % 8000));
      turns.placements += place_all();
    }
    turns.seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    return turns;
  }
};

Fleet make_fleet(const std::string& policy, int64_t waiting, uint32_t instances) {
  ChunkSchedulerConfig config;
  config.policy = policy;
  Fleet fleet;
  fleet.scheduler = std::move(make_chunk_scheduler(config)).value();
  for (uint32_t i = 0; i < instances; ++i)
    SEER_CHECK(fleet.scheduler
                   ->add_instance(
                       {.id = {i}, .node = {i / 8}, .kv_blocks = kKvBlocks, .block_tokens = 16, .rows_max = kRowsMax})
                   .ok());
  for (uint32_t group = 0; fleet.scheduler->waiting_count() < waiting; ++group) {
    GroupSpec spec;
    spec.id = {group};
    spec.prompt_ids.assign(kPromptTokens, 1);
    spec.samples = kGroupSize;
    spec.sampling.max_tokens = kLimitTokens;
    spec.known_tokens.assign(kGroupSize, 1000 + static_cast<int64_t>(mix64(group) % 8000));
    SEER_CHECK(fleet.scheduler->add_group(spec, 0).ok());
    fleet.place_all();
  }
  return fleet;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t waiting = argc > 1 ? std::atoll(argv[1]) : 10'000;
  const auto instances = static_cast<uint32_t>(argc > 2 ? std::atoi(argv[2]) : 64);
  const int64_t turns = argc > 3 ? std::atoll(argv[3]) : 100'000;
  for (const std::string& policy : chunk_policy_names()) {
    Fleet fleet = make_fleet(policy, waiting, instances);
    std::vector<double> rates;
    int64_t placements = 0;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      const Turns done = fleet.turn(turns);
      rates.push_back(static_cast<double>(done.placements) / done.seconds);
      placements += done.placements;
    }
    std::sort(rates.begin(), rates.end());
    const nlohmann::ordered_json line = {{"bench", "scheduler"},
                                         {"policy", policy},
                                         {"waiting", fleet.scheduler->waiting_count()},
                                         {"running", fleet.scheduler->running_count()},
                                         {"instances", instances},
                                         {"placements", placements},
                                         {"decisions_per_s", static_cast<int64_t>(rates[kRepeats / 2])},
                                         {"decisions_per_s_min", static_cast<int64_t>(rates.front())},
                                         {"decisions_per_s_max", static_cast<int64_t>(rates.back())}};
    std::printf("%s\n", line.dump().c_str());
  }
}
