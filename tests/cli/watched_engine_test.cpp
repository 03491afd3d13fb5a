#include "cli/watched_engine.h"

#include <doctest/doctest.h>

#include <memory>
#include <utility>
#include <vector>

#include "gpu/row_engine.h"

using namespace seer;

namespace {

struct Watched {
  explicit Watched(std::shared_ptr<LoadHistory> history) : engine(watch_engine(rows, std::move(history))) {}
  void join(int32_t slot, std::vector<DeviceBlockId> blocks) {
    SequenceStep step;
    step.tokens = {7};
    step.sample_rows = 1;
    step.sampling = std::make_shared<const SamplingParams>();
    const auto covered = std::ssize(blocks) * static_cast<int64_t>(engine->info().block_tokens);
    step.start = covered - 1;
    step.blocks = std::move(blocks);
    engine->step_run()->join(slot, step, StepsLimit{.gain_max = 100, .covered = covered});
  }
  void step() {
    engine->submit(StepOrder{});
    CHECK(engine->take_results().size() == 1);
  }

  std::shared_ptr<RowEngine> rows = std::make_shared<RowEngine>(10);
  std::shared_ptr<Engine> engine;
};

}  // namespace

TEST_CASE("watched engine: work and results pass through; a step is a sample, a shared block counts once") {
  const auto history = std::make_shared<LoadHistory>(std::make_shared<LoadHistory::Clock>());
  Watched watched(history);
  StepRun& steps = *watched.engine->step_run();
  watched.join(0, {0, 1, 2});
  watched.join(1, {0, 1, 3});
  watched.join(2, {0, 4});
  watched.engine->submit(StepOrder{.id = 7});
  watched.engine->submit(CopyBatch{.id = 8, .blocks = {}});
  const std::vector<EngineResult> results = watched.engine->take_results();
  REQUIRE(results.size() == 2);
  CHECK(std::get<StepResult>(results[0]).id == 7);
  CHECK(std::get<CopyResult>(results[1]).id == 8);
  REQUIRE(watched.rows->steps.size() == 1);
  CHECK(watched.rows->steps[0].size() == 3);
  GainedTokens gained;
  steps.take(1, 1, gained);
  CHECK(gained.sampled.size() == 1);
  CHECK(steps.take_block_needs(1).size() == 3);
  const InstanceTimeline samples = history->take(1e6);
  REQUIRE(samples.size() >= 2);
  CHECK(samples.front().running == 3);
  CHECK(samples.front().kv_used_share == 0.5);
  CHECK(samples.back().running == 0);
}

TEST_CASE("watched engine: blocks count from when they are granted until their sequence leaves") {
  const auto history = std::make_shared<LoadHistory>(std::make_shared<LoadHistory::Clock>());
  Watched watched(history);
  StepRun& steps = *watched.engine->step_run();
  watched.join(0, {0});
  watched.join(1, {1});
  watched.step();
  steps.leave(1);
  steps.grant(0, 5);
  steps.grant(0, 6);
  watched.step();
  double share = 0;
  for (const LoadSample& sample : history->take(1e6)) share = sample.running == 1 ? sample.kv_used_share : share;
  CHECK(share == 0.3);
}

TEST_CASE("watched engine: instances of a rollout have one clock, and a restarted engine goes on in its timeline") {
  const auto clock = std::make_shared<LoadHistory::Clock>();
  const auto first = std::make_shared<LoadHistory>(clock), second = std::make_shared<LoadHistory>(clock);
  const auto run = [](const std::shared_ptr<LoadHistory>& history) {
    Watched watched(history);
    watched.join(0, {0});
    watched.step();
  };
  run(first);
  run(second);
  run(first);
  const InstanceTimeline one = first->take(1e6), other = second->take(1e6);
  CHECK(one.front().time_s == 0);  // the clock starts with the first step of any
  CHECK(other.front().time_s > 0);
  int64_t steps = 0;
  for (const LoadSample& sample : one) steps += sample.running;
  CHECK(steps == 2);
}
