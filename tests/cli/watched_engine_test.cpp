#include "cli/watched_engine.h"

#include <doctest/doctest.h>

#include <utility>

using namespace seer;

namespace {

/// Answers each step at once.
class EchoEngine : public Engine {
 public:
  EchoEngine() { info_.device_blocks = 10; }
  const EngineInfo& info() const override { return info_; }
  void set_notify(std::function<void()> notify) override { notify_ = std::move(notify); }
  void submit(EngineWork work) override {
    if (const auto* step = std::get_if<StepBatch>(&work)) results_.push_back(StepResult{.id = step->id, .sampled = {}});
    if (const auto* copy = std::get_if<CopyBatch>(&work)) results_.push_back(CopyResult{.id = copy->id, .crc32c = {}});
    if (notify_) notify_();
  }
  std::vector<EngineResult> take_results() override { return std::exchange(results_, {}); }

 private:
  EngineInfo info_;
  std::function<void()> notify_;
  std::vector<EngineResult> results_;
};

StepBatch step(uint64_t id, const std::vector<std::vector<DeviceBlockId>>& tables) {
  StepBatch batch{.id = id, .sequences = {}};
  for (const auto& blocks : tables) {
    batch.sequences.emplace_back();
    batch.sequences.back().blocks = blocks;
  }
  return batch;
}

}  // namespace

TEST_CASE("watched engine: work and results pass through; a step is a sample, a shared block counts once") {
  const auto history = std::make_shared<LoadHistory>(std::make_shared<LoadHistory::Clock>());
  const auto engine = watch_engine(std::make_shared<EchoEngine>(), history);
  int notified = 0;
  engine->set_notify([&] { ++notified; });
  engine->submit(step(7, {{0, 1, 2}, {0, 1, 3}, {0, 4}}));
  engine->submit(CopyBatch{.id = 8, .blocks = {}});
  CHECK(notified == 2);
  const std::vector<EngineResult> results = engine->take_results();
  REQUIRE(results.size() == 2);
  CHECK(std::get<StepResult>(results[0]).id == 7);
  CHECK(std::get<CopyResult>(results[1]).id == 8);
  const InstanceTimeline samples = history->take(1e6);
  REQUIRE(samples.size() >= 2);
  CHECK(samples.front().running == 3);
  CHECK(samples.front().kv_used_share == 0.5);
  CHECK(samples.back().running == 0);
}

TEST_CASE("watched engine: instances of a rollout have one clock, and a restarted engine goes on in its timeline") {
  const auto clock = std::make_shared<LoadHistory::Clock>();
  const auto first = std::make_shared<LoadHistory>(clock), second = std::make_shared<LoadHistory>(clock);
  const auto run = [](const std::shared_ptr<LoadHistory>& history) {
    const auto engine = watch_engine(std::make_shared<EchoEngine>(), history);
    engine->submit(step(1, {{0}}));
    engine->take_results();
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
