// What the tests of engines share: tiny models, sequences, and the plainest run of one as the reference for its bits.
#pragma once
#include <doctest/doctest.h>

#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gpu/accept_draft.h"
#include "gpu/engine_runner.h"
#include "gpu/tiny_model.h"

namespace seer {

inline std::shared_ptr<const Model> tiny(const std::string& kind, const std::string& dtype,
                                         const nlohmann::json& changes = nlohmann::json::object(),
                                         WeightType weights = WeightType::kAsStored, const TinyEdit& edit = {}) {
  TestFolder folder;
  write_tiny_model(folder.path(), tiny_config(kind, changes), dtype, 7, edit);
  auto model = load_model(folder.path(), weights);
  REQUIRE_MESSAGE(model.ok(), model.error().detail);
  return *model;
}

inline std::vector<int32_t> random_tokens(int count, int vocab, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& t : tokens) t = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab));
  return tokens;
}

inline TestSequence sequence_of(std::vector<int32_t> tokens, uint64_t seed, const SamplingParams& sampling) {
  TestSequence s;
  s.tokens = std::move(tokens);
  s.seed = seed;
  s.ends_from = std::ssize(s.tokens) + sampling.min_tokens;
  s.sampling = std::make_shared<const SamplingParams>(sampling);
  return s;
}

inline const SamplingParams kRandom;  // temperature 1, no cuts

/// The response and the KV of a prompt, one row per step, alone on an engine.
struct Reference {
  std::vector<SampledToken> sampled;
  std::vector<std::vector<std::byte>> blocks;
};
inline Reference reference_on(EngineRunner&& runner, const TestSequence& prompt, int count) {
  TestSequence s = prompt;
  while (s.computed + 1 < std::ssize(s.tokens)) runner.step({runner.plan(s, 1, 0)});
  Reference r;
  r.sampled = runner.decode(s, count);
  for (DeviceBlockId b : s.blocks) r.blocks.push_back(runner.export_block(b));
  return r;
}

// ---- draft trees: the promise of engine.h -----------------------------------------------------------------------------

/// A random tree below the last known token of `s`: some rows follow the right answer, which begins with `right`.
inline SequenceStep random_tree(EngineRunner& runner, TestSequence& s, std::span<const SampledToken> right, int rows, std::mt19937_64& rng) {
  std::vector<int32_t> parents{-1}, tokens;
  std::vector<size_t> depths{0};
  std::vector<bool> is_right{true};  // the row and all its ancestors
  for (size_t row = 1; row < static_cast<size_t>(rows); ++row) {
    // Deep or wide: the parent is the newest row, or any.
    const size_t parent = rng() % 2 == 0 ? row - 1 : rng() % row, depth = depths[parent] + 1;
    const bool follows = is_right[parent] && rng() % 4 != 0 && depth <= right.size();
    const int32_t token = follows ? right[depth - 1].token : static_cast<int32_t>(rng() % 96);
    parents.push_back(static_cast<int32_t>(parent));
    tokens.push_back(token);
    depths.push_back(depth);
    is_right.push_back(is_right[parent] && depth <= right.size() && token == right[depth - 1].token);
  }
  TestSequence trial = s;
  trial.tokens.insert(trial.tokens.end(), tokens.begin(), tokens.end());
  SequenceStep step = runner.plan(trial, rows, rows);
  s.blocks = trial.blocks;
  step.parents = std::move(parents);
  return step;
}

/// Every row of trees of these sizes gives what its path gives as a linear draft.
inline void check_rows_of_trees(EngineRunner& runner, const std::vector<int>& sizes, std::mt19937_64& rng) {
  SamplingParams sampling = kRandom;
  sampling.repetition_penalty = 1.2f;
  for (const int rows : sizes) {
    CAPTURE(rows);
    TestSequence s = sequence_of(random_tokens(20 + static_cast<int>(rng() % 16), 96, rng()), rng(), sampling);
    runner.decode(s, 1);
    const SequenceStep tree = random_tree(runner, s, {}, rows, rng);
    const auto sampled = runner.step({tree}).sampled.at(0);
    int different = 0;
    for (int32_t leaf = 0; leaf < rows; ++leaf) {
      std::vector<size_t> path;
      for (int32_t row = leaf; row >= 0; row = tree.parents[static_cast<size_t>(row)]) path.insert(path.begin(), static_cast<size_t>(row));
      TestSequence linear = s;
      linear.blocks.clear();
      linear.computed = 0;
      for (size_t i = 1; i < path.size(); ++i) linear.tokens.push_back(tree.tokens[path[i]]);
      const auto want = runner.step({runner.plan(linear, std::ssize(linear.tokens), static_cast<int32_t>(path.size()))}).sampled.at(0);
      for (size_t i = 0; i < path.size(); ++i) different += !(sampled[path[i]] == want[i]);
      for (DeviceBlockId b : linear.blocks) runner.free_blocks().push_back(b);
    }
    CHECK(different == 0);
    for (DeviceBlockId b : s.blocks) runner.free_blocks().push_back(b);
  }
}

/// Decoding with draft trees beside another sequence gives the tokens and the KV of decoding without, as `make_reference` computes it.
template <class Make, class MakeReference>
void check_decoding_with_trees(const Make& make, const MakeReference& make_reference, int prompt_tokens) {
  constexpr int kCount = 90;
  const TestSequence prompt = sequence_of(random_tokens(prompt_tokens, 96, 5), 77, kRandom);
  const Reference want = reference_on(make_reference(), prompt, kCount);
  std::mt19937_64 rng(9);
  EngineRunner runner = make();
  TestSequence s = prompt, beside = sequence_of(random_tokens(7, 96, 8), 3, kRandom);
  const Reference want_beside = reference_on(make_reference(), beside, kCount);
  std::vector<SampledToken> got = runner.decode(s, 1), got_beside = runner.decode(beside, 1);
  size_t longest = 0;
  while (got.size() < kCount) {
    const auto right = std::span(want.sampled).subspan(got.size());
    SequenceStep tree = random_tree(runner, s, right, 1 + static_cast<int>(rng() % 30), rng);
    std::vector<SequenceStep> steps{tree};
    if (got_beside.size() < kCount) steps.push_back(runner.plan(beside, 1, 1));
    const StepResult result = runner.step(std::move(steps));
    const auto path = accepted_path(tree.tokens, tree.parents, result.sampled[0]);
    longest = std::max(longest, path.size());
    for (const int32_t row : path) {
      got.push_back(result.sampled[0][static_cast<size_t>(row)]);
      s.tokens.push_back(got.back().token);
    }
    s.computed += std::ssize(path);
    if (result.sampled.size() < 2) continue;
    got_beside.push_back(result.sampled[1][0]);
    beside.tokens.push_back(got_beside.back().token);
  }
  CHECK(longest > 4);
  got.resize(kCount);
  CHECK(got == want.sampled);
  CHECK(got_beside == std::vector(want_beside.sampled.begin(), want_beside.sampled.begin() + std::ssize(got_beside)));
  // Full blocks only: after them lies what rejected rows wrote.
  for (size_t i = 0; (i + 1) * 16 <= static_cast<size_t>(prompt_tokens) + kCount - 1; ++i)
    CHECK(runner.export_block(s.blocks[i]) == want.blocks[i]);
}

}  // namespace seer
