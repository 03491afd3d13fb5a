#include "gpu/sim/sim_engine.h"

#include <doctest/doctest.h>

#include <map>
#include <variant>

#include "protocols/hash.h"

namespace seer {
namespace {

/// Virtual time: runs what waits in order of time, then of arrival.
struct VirtualTime {
  int64_t now_ns = 0;
  std::multimap<int64_t, std::function<void()>> waiting;
  void run() {
    while (!waiting.empty()) {
      auto first = waiting.extract(waiting.begin());
      now_ns = first.key();
      first.mapped()();
    }
  }
};

void oracle(uint64_t seed, int64_t position, std::span<SampledToken> sampled) {
  for (SampledToken& token : sampled)
    token.token = static_cast<int32_t>(hash_pair(seed, static_cast<uint64_t>(position++)) % 1000);
}

/// An engine with its own virtual time; results come with the time at which each was notified.
struct Simulated {
  VirtualTime time;
  std::vector<EngineResult> results;
  std::vector<int64_t> ends_us;
  std::unique_ptr<Engine> engine;

  explicit Simulated(SimEngineConfig config) {
    engine = std::make_unique<SimEngine>(
        std::move(config), oracle,
        [this](int64_t delay_ns, std::function<void()> work) { time.waiting.emplace(time.now_ns + delay_ns, std::move(work)); },
        SimEngine::Clock{.now_ns = [this] { return time.now_ns; }, .fired_ns = [this] { return time.now_ns; }});
    engine->set_notify([this] {
      for (EngineResult& result : engine->take_results()) {
        results.push_back(std::move(result));
        ends_us.push_back(time.now_ns / 1000);
      }
    });
  }
  StepResult step(SequenceStep sequence) {
    engine->submit(StepBatch{.id = 1, .sequences = {std::move(sequence)}});
    time.run();
    return std::get<StepResult>(std::move(results.back()));
  }
};

SimEngineConfig with_kv() {
  SimEngineConfig config;
  config.info.block_tokens = 4;
  config.info.block_bytes = 4 * kSimTokenBytes;
  config.info.device_blocks = 8;
  return config;
}

SequenceStep rows_of(int64_t start, std::vector<int32_t> tokens, std::vector<DeviceBlockId> blocks, int32_t sample_rows) {
  SequenceStep step;
  step.start = start;
  step.tokens = std::move(tokens);
  step.blocks = std::move(blocks);
  step.sample_rows = sample_rows;
  step.seed = 9;
  step.sampling = std::make_shared<const SamplingParams>();
  return step;
}

TEST_CASE("sim engine: work takes its time in order: a step by its rows, a copy by its blocks") {
  Simulated sim(with_kv());
  std::vector<std::byte> host(4 * kSimTokenBytes);
  sim.engine->submit(StepBatch{.id = 1, .sequences = {rows_of(0, {1, 2, 3}, {0}, 1)}});
  sim.engine->submit(CopyBatch{.id = 2, .blocks = {{.block = 0, .host = host}, {.block = 1, .host = host}}});
  sim.engine->submit(StepBatch{.id = 3, .sequences = {rows_of(3, {4}, {0}, 1), rows_of(0, {4, 5}, {1}, 1)}});
  sim.time.run();
  CHECK(sim.ends_us == std::vector<int64_t>{1030, 1040, 2070});  // 1000 a step, 10 a row, 5 a block
  CHECK(std::get<StepResult>(sim.results.at(0)).step_us == 1030);
  CHECK(std::get<StepResult>(sim.results.at(2)).id == 3);
}

TEST_CASE("sim engine: a cost model is asked for the step's shape, and told of the step when it ends") {
  SimEngineConfig config = with_kv();
  StepShape asked, told;
  config.step_ns = [&](const StepShape& shape) { return asked = shape, int64_t{77'000}; };
  config.on_steps = [&](const StepShape& shape, int64_t ns, int64_t steps) {
    told = shape;
    CHECK(ns == 77'000);
    CHECK(steps == 1);
  };
  Simulated sim(config);
  CHECK(sim.step(rows_of(0, {1, 2, 3}, {0}, 2)).step_us == 77);
  StepShape expected;
  expected.add(0, 3, 2);
  CHECK(asked == expected);
  CHECK(told == expected);
}

TEST_CASE("sim engine: tokens are the oracle's, and log-probabilities show KV of another place, prefix or version") {
  Simulated sim(with_kv());
  const std::vector<SampledToken> whole = sim.step(rows_of(0, {1, 2, 3, 4, 5}, {2, 3}, 5)).sampled.at(0);
  SampledToken token;
  oracle(9, 5, {&token, 1});
  CHECK(whole.at(4).token == token.token);

  sim.step(rows_of(0, {1, 2, 3, 4}, {5}, 0));
  CHECK(sim.step(rows_of(4, {5}, {5, 6}, 1)).sampled.at(0).at(0) == whole.at(4));  // however it is cut
  CHECK(sim.step(rows_of(4, {5}, {3, 6}, 1)).sampled.at(0).at(0) != whole.at(4));  // another block
  sim.step(rows_of(0, {1, 9, 3, 4}, {5}, 0));
  CHECK(sim.step(rows_of(4, {5}, {5, 6}, 1)).sampled.at(0).at(0) != whole.at(4));  // another prefix

  sim.engine->submit(StageWeights{.id = 1, .version = WeightVersion{2}, .folder = ""});
  sim.time.run();
  sim.engine->submit(SwitchWeights{.id = 2});
  sim.time.run();
  CHECK(sim.engine->info().version == WeightVersion{2});
  const StepResult next = sim.step(rows_of(0, {1, 2, 3, 4, 5}, {2, 3}, 5));
  CHECK(next.version == WeightVersion{2});
  CHECK(next.sampled.at(0).at(4).token == token.token);
  CHECK(next.sampled.at(0).at(4) != whole.at(4));
}

TEST_CASE("sim engine: new weights that cannot be read leave those that it has") {
  SimEngineConfig config = with_kv();
  config.stage_fault = [] { return Status(fail(Code::kIo, "no such folder")); };
  Simulated sim(config);
  const WeightVersion before = sim.engine->info().version;
  sim.engine->submit(StageWeights{.id = 1, .version = WeightVersion{2}, .folder = ""});
  sim.time.run();
  REQUIRE(sim.results.size() == 1);
  CHECK(std::get<WeightResult>(sim.results[0]).status.error().detail == "no such folder");
  CHECK(sim.engine->info().version == before);
}

/// Without KV bytes; drafts gain what a hash says.
SimEngineConfig without_kv(int32_t steps_max) {
  SimEngineConfig config;
  config.info.block_tokens = 16;
  config.info.steps_max = steps_max;
  config.has_kv = false;
  config.draft_ns = 3000;
  config.step_ns = [](const StepShape& s) { return 100'000 * s.sequences + 1000 * (s.rows + s.kv_tokens); };
  config.last_position = [](uint64_t) { return int64_t{1000}; };
  config.accepted = [](uint64_t seed, int64_t position, int64_t draft_tokens, std::span<int32_t> stand) {
    for (int32_t& tokens : stand) {
      tokens = static_cast<int32_t>(hash_pair(seed, static_cast<uint64_t>(position)) % static_cast<uint64_t>(draft_tokens + 1));
      position += 1 + tokens;
    }
  };
  return config;
}

TEST_CASE("sim engine: many steps at once give the tokens and the time of as many orders of one step") {
  constexpr int64_t kSteps = 12;
  Simulated together(without_kv(32)), single(without_kv(1));
  for (Simulated* sim : {&together, &single}) {
    StepRun& run = *sim->engine->step_run();
    run.join(0, rows_of(20, {1}, {}, 1), StepsLimit{.gain_max = 500, .covered = 1600});
    run.join(1, rows_of(33, {1, 2, 3, 4}, {}, 4), StepsLimit{.gain_max = 500, .covered = 1600});
  }
  together.engine->submit(StepOrder{.id = 1, .steps = kSteps, .blocks_free = 100});
  together.time.run();
  const auto all = std::get<StepResult>(together.results.at(0));
  CHECK(all.steps == kSteps);

  int64_t step_us = 0;
  std::vector<std::vector<SampledToken>> sampled(2);
  for (int64_t step = 0; step < kSteps; ++step) {
    single.engine->submit(StepOrder{.id = 1, .steps = 1, .blocks_free = 100});
    single.time.run();
    CHECK(single.engine->step_run()->take_block_needs(1).empty());
    step_us += std::get<StepResult>(single.results.back()).step_us;
    for (int32_t slot = 0; slot < 2; ++slot) {
      GainedTokens gained;
      single.engine->step_run()->take(slot, 1, gained);
      CHECK(gained.steps == 1);
      auto& tokens = sampled[static_cast<size_t>(slot)];
      tokens.insert(tokens.end(), gained.sampled.begin(), gained.sampled.end());
    }
  }
  CHECK(all.step_us == step_us);
  CHECK(together.time.now_ns == single.time.now_ns);
  for (int32_t slot = 0; slot < 2; ++slot) {
    GainedTokens gained;
    together.engine->step_run()->take(slot, kSteps, gained);
    CHECK(gained.steps == kSteps);
    CHECK(gained.sampled == sampled[static_cast<size_t>(slot)]);
  }
  CHECK(sampled[0].size() == kSteps);
  CHECK(sampled[1].size() > kSteps);
}

}  // namespace
}  // namespace seer
