// FleetSim: a rollout iteration in a few lines, to try a ChunkScheduler on random lengths. Instances step together,
// each running request gains a few tokens per step, blocks are counted exactly as in an engine, and an instance that
// runs out of blocks makes the request with the largest yield_rank give way. It keeps its own counts and fails the test
// as soon as the scheduler breaks a promise of chunk_scheduler.h.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "actors/policy/schedule/policies.h"
#include "actors/policy/schedule/length_estimator.h"

namespace seer {

struct FleetSetup {
  ChunkSchedulerConfig config;
  uint64_t seed = 1;
  std::vector<int64_t> kv_blocks = {64, 64, 64, 64};  // one instance each, two per node
  int32_t rows_max = 16;
  uint32_t groups = 20;
  uint32_t samples = 4;
  int64_t prompt_tokens_max = 60;
  int64_t max_tokens = 400;
  int64_t step_tokens_max = 1;  // more: as with drafting
  double loss_probability = 0;  // per step: an instance goes, by crash or drain, and comes back after a while
};

struct FleetResult {
  int64_t steps = 0;
  int64_t yields = 0;
  int64_t preemptions = 0;
  int64_t migrations = 0;
  std::vector<Placement> placements;
};

class FleetSim {
 public:
  explicit FleetSim(const FleetSetup& setup)
      : setup_(setup), rng_(setup.seed), scheduler_(std::move(make_chunk_scheduler(setup.config)).value()) {
    for (uint32_t id = 0; id < setup.kv_blocks.size(); ++id) add_instance(id);
    for (uint32_t id = 0; id < setup.groups; ++id) add_group(id);
  }

  FleetResult run() {
    const int64_t steps_max = 100 * setup_.groups * setup_.samples * setup_.max_tokens;
    place_all();
    while (finished_.size() < setup_.groups * setup_.samples) {
      REQUIRE(++result_.steps < steps_max);
      now_us_ += 10'000;
      lose_or_bring_back();
      for (auto& [id, instance] : instances_) step(id, instance);
      place_all();
    }
    const RequestTotals& totals = scheduler_->requests().totals();
    REQUIRE(totals.waiting == 0);
    REQUIRE(totals.running == 0);
    REQUIRE(totals.finished == static_cast<int64_t>(finished_.size()));
    result_.yields = totals.yields;
    result_.preemptions = totals.preemptions;
    result_.migrations = totals.migrations;
    return result_;
  }

 private:
  struct Request {
    int64_t prompt_tokens = 0;
    int64_t length = 0;  // where it will stop; known to the scheduler, for the oracles
    int64_t generated = 0;
    int64_t reported = 0;  // of `generated`, what the scheduler was told
    bool running = false;
  };
  struct Run {
    Placement placement;
    int64_t stop_at = 0;  // generated tokens at which the chunk is full
    uint64_t start = 0;
  };
  struct Instance {
    int64_t kv_blocks = 0;
    bool present = true;
    int64_t back_at_step = 0;
    std::vector<Run> runs;
  };
  static constexpr int64_t kBlockTokens = 16;

  int64_t below(int64_t n) { return static_cast<int64_t>(rng_() % static_cast<uint64_t>(n)); }

  void add_instance(uint32_t id) {
    instances_[{id}].kv_blocks = setup_.kv_blocks[id];
    instances_[{id}].present = true;
    REQUIRE(scheduler_
                ->add_instance({.id = {id},
                                .node = {id / 2},
                                .kv_blocks = setup_.kv_blocks[id],
                                .block_tokens = kBlockTokens,
                                .rows_max = setup_.rows_max})
                .ok());
  }

  // Lengths are heavy-tailed and alike within a group.
  void add_group(uint32_t id) {
    GroupSpec spec;
    spec.id = {id};
    spec.prompt_ids.assign(static_cast<size_t>(1 + below(setup_.prompt_tokens_max)), 1);
    spec.samples = setup_.samples;
    spec.sampling.max_tokens = setup_.max_tokens;
    const double scale = static_cast<double>(setup_.max_tokens) / static_cast<double>(1 + below(20));
    for (uint32_t sample = 0; sample < setup_.samples; ++sample) {
      const auto length = static_cast<int64_t>(scale * (0.7 + 0.006 * static_cast<double>(below(100))));
      spec.known_tokens.push_back(std::clamp<int64_t>(length, 1, setup_.max_tokens));
      requests_[{spec.id, sample}] = {.prompt_tokens = static_cast<int64_t>(spec.prompt_ids.size()),
                                      .length = spec.known_tokens.back()};
    }
    REQUIRE(scheduler_->add_group(spec, 0).ok());
  }

  void place_all() {
    while (auto placement = scheduler_->next(now_us_)) accept(*placement);
  }

  void accept(const Placement& placement) {
    Request& request = requests_.at(placement.request);
    Instance& instance = instances_.at(placement.instance);
    REQUIRE_FALSE(request.running);
    REQUIRE_FALSE(finished_.contains(placement.request));
    REQUIRE(instance.present);
    REQUIRE(static_cast<int32_t>(instance.runs.size()) < setup_.rows_max);
    REQUIRE(placement.max_new_tokens >= 1);
    REQUIRE(request.generated + placement.max_new_tokens <= setup_.max_tokens);
    REQUIRE(request.prompt_tokens + request.generated + placement.max_new_tokens <= instance.kv_blocks * kBlockTokens);
    if (find_policy(setup_.config.policy)->whole_groups) {
      REQUIRE_FALSE(placement.keep_kv);
      if (setup_.loss_probability == 0)
        REQUIRE(homes_.try_emplace(placement.request.group, placement.instance).first->second == placement.instance);
    } else if (setup_.config.chunk_tokens > 0) {
      REQUIRE(placement.max_new_tokens <= setup_.config.chunk_tokens);
    }
    instance.runs.push_back({placement, request.generated + placement.max_new_tokens, ++starts_});
    request.running = true;
    REQUIRE(promised_blocks(instance) <= instance.kv_blocks);
    REQUIRE(reported_blocks(instance) <= instance.kv_blocks);
    result_.placements.push_back(placement);
  }

