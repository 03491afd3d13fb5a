// Tests what only the forward pass decides: how a step is cut into slabs and groups of sampled rows, and which weights it uses.
// The reference is one row per step. cpu_engine_test.cpp tests whole engines.
#include "gpu/cpu/forward.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "gpu/cpu/denormals.h"
#include "gpu/tiny_model.h"

namespace seer {
namespace {

constexpr int32_t kTokens = CpuForward::kSlabRows + 50;  // more than a slab, and more sampled rows than HeadSampler takes
constexpr int32_t kBlocks = 2 * ((kTokens + 15) / 16);

std::shared_ptr<const Model> tiny(uint64_t seed) {
  TestFolder folder;
  write_tiny_model(folder.path(), tiny_config("qwen3"), "BF16", seed);
  auto model = load_model(folder.path());
  REQUIRE_MESSAGE(model.ok(), model.error().detail);
  return *model;
}

/// A forward pass with a cache of its own.
struct Pass {
  KvCache cache;
  ThreadPool pool;
  CpuForward forward;
  Pass(const Model& model, int32_t threads)
      : cache({.layers = model.config.layers, .kv_heads = model.config.kv_heads, .head_dim = model.config.head_dim}, kBlocks),
        pool(threads),
        forward(model, *cpu_kernels(CpuIsa::kScalar), cache, pool) {}

  std::vector<std::byte> kv() {
    std::vector<std::byte> all;
    for (DeviceBlockId id = 0; id < kBlocks; ++id) {
      const auto block = cache.block(id);
      all.insert(all.end(), block.begin(), block.end());
    }
    return all;
  }
};

/// Rows [start, start + rows) of sequence 0 or 1, all sampled.
SequenceStep step_of(int32_t sequence, int64_t start, int64_t rows) {
  SequenceStep step;
  step.start = start;
  for (int64_t i = start; i < start + rows; ++i) step.tokens.push_back(static_cast<int32_t>((i * 37 + sequence * 11) % 96));
  step.blocks.resize(kBlocks / 2);
  std::iota(step.blocks.begin(), step.blocks.end(), sequence * kBlocks / 2);
  step.sample_rows = static_cast<int32_t>(rows);
  step.seed = static_cast<uint64_t>(sequence) + 5;
  step.sampling = std::make_shared<const SamplingParams>();
  return step;
}

StepBatch batch_of(std::vector<SequenceStep> sequences) { return {.id = 1, .sequences = std::move(sequences)}; }

TEST_CASE("forward: a step larger than a slab gives the tokens and the KV of one row at a time") {
  const FlushDenormals flush;
  const auto model = tiny(7);
  Pass alone(*model, 1);
  std::vector<std::vector<SampledToken>> expected(2);
  for (int32_t sequence = 0; sequence < 2; ++sequence)
    for (int32_t i = 0; i < kTokens; ++i)
      expected[static_cast<size_t>(sequence)].push_back(
          alone.forward.run(batch_of({step_of(sequence, i, 1)})).at(0).at(0));
  for (const int32_t threads : {1, 3}) {
    CAPTURE(threads);
    Pass together(*model, threads);
    const auto sampled = together.forward.run(batch_of({step_of(0, 0, kTokens), step_of(1, 0, kTokens)}));
    CHECK(sampled == expected);
    CHECK(together.kv() == alone.kv());
  }
}

TEST_CASE("forward: only the last sample_rows rows give tokens, the others only KV") {
  const FlushDenormals flush;
  const auto model = tiny(7);
  Pass all(*model, 1), last(*model, 1);
  const auto expected = all.forward.run(batch_of({step_of(0, 0, 40), step_of(1, 0, 40)}));
  SequenceStep none = step_of(0, 0, 40), some = step_of(1, 0, 40);
  none.sample_rows = 0;
  some.sample_rows = 3;
  const auto sampled = last.forward.run(batch_of({none, some}));
  REQUIRE(sampled.size() == 2);
  CHECK(sampled[0].empty());
  CHECK(sampled[1] == std::vector(expected[1].end() - 3, expected[1].end()));
  CHECK(last.kv() == all.kv());
}

TEST_CASE("forward: a step after set_weights() is that of the new weights, over the KV that is there") {
  const FlushDenormals flush;
  const auto first = tiny(7), second = tiny(8);
  Pass switched(*first, 1), fresh(*second, 1);
  const auto before = switched.forward.run(batch_of({step_of(0, 0, 40)}));
  const auto expected = fresh.forward.run(batch_of({step_of(0, 0, 40)}));
  REQUIRE(before != expected);
  switched.forward.set_weights(*second);
  CHECK(switched.forward.run(batch_of({step_of(0, 0, 40)})) == expected);
}

}  // namespace
}  // namespace seer
