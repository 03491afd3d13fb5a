// Steps of a small engine that reach every kernel and most of its branches.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "gpu/cuda/cuda_bench.h"

namespace seer {

inline std::vector<SamplingParams> step_rules() {
  std::vector<SamplingParams> list(5);
  list[1].temperature = 0;
  list[2].repetition_penalty = 1.3f;
  list[3].top_k = 9;
  list[3].top_p = 0.9f;
  list[4].top_p = 0.7f;
  list[4].min_p = 0.05f;
  return list;
}

/// Those, and each cut beside a repetition penalty: loops over logits have a variant for it.
inline std::vector<SamplingParams> wide_rules() {
  std::vector<SamplingParams> list = step_rules();
  for (size_t i = 0; i < step_rules().size(); ++i) {
    list.push_back(list[i]);
    list.back().repetition_penalty = i % 2 == 0 ? 1.2f : 0.8f;
  }
  list.push_back({.temperature = 0.7f, .top_k = 4000, .logprob_mode = LogprobMode::kRaw});
  return list;
}

struct StepsRun {
  Status status;
  std::vector<std::vector<SampledToken>> sampled;
};

/// A few steps of five kinds: prompts in pieces, decode, verify of paths and of trees, and a prompt longer than a split beside them.
inline StepsRun run_steps_on(EngineRunner&& runner, size_t sequences) {
  std::vector<TestSequence> live;
  for (size_t i = 0; i < sequences; ++i)
    live.push_back(sequence_of(random_tokens(i == 0 ? 270 : 7 + 9 * static_cast<int>(i), 96, i), i, step_rules()[i % 5]));
  StepsRun run;
  for (const int width : {200, 100, 1, 4, 5}) {
    std::vector<SequenceStep> steps;
    for (size_t i = 0; i < live.size(); ++i) {
      TestSequence& s = live[i];
      if (width == 4) s.tokens.insert(s.tokens.end(), {1, 2, 3});  // a draft
      if (width == 5) {  // a tree below the last token, whose second child, first child or neither is right
        --s.computed;
        const int32_t right = run.sampled[run.sampled.size() - live.size() + i].back().token, wrong = (right + 1) % 96;
        s.tokens.insert(s.tokens.end(), {i % 3 == 1 ? right : wrong, i % 3 == 0 ? right : (right + 2) % 96, 5, 6});
      }
      const int64_t left = std::ssize(s.tokens) - s.computed, rows = std::min<int64_t>(left, width);
      steps.push_back(runner.plan(s, rows, rows < left ? 0 : width == 4 || width == 5 ? width : 1));
      if (width == 5 && i != 3) steps.back().parents = {-1, 0, 0, 1, 2};  // beside them a path
    }
    runner.submit(StepBatch{.id = 1, .sequences = std::move(steps)});
    auto result = std::get<StepResult>(runner.wait());
    run.status = result.status;
    if (!run.status.ok()) return run;
    for (size_t i = 0; i < live.size(); ++i) {
      run.sampled.push_back(result.sampled[i]);
      if (!result.sampled[i].empty() && width != 4) live[i].tokens.push_back(result.sampled[i].back().token);
    }
  }
  return run;
}

inline StepsRun run_steps(const std::shared_ptr<const Model>& model, CudaType type, size_t sequences = 5) {
  CudaEngineConfig config = small_config(type);
  config.rows_max = 140;  // no whole tiles: a store that is not guarded leaves the buffer
  return run_steps_on(EngineRunner(simt_engine(model, config)), sequences);
}

/// A token that a model may have that is made with overflowing_token().
inline constexpr int32_t kNotFiniteToken = 7;

/// Rows at the end of contexts of up to nine splits, one more than are added at a time, whose KV is zeros.
inline Status run_far_step(const std::shared_ptr<const Model>& model, CudaType type) {
  CudaEngineConfig config = small_config(type);
  config.device_blocks = 150;
  EngineRunner runner(simt_engine(model, config));
  StepBatch batch{.id = 1};
  for (int32_t splits = 1; splits <= 9; ++splits) {
    TestSequence s = sequence_of({5}, 1, kRandom);
    SequenceStep& step = batch.sequences.emplace_back(runner.plan(s, 1, 1));
    step.start = splits * cuda::kSplit - 3;
    while (std::ssize(step.blocks) < splits * 16) step.blocks.push_back(step.blocks[0]);  // a decode reads them all, and may read one many times
  }
  const SequenceStep step = batch.sequences.back();
  if (type == CudaType::kBf16) {  // beside them a part of a prompt, in tiles that are whole
    TestSequence prompt = sequence_of(random_tokens(370, 90, 2), 2, kRandom);
    SequenceStep& part = batch.sequences.emplace_back(runner.plan(prompt, 370, 1));
    part.start = 300;
    part.tokens.erase(part.tokens.begin(), part.tokens.begin() + 300);
  }
  runner.submit(std::move(batch));
  const Status given = std::get<StepResult>(runner.wait()).status;
  if (!given.ok()) return given;
  // Then in a slot, where the device goes on with what it sampled.
  StepRun& slots = *runner.engine().step_run();
  slots.join(0, step, StepsLimit{.gain_max = 10, .covered = 144 * 16});
  for (int order = 0; order < 2; ++order) runner.submit(StepOrder{});
  const Status first = std::get<StepResult>(runner.wait()).status;
  return first.ok() ? std::get<StepResult>(runner.wait()).status : first;
}

/// A few rows of each sampling rule over a vocabulary of several parts, sampled and scored.
inline StepsRun run_wide_steps(const std::shared_ptr<const Model>& model, CudaType type) {
  CudaEngineConfig config = small_config(type);
  config.rows_max = 140;
  EngineRunner runner(simt_engine(model, config));
  std::vector<SequenceStep> steps;
  const int32_t vocab = model->config.vocab_size;
  const std::vector<SamplingParams> rules = wide_rules();
  for (size_t i = 0; i < rules.size() + 1; ++i) {
    TestSequence s = sequence_of(random_tokens(4, vocab, i), i, rules[i % rules.size()]);
    steps.push_back(runner.plan(s, 4, 3));
    if (i == rules.size()) steps.back().targets = {1, 2, 3};
  }
  TestSequence spoiled = sequence_of({1, kNotFiniteToken}, 1, kRandom);
  steps.push_back(runner.plan(spoiled, 2, 2));
  runner.submit(StepBatch{.id = 1, .sequences = std::move(steps)});
  auto result = std::get<StepResult>(runner.wait());
  if (!result.status.ok()) return {result.status, {}};
  TestSequence few = sequence_of(random_tokens(5, vocab, 1), 1, kRandom);  // in the smaller tile of the GEMM
  runner.submit(StepBatch{.id = 2, .sequences = {runner.plan(few, 5, 0)}});
  return {std::get<StepResult>(runner.wait()).status, std::move(result.sampled)};
}

/// check_finite finds each kind of number that is not finite, at both ends of the data, and nothing in finite ones.
inline void check_finite_scan(bool f32) {
  using namespace cuda;
  constexpr size_t kCount = 1000;
  const auto device = simt::make_simt_device({});
  std::byte* const found = *device->allocate(4);
  const auto finds = [&](size_t place, uint32_t word) {
    std::vector<uint32_t> words(f32 ? kCount : kCount / 2, f32 ? 0xff7fffff : 0xff7f7f7f);  // the lowest, and likewise large
    if (word != 0) words[place] = word;
    device->clear(Stream::kSteps, found, 4);
    device->launch(Stream::kSteps, KernelId::k_check_finite, {2},
                   CheckArgs{.data = put_on(*device, words), .found = reinterpret_cast<uint32_t*>(found), .count = kCount, .f32 = f32});
    uint32_t is_found = 2;
    device->copy_out(Stream::kSteps, &is_found, found, 4);
    REQUIRE(device->wait(device->record(Stream::kSteps)).ok());
    return is_found;
  };
  CHECK(finds(0, 0) == 0);
  for (const size_t place : {size_t{0}, f32 ? kCount - 1 : kCount / 2 - 1})
    for (const uint32_t word : {0x7f800000u, 0xff800000u, 0x7fc00000u}) CHECK(finds(place, word) == 1);
}

}  // namespace seer