  /// Whole blocks of each prompt once, plus the own blocks of each request.
  template <class OwnBlocks>
  int64_t sum_blocks(const Instance& instance, OwnBlocks own_blocks) const {
    int64_t blocks = 0;
    std::set<GroupId> prompts;
    for (const Run& run : instance.runs) {
      const int64_t prompt = requests_.at(run.placement.request).prompt_tokens / kBlockTokens;
      if (prompts.insert(run.placement.request.group).second) blocks += prompt;
      blocks += own_blocks(run) - prompt;
    }
    return blocks;
  }
  int64_t promised_blocks(const Instance& instance) const {
    return sum_blocks(instance, [](const Run& run) { return run.placement.credit_blocks; });
  }
  int64_t reported_blocks(const Instance& instance) const {
    return sum_blocks(instance, [&](const Run& run) {
      const Request& request = requests_.at(run.placement.request);
      return (request.prompt_tokens + request.reported + kBlockTokens - 1) / kBlockTokens;
    });
  }
  int64_t blocks_after(const Instance& instance, int64_t step_tokens) const {
    return sum_blocks(instance, [&](const Run& run) {
      const Request& request = requests_.at(run.placement.request);
      const int64_t generated = std::min({request.generated + step_tokens, run.stop_at, request.length});
      return (request.prompt_tokens + generated + kBlockTokens - 1) / kBlockTokens;
    });
  }

  void step(InstanceId, Instance& instance) {
    const int64_t step_tokens = 1 + below(setup_.step_tokens_max);
    while (blocks_after(instance, step_tokens) > instance.kv_blocks) {
      REQUIRE(instance.runs.size() > 1);  // the last one running never has to give way
      auto first = std::max_element(instance.runs.begin(), instance.runs.end(), [](const Run& a, const Run& b) {
        return std::tie(a.placement.yield_rank, a.start) < std::tie(b.placement.yield_rank, b.start);
      });
      const Run run = *first;
      instance.runs.erase(first);
      end(run, run.placement.keep_kv ? ChunkEnd::kYielded : ChunkEnd::kPreempted);
    }
    std::vector<Run> ended;
    for (const Run& run : instance.runs) {
      Request& request = requests_.at(run.placement.request);
      request.generated = std::min({request.generated + step_tokens, run.stop_at, request.length});
      if (request.generated == request.length || request.generated == run.stop_at)
        ended.push_back(run);
      else if (below(4) == 0)  // reports lag behind
        scheduler_->progressed(run.placement.request, request.reported = request.generated);
    }
    std::erase_if(instance.runs, [&](const Run& run) {
      return std::any_of(ended.begin(), ended.end(), [&](const Run& gone) { return gone.start == run.start; });
    });
    for (const Run& run : ended) {
      const Request& request = requests_.at(run.placement.request);
      end(run, request.generated == request.length ? ChunkEnd::kFinished : ChunkEnd::kChunkFull);
    }
  }

  void end(const Run& run, ChunkEnd end) {
    Request& request = requests_.at(run.placement.request);
    request.running = false;
    request.reported = request.generated;
    scheduler_->chunk_ended(run.placement.request, request.generated, end, now_us_);
    if (end != ChunkEnd::kFinished) return;
    REQUIRE(finished_.insert(run.placement.request).second);
    const GroupId group = run.placement.request.group;
    lengths_.observe(group, request.length);
    scheduler_->estimate_changed(group, lengths_.estimate(group));
  }

  // A crashed instance returns its requests at once; a drained one runs its chunks to their end. At least one stays.
  void lose_or_bring_back() {
    for (auto& [id, instance] : instances_)
      if (!instance.present && instance.runs.empty() && result_.steps >= instance.back_at_step) add_instance(id.value);
    if (setup_.loss_probability == 0 || below(1'000'000) >= static_cast<int64_t>(1e6 * setup_.loss_probability)) return;
    const InstanceId id{static_cast<uint32_t>(1 + below(static_cast<int64_t>(instances_.size()) - 1))};
    Instance& instance = instances_.at(id);
    if (!instance.present) return;
    instance.present = false;
    instance.back_at_step = result_.steps + below(200);
    scheduler_->remove_instance(id);
    if (below(2) == 0) return;
    std::vector<Run> lost;
    lost.swap(instance.runs);
    for (const Run& run : lost) end(run, ChunkEnd::kPreempted);
  }

  const FleetSetup setup_;
  std::mt19937_64 rng_;
  std::unique_ptr<ChunkScheduler> scheduler_;
  LengthEstimator lengths_;
  std::map<InstanceId, Instance> instances_;
  std::map<RequestId, Request> requests_;
  std::map<GroupId, InstanceId> homes_;
  std::set<RequestId> finished_;
  int64_t now_us_ = 0;
  uint64_t starts_ = 0;
  FleetResult result_;
};

}  // namespace seer
