#include "gpu/step_runner.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "gpu/given_times.h"

namespace seer {
namespace {

/// These times, the last one again and again.
GivenTimes::StepUs one_by_one(std::vector<int64_t> step_us) {
  return [step_us = std::move(step_us), i = size_t{0}](const StepShape&) mutable { return step_us[std::min(i++, step_us.size() - 1)]; };
}

TEST_CASE("step runner: run() gives the result of that step, one after the other") {
  StepRunner runner(std::make_unique<GivenTimes>(one_by_one({30, 40})));
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
  constexpr int64_t kZeros = 5 * GivenTimes::kBlockBytes;
  CHECK(std::count(seen.memory.begin(), seen.memory.begin() + kZeros, std::byte{0}) == kZeros);
  CHECK(std::count(seen.memory.begin() + kZeros, seen.memory.end(), std::byte{1}) == std::ssize(seen.memory) - kZeros);
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
    auto engine = std::make_unique<GivenTimes>(one_by_one(std::move(step_us)));
    const GivenTimes& seen = *engine;
    StepRunner runner(std::move(engine));
    const StepSequences shapes = {{}};
    const double us = typical_step_us(runner, shapes);
    CHECK(seen.steps == steps);
    return us;
  };
  CHECK(measured({90'000, 5000, 1000, 9000}, 1 + 3) == 5000);
  CHECK(measured({90'000, 70'000, 60'000, 80'000}, 1 + 3) == 70'000);  // a few even of slow steps
  CHECK(measured({90'000, 290'000, 280'000, 10'000}, 1 + 2) == 290'000);  // fewer of very slow ones
  CHECK(measured({90'000, 300'000, 10'000}, 1 + 1) == 300'000);
  CHECK(measured({90'000, 100}, 1 + 15) == 100);                       // and not many of fast ones
  CHECK(measured({0}, 1 + 15) == 1);                                   // a time is never 0
}

}  // namespace
}  // namespace seer
