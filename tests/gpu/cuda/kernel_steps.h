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

struct StepsRun {
  Status status;
  std::vector<std::vector<SampledToken>> sampled;
};

/// A few steps of four kinds: prompts in pieces, decode, verify, and a prompt longer than a split beside them.
inline StepsRun run_steps_on(EngineRunner&& runner, size_t sequences) {
  std::vector<TestSequence> live;
  for (size_t i = 0; i < sequences; ++i)
    live.push_back(sequence_of(random_tokens(i == 0 ? 270 : 7 + 9 * static_cast<int>(i), 96, i), i, step_rules()[i % 5]));
  StepsRun run;
  for (const int width : {200, 100, 1, 4}) {
    std::vector<SequenceStep> steps;
    for (TestSequence& s : live) {
      if (width == 4) s.tokens.insert(s.tokens.end(), {1, 2, 3});  // a draft
      const int64_t left = std::ssize(s.tokens) - s.computed, rows = std::min<int64_t>(left, width);
      steps.push_back(runner.plan(s, rows, rows < left ? 0 : width == 4 ? 4 : 1));
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
  config.rows_max = 100;  // no whole tiles: a store that is not guarded leaves the buffer
  return run_steps_on(EngineRunner(simt_engine(model, config)), sequences);
}

/// A few rows of each sampling rule over a vocabulary of several parts, sampled and scored.
inline StepsRun run_wide_steps(const std::shared_ptr<const Model>& model, CudaType type) {
  CudaEngineConfig config = small_config(type);
  config.rows_max = 100;
  EngineRunner runner(simt_engine(model, config));
  std::vector<SequenceStep> steps;
  const int32_t vocab = model->config.vocab_size;
  for (size_t i = 0; i < step_rules().size() + 1; ++i) {
    TestSequence s = sequence_of(random_tokens(4, vocab, i), i, step_rules()[i % step_rules().size()]);
    steps.push_back(runner.plan(s, 4, 3));
    if (i == step_rules().size()) steps.back().targets = {1, 2, 3};
  }
  runner.submit(StepBatch{.id = 1, .sequences = std::move(steps)});
  auto result = std::get<StepResult>(runner.wait());
  return {result.status, std::move(result.sampled)};
}

}  // namespace seer
