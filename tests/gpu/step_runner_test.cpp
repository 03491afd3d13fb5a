#include "gpu/step_runner.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <variant>

#include "protocols/kv.h"

namespace seer {
namespace {

constexpr int64_t kBlockBytes = 64;

/// An engine of 8 blocks of nothing: steps take the times that it is given, the last one again and again.
class GivenTimes final : public Engine {
 public:
  explicit GivenTimes(std::vector<int64_t> step_us = {1}) : step_us_(std::move(step_us)), memory(8 * kBlockBytes, std::byte{1}) {
    info_.vocab_size = 50;
    info_.block_tokens = 16;
    info_.block_bytes = kBlockBytes;
    info_.device_blocks = 8;
  }
  const EngineInfo& info() const override { return info_; }
  void set_notify(std::function<void()> notify) override { notify_ = std::move(notify); }
  void submit(EngineWork work) override {
    if (const auto* copy = std::get_if<CopyBatch>(&work)) {
      for (const BlockCopy& one : copy->blocks)
        if (crc32c(one.host) == one.crc32c) std::memcpy(memory.data() + one.block * kBlockBytes, one.host.data(), kBlockBytes);
      results_.push_back(CopyResult{.id = copy->id, .direction = copy->direction, .crc32c = {}});
    } else {
      const size_t step = std::min<size_t>(static_cast<size_t>(steps++), step_us_.size() - 1);
      results_.push_back(StepResult{.id = std::get<StepBatch>(work).id, .sampled = {}, .step_us = step_us_[step]});
    }
    notify_();
  }
  std::vector<EngineResult> take_results() override { return std::exchange(results_, {}); }

 private:
  std::vector<int64_t> step_us_;
  EngineInfo info_;
  std::function<void()> notify_;
  std::vector<EngineResult> results_;

 public:
  std::vector<std::byte> memory;
  int64_t steps = 0;
};

TEST_CASE("step runner: run() gives the result of that step, one after the other") {
  StepRunner runner(std::make_unique<GivenTimes>(std::vector<int64_t>{30, 40}));
  const StepResult first = runner.run({.id = 3, .sequences = {}}), second = runner.run({.id = 4, .sequences = {}});
  CHECK(first.id == 3);
  CHECK(first.step_us == 30);
  CHECK(second.id == 4);
  CHECK(second.step_us == 40);
}

TEST_CASE("step runner: zero_blocks writes zeros to the first blocks and to no other") {
  auto engine = std::make_unique<GivenTimes>();
  const GivenTimes& seen = *engine;
  StepRunner runner(std::move(engine));
  runner.zero_blocks(5);
  CHECK(std::count(seen.memory.begin(), seen.memory.begin() + 5 * kBlockBytes, std::byte{0}) == 5 * kBlockBytes);
  CHECK(std::count(seen.memory.begin() + 5 * kBlockBytes, seen.memory.end(), std::byte{1}) == 3 * kBlockBytes);
}

TEST_CASE("step runner: a synthetic step has the shape, in blocks of its own and tokens of the vocabulary") {
  const StepSequences shapes = {{.start = 15, .rows = 1, .sample_rows = 1}, {.start = 16, .rows = 4, .sample_rows = 4},
                                {.start = 0, .rows = 33, .sample_rows = 0}};
  const GivenTimes engine;
  CHECK(blocks_of(shapes, 16) == 1 + 2 + 3);
  const StepBatch batch = synthetic_step(engine.info(), shapes);
  StepShape shape;
  std::set<DeviceBlockId> blocks;
  for (const SequenceStep& s : batch.sequences) {
    shape.add(s.start, std::ssize(s.tokens), s.sample_rows);
    CHECK(s.start + std::ssize(s.tokens) <= std::ssize(s.blocks) * 16);
    blocks.insert(s.blocks.begin(), s.blocks.end());
    CHECK(s.sampling != nullptr);
    for (const int32_t token : s.tokens) CHECK((token >= 0 && token < 50));
  }
  CHECK(blocks == std::set<DeviceBlockId>{0, 1, 2, 3, 4, 5});
  CHECK(shape == step_shape(shapes));
  CHECK(shape.rows == 38);
  CHECK(shape.sampled_rows == 5);
  CHECK(shape.kv_tokens == 16 + 20 + 33);
}

TEST_CASE("step runner: the typical time is the median of a few steps after one that does not count") {
  const auto measured = [](std::vector<int64_t> step_us, int64_t steps) {
    auto engine = std::make_unique<GivenTimes>(std::move(step_us));
    const GivenTimes& seen = *engine;
    StepRunner runner(std::move(engine));
    const StepSequences shapes = {{}};
    const double us = typical_step_us(runner, shapes);
    CHECK(seen.steps == steps);
    return us;
  };
  CHECK(measured({90'000, 5000, 1000, 9000}, 1 + 3) == 5000);
  CHECK(measured({90'000, 70'000, 60'000, 80'000}, 1 + 3) == 70'000);  // a few even of slow steps
  CHECK(measured({90'000, 100}, 1 + 15) == 100);                       // and not many of fast ones
  CHECK(measured({0}, 1 + 15) == 1);                                   // a time is never 0
}

}  // namespace
}  // namespace seer
