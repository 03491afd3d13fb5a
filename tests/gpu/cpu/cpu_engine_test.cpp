// The engine's promise: the tokens, log-probabilities and KV of a sequence are the same bits, whatever runs beside it
// and however it is cut into steps. The reference is the plainest run: alone, one row per step, one thread, scalar
// kernels.
#include "gpu/cpu/cpu_engine.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <optional>
#include <random>
#include <span>
#include <string>

#include "gpu/accept_draft.h"
#include "gpu/cpu/cpu_isa.h"
#include "gpu/cpu/row_softmax.h"
#include "gpu/cpu/thread_pool.h"
#include "gpu/engine_bench.h"

namespace seer {
namespace {

EngineRunner make_runner(const std::shared_ptr<const Model>& model, CpuEngineConfig config) {
  if (config.device_blocks == 0) config.device_blocks = 256;
  auto engine = make_cpu_engine(model, config);
  REQUIRE_MESSAGE(engine.ok(), engine.error().detail);
  return EngineRunner(std::move(*engine));
}

std::vector<CpuIsa> isas() {
  std::vector<CpuIsa> list;
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvxVnni, CpuIsa::kAvx512, CpuIsa::kAmx})
    if (cpu_kernels(isa)) list.push_back(isa);
  return list;
}

Reference reference(const std::shared_ptr<const Model>& model, KvType kv, const TestSequence& prompt, int count) {
  return reference_on(make_runner(model, {.kv_type = kv, .isa = CpuIsa::kScalar}), prompt, count);
}

// Computes what is uncomputed in random pieces, then decodes.
std::vector<SampledToken> decode_chunked(EngineRunner& runner, TestSequence& s, int count, std::mt19937_64& rng) {
  for (;;) {
    const auto left = static_cast<int64_t>(s.tokens.size()) - s.computed;
    const auto rows = std::min<int64_t>(left, 1 + static_cast<int64_t>(rng() % 40));
    if (rows == left) break;
    runner.step({runner.plan(s, rows, 0)});
  }
  return runner.decode(s, count);
}

TEST_CASE("cpu engine: every ISA, thread count and chunking gives the bits of one row at a time") {
  for (const auto& [kind, dtype, kv, weights] : {std::tuple{"qwen3", "BF16", KvType::kBf16, WeightType::kAsStored},
                                                 {"qwen2", "BF16", KvType::kF32, WeightType::kAsStored},
                                                 {"llama", "F32", KvType::kF32, WeightType::kAsStored},
                                                 {"llama", "F16", KvType::kBf16, WeightType::kAsStored},
                                                 {"qwen3", "BF16", KvType::kBf16, WeightType::kInt8},
                                                 {"llama", "F32", KvType::kF32, WeightType::kInt8},
                                                 {"qwen2", "BF16", KvType::kBf16, WeightType::kW8a8},
                                                 {"llama", "F16", KvType::kF32, WeightType::kW8a8}}) {
    CAPTURE(kind);
    CAPTURE(dtype);
    CAPTURE(static_cast<int>(weights));
    const auto model = tiny(kind, dtype, nlohmann::json::object(), weights);
    const TestSequence prompt = sequence_of(random_tokens(83, 96, 3), 11, kRandom);
    const Reference want = reference(model, kv, prompt, 45);  // 128 tokens, of which the last is not computed
    for (CpuIsa isa : isas()) {
      for (int threads : {1, 2, 3, 4}) {
        CAPTURE(static_cast<int>(isa));
        CAPTURE(threads);
        const uint64_t seed = static_cast<uint64_t>(threads) * 10 + static_cast<uint64_t>(isa);
        CAPTURE(seed);
        std::mt19937_64 rng(seed);
        EngineRunner runner = make_runner(model, {.threads = threads, .kv_type = kv, .isa = isa});
        std::shuffle(runner.free_blocks().begin(), runner.free_blocks().end(), rng);  // any block table
        TestSequence s = prompt;
        CHECK(decode_chunked(runner, s, 45, rng) == want.sampled);
        REQUIRE(s.blocks.size() == want.blocks.size());
        for (size_t i = 0; i < s.blocks.size(); ++i) CHECK(runner.export_block(s.blocks[i]) == want.blocks[i]);
      }
    }
  }
}

void check_batch_invariance(const std::shared_ptr<const Model>& model) {
  constexpr int kSequences = 9, kCount = 24;
  std::vector<TestSequence> prompts;
  std::vector<Reference> want;
  for (int i = 0; i < kSequences; ++i) {
    SamplingParams sampling = kRandom;
    if (i % 3 == 1) sampling.top_p = 0.8f;
    if (i % 3 == 2) sampling.repetition_penalty = 1.3f;
    prompts.push_back(sequence_of(random_tokens(3 + 31 * i, 96, 100 + i), 1000 + i, sampling));
    want.push_back(reference(model, KvType::kBf16, prompts[i], kCount));
  }
  for (uint64_t seed = 0; seed < 4; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    EngineRunner runner = make_runner(model, {.threads = 1 + static_cast<int>(seed), .device_blocks = 512});
    std::vector<TestSequence> live = prompts;
    std::vector<std::vector<SampledToken>> got(kSequences);
    for (bool open = true; open;) {
      open = false;
      std::vector<SequenceStep> steps;
      std::vector<int> of;
      for (int i = 0; i < kSequences; ++i) {
        if (static_cast<int>(got[i].size()) == kCount) continue;
        open = true;
        if (rng() % 4 == 0) continue;  // not every sequence in every step
        const auto left = static_cast<int64_t>(live[i].tokens.size()) - live[i].computed;
        const auto rows = std::min<int64_t>(left, 1 + static_cast<int64_t>(rng() % 100));
        steps.push_back(runner.plan(live[i], rows, rows == left ? 1 : 0));
        of.push_back(i);
      }
      if (steps.empty()) continue;
      std::vector<size_t> order(steps.size());
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), rng);
      std::vector<SequenceStep> shuffled;
      for (size_t k : order) shuffled.push_back(steps[k]);
      const StepResult result = runner.step(std::move(shuffled));
      for (size_t k = 0; k < order.size(); ++k) {
        for (const SampledToken& t : result.sampled[k]) {
          got[of[order[k]]].push_back(t);
          live[of[order[k]]].tokens.push_back(t.token);
        }
      }
    }
    for (int i = 0; i < kSequences; ++i) {
      CAPTURE(i);
      CHECK(got[i] == want[i].sampled);
    }
  }
}

TEST_CASE("cpu engine: threads pinned to cores give the same bits; more than the process may use are refused") {
  const auto model = tiny("qwen3", "BF16");
  const TestSequence prompt = sequence_of(random_tokens(40, 96, 3), 11, kRandom);
  const Reference want = reference(model, KvType::kBf16, prompt, 10);
  const auto cores = static_cast<int32_t>(usable_cores().size());
  EngineRunner runner = make_runner(model, {.threads = cores, .first_core = 0});
  TestSequence s = prompt;
  CHECK(runner.decode(s, 10) == want.sampled);
  const auto refused = make_cpu_engine(model, {.threads = 2, .first_core = cores - 1, .device_blocks = 8});
  REQUIRE(!refused.ok());
  CHECK(refused.error().detail == cat("cpu engine: 2 threads pinned from core ", cores - 1, " on need ", cores + 1,
                                      " cores, this process may use ", cores));
}

TEST_CASE("cpu engine: a sequence does not notice the batch it is in") {
  check_batch_invariance(tiny("qwen3", "BF16"));
  check_batch_invariance(tiny("qwen2", "BF16", {{"tie_word_embeddings", false}}, WeightType::kInt8));
  check_batch_invariance(tiny("qwen3", "BF16", {{"tie_word_embeddings", false}}, WeightType::kW8a8));
}

TEST_CASE("cpu engine: weights and inputs as integers change log-probabilities little") {
  const nlohmann::json size = {{"hidden_size", 128}, {"intermediate_size", 352}, {"num_hidden_layers", 3}};
  const std::vector<int32_t> tokens = random_tokens(512, 96, 13), targets = random_tokens(512, 96, 14);
  const auto logprobs = [&](const std::shared_ptr<const Model>& model) {
    EngineRunner runner = make_runner(model, {.threads = 2});
    TestSequence s = sequence_of(tokens, 0, kRandom);
    SequenceStep step = runner.plan(s, 512, 512);
    step.targets = targets;
    return runner.step({step}).sampled.at(0);
  };
  const auto want = logprobs(tiny("qwen2", "F32", size)), bf16 = logprobs(tiny("qwen2", "BF16", size)),
             int8 = logprobs(tiny("qwen2", "BF16", size, WeightType::kInt8)),
             w8a8 = logprobs(tiny("qwen2", "BF16", size, WeightType::kW8a8));
  const auto error = [&](const std::vector<SampledToken>& got) {
    double squares = 0;
    for (size_t i = 0; i < want.size(); ++i) squares += std::pow(got[i].logprob - want[i].logprob, 2);
    return std::sqrt(squares / static_cast<double>(want.size()));
  };
  double mean = 0, variance = 0;
  for (const SampledToken& t : want) mean += t.logprob / 512.0;
  for (const SampledToken& t : want) variance += std::pow(t.logprob - mean, 2) / 512.0;
  MESSAGE("log-probabilities with standard deviation ", std::sqrt(variance), "; RMS error against f32: bf16 ",
          error(bf16), ", int8 ", error(int8), ", w8a8 ", error(w8a8));
  CHECK(error(int8) > error(bf16));
  CHECK(error(int8) < 0.05 * std::sqrt(variance));
  CHECK(error(w8a8) > error(int8));
  CHECK(error(w8a8) < 0.08 * std::sqrt(variance));
}

TEST_CASE("cpu engine: verify rows give what decoding one by one gives, and rejected rows leave no trace") {
  const auto model = tiny("qwen2", "BF16");
  for (const auto& [penalty, min_tokens] : {std::pair{1.0f, 0}, {1.2f, 0}, {1.0f, 33}}) {
    CAPTURE(penalty);
    SamplingParams sampling = kRandom;
    sampling.repetition_penalty = penalty;
    sampling.min_tokens = min_tokens;
    for (int32_t id = 0; id < 15; ++id) sampling.stop_token_ids.push_back(id);
    const TestSequence prompt = sequence_of(random_tokens(29, 96, 5), 77, sampling);
    constexpr int kCount = 60;
    const Reference want = reference(model, KvType::kBf16, prompt, kCount);
    const auto first_end = std::ranges::find_if(want.sampled, [](const SampledToken& t) { return t.token < 15; });
    CHECK(first_end != want.sampled.end());
    CHECK((first_end - want.sampled.begin() >= 33) == (min_tokens == 33));
    std::mt19937_64 rng(9);
    EngineRunner runner = make_runner(model, {.threads = 2});
    TestSequence s = prompt;
    std::vector<SampledToken> got = runner.decode(s, 1);
    while (static_cast<int>(got.size()) < kCount) {
      // Drafts are right with probability 3/4.
      const int draft = static_cast<int>(rng() % 7);
      TestSequence trial = s;
      for (int i = 0; i < draft; ++i) {
        const size_t at = got.size() + i;
        const int32_t right = at < want.sampled.size() ? want.sampled[at].token : 0;
        trial.tokens.push_back(rng() % 4 != 0 ? right : static_cast<int32_t>(rng() % 96));
      }
      const auto rows = static_cast<int32_t>(trial.tokens.size() - trial.computed);
      const StepResult result = runner.step({runner.plan(trial, rows, rows)});
      s.blocks = trial.blocks;
      for (const SampledToken& t : result.sampled.at(0)) {
        ++s.computed;
        s.tokens.push_back(t.token);
        got.push_back(t);
        const size_t next = s.tokens.size() - 1;
        if (next >= trial.tokens.size() || trial.tokens[next] != t.token) break;
      }
    }
    got.resize(kCount);
    CHECK(got == want.sampled);
  }
}

TEST_CASE("cpu engine: every row of a draft tree gives what its path gives as a linear draft") {
  for (const auto& [kind, kv] : {std::pair{"qwen3", KvType::kBf16}, {"qwen2", KvType::kF32}}) {
    const auto model = tiny(kind, "BF16");
    std::mt19937_64 rng(21);
    for (CpuIsa isa : isas()) {
      CAPTURE(static_cast<int>(isa));
      EngineRunner runner = make_runner(model, {.threads = 2, .kv_type = kv, .isa = isa});
      check_rows_of_trees(runner, {2, 5, 17, 40}, rng);
    }
  }
}

TEST_CASE("cpu engine: decoding with draft trees gives the tokens and the KV of decoding without") {
  const auto model = tiny("qwen3", "BF16");
  for (const KvType kv : {KvType::kBf16, KvType::kF32})
    check_decoding_with_trees([&] { return make_runner(model, {.threads = 3, .kv_type = kv}); },
                              [&] { return make_runner(model, {.kv_type = kv, .isa = CpuIsa::kScalar}); }, 29);
}

TEST_CASE("cpu engine: a large vocabulary is sampled part by part, with the same bits under every rule and batch") {
  const auto model = tiny("qwen3", "BF16", {{"vocab_size", 9001}});  // 9 parts, the last one of 809 ids
  SamplingParams raw = kRandom, top_p = kRandom, penalty = kRandom, cool = kRandom;
  raw.logprob_mode = LogprobMode::kRaw;
  raw.temperature = 1.4f;
  cool.temperature = 0.6f;
  top_p.top_p = 0.9f;
  penalty.repetition_penalty = 1.3f;
  const std::vector<SamplingParams> rules{kRandom, greedy_sampling(), raw, top_p, penalty, cool};
  constexpr int kCount = 6;
  std::vector<TestSequence> prompts;
  std::vector<Reference> want;
  for (size_t i = 0; i < rules.size(); ++i) {
    prompts.push_back(sequence_of(random_tokens(5, 9001, i), 40 + i, rules[i]));
    want.push_back(reference(model, KvType::kBf16, prompts[i], kCount));
  }
  for (CpuIsa isa : isas()) {
    for (const int threads : {1, 3}) {
      CAPTURE(static_cast<int>(isa));
      CAPTURE(threads);
      EngineRunner runner = make_runner(model, {.threads = threads, .isa = isa});
      std::vector<TestSequence> live = prompts;
      for (int n = 0; n < kCount; ++n) {
        const std::vector<SampledToken> sampled = runner.advance(live);
        for (size_t i = 0; i < live.size(); ++i) CHECK(sampled[i] == want[i].sampled[n]);
      }
      for (size_t i = 0; i < live.size(); ++i) {  // scored, the same log-probabilities
        TestSequence scored = live[i];
        scored.computed = 0;
        scored.tokens.pop_back();
        SequenceStep step = runner.plan(scored, static_cast<int64_t>(scored.tokens.size()), kCount);
        for (const SampledToken& t : want[i].sampled) step.targets.push_back(t.token);
        CHECK(runner.step({step}).sampled[0] == want[i].sampled);
      }
    }
  }
}

TEST_CASE("cpu engine: prompt blocks may be shared, copied out, and continued on another engine") {
  const auto model = tiny("qwen3", "BF16");
  const std::vector<int32_t> prompt = random_tokens(64, 96, 21);
  const TestSequence first = sequence_of(prompt, 1, kRandom), second = sequence_of(prompt, 2, kRandom);
  const Reference want_first = reference(model, KvType::kBf16, first, 30),
                  want_second = reference(model, KvType::kBf16, second, 30);

  EngineRunner here = make_runner(model, {.threads = 2}), there = make_runner(model, {.isa = CpuIsa::kScalar});
  CHECK(here.info().kv_hash == there.info().kv_hash);
  TestSequence a = first;
  CHECK(here.decode(a, 30) == want_first.sampled);
  TestSequence b = second;  // reads the prompt's first three blocks as `first` wrote them
  b.blocks.assign(a.blocks.begin(), a.blocks.begin() + 3);
  b.computed = 48;
  std::vector<SampledToken> got = here.decode(b, 10);

  // Parked in the middle of a block, moved, continued.
  for (DeviceBlockId& block : b.blocks) {
    uint32_t crc = 0;
    const std::vector<std::byte> bytes = here.export_block(block, &crc);
    CHECK(crc == crc32c(bytes));
    block = there.take_block();
    CHECK(there.import_block(block, bytes, crc) == crc);
    CHECK(there.export_block(block) == bytes);
  }
  for (const SampledToken& t : there.decode(b, 20)) got.push_back(t);
  CHECK(got == want_second.sampled);
}

TEST_CASE("cpu engine: a block that arrives damaged is not written") {
  const auto model = tiny("llama", "BF16");
  EngineRunner runner = make_runner(model, {});
  uint32_t crc = 0;
  const std::vector<std::byte> before = runner.export_block(5, &crc);
  std::vector<std::byte> damaged(before.size(), std::byte{0x55});
  CHECK(runner.import_block(5, damaged, crc) != crc);
  CHECK(runner.export_block(5) == before);
}

TEST_CASE("cpu engine: scored targets have the log-probabilities that sampling gave") {
  const auto model = tiny("llama", "F32");
  TestSequence s = sequence_of(random_tokens(20, 96, 1), 5, kRandom);
  EngineRunner runner = make_runner(model, {.kv_type = KvType::kF32});
  const std::vector<SampledToken> sampled = runner.decode(s, 300);  // more rows than one slab
  TestSequence again = sequence_of(s.tokens, 0, kRandom);
  again.tokens.pop_back();
  SequenceStep step = runner.plan(again, static_cast<int64_t>(again.tokens.size()), 300);
  for (const SampledToken& t : sampled) step.targets.push_back(t.token);
  CHECK(runner.step({step}).sampled.at(0) == sampled);
}

TEST_CASE("cpu engine: rows without finite logits say so, however they are computed, and no other row notices") {
  constexpr int32_t kHuge = 7;
  constexpr int64_t kAt = 25, kTokens = 41;  // fed at this position, so the rows from it on have no logits
  for (const int32_t vocab : {96, 9001}) {   // all logits in one place, and part by part
    const nlohmann::json size = {{"vocab_size", vocab}, {"tie_word_embeddings", false}};
    const auto model = tiny("qwen3", "BF16", size, WeightType::kAsStored, overflowing_token(kHuge));
    std::vector<int32_t> fine = random_tokens(kTokens, 96, 3), spoiled;
    for (int32_t& token : fine) token += token == kHuge;
    (spoiled = fine)[kAt] = kHuge;
    const auto scored = [](EngineRunner& runner, const std::vector<int32_t>& tokens, int64_t first, int64_t rows,
                           TestSequence& s) {
      s.computed = first;
      SequenceStep step = runner.plan(s, rows, static_cast<int32_t>(rows));
      step.targets.assign(tokens.begin() + first + 1, tokens.begin() + first + rows + 1);
      return step;
    };
    EngineRunner plain = make_runner(tiny("qwen3", "BF16", size), {.isa = CpuIsa::kScalar});
    TestSequence alone = sequence_of(fine, 0, kRandom);
    const auto want = plain.step({scored(plain, fine, 0, kTokens - 1, alone)}).sampled[0];
    for (CpuIsa isa : isas())
      for (const int threads : {1, 3}) {
        CAPTURE(vocab);
        CAPTURE(static_cast<int>(isa));
        CAPTURE(threads);
        EngineRunner runner = make_runner(model, {.threads = threads, .isa = isa});
        for (const int64_t piece : {int64_t{1}, int64_t{16}, kTokens - 1}) {
          CAPTURE(piece);
          TestSequence a = sequence_of(spoiled, 0, kRandom), b = sequence_of(fine, 0, kRandom);
          for (int64_t first = 0; first + 1 < kTokens; first += piece) {
            const int64_t rows = std::min(piece, kTokens - 1 - first);
            const StepResult result =
                runner.step({scored(runner, spoiled, first, rows, a), scored(runner, fine, first, rows, b)});
            for (int64_t row = 0; row < rows; ++row) {
              const auto at = static_cast<size_t>(first + row), in_piece = static_cast<size_t>(row);
              REQUIRE(result.sampled[1][in_piece] == want[at]);
              if (first + row >= kAt)
                REQUIRE(result.sampled[0][in_piece] == SampledToken{kNotFinite, 0});
              else if (first + row != kAt - 1)  // whose target is another one
                REQUIRE(result.sampled[0][in_piece] == want[at]);
            }
          }
          for (TestSequence* s : {&a, &b})
            for (DeviceBlockId block : s->blocks) runner.free_blocks().push_back(block);
        }
        SamplingParams top_p = kRandom, penalty = kRandom;
        top_p.top_p = 0.9f;
        penalty.repetition_penalty = 1.3f;
        for (const SamplingParams& rule : {kRandom, greedy_sampling(), top_p, penalty}) {
          TestSequence s = sequence_of(fine, 1, rule);
          s.tokens.resize(kAt);
          CHECK(runner.decode(s, 1)[0].token != kNotFinite);
          TestSequence linear = sequence_of(s.tokens, 1, rule);
          const SampledToken root = runner.decode(linear, 1)[0];
          // Row 1 feeds the huge token and row 3 follows it; 2 and 4 are beside them.
          s.tokens.insert(s.tokens.end(), {kHuge, 11, 12, 13});
          SequenceStep tree = runner.plan(s, 5, 5);
          tree.parents = {-1, 0, 0, 1, 2};
          const std::vector<SampledToken> sampled = runner.step({tree}).sampled[0];
          CHECK(sampled[0] == root);
          for (const size_t row : {1, 3}) CHECK(sampled[row] == SampledToken{kNotFinite, 0});
          for (const size_t row : {2, 4}) CHECK(sampled[row].token != kNotFinite);
          const std::vector<int32_t> path = accepted_path(tree.tokens, tree.parents, sampled);
          CHECK(std::ranges::find(path, 3) == path.end());  // behind a row without a token
        }
      }
  }
}

TEST_CASE("cpu engine: leftovers of other rows or former owners in a block do not matter, not even NaN") {
  const auto model = tiny("qwen3", "BF16");
  const TestSequence prompt = sequence_of(random_tokens(21, 96, 8), 3, kRandom);
  const Reference want = reference(model, KvType::kBf16, prompt, 6);
  EngineRunner runner = make_runner(model, {.device_blocks = 4});
  TestSequence s = prompt;
  runner.step({runner.plan(s, 20, 0)});
  // Positions from 20 on of the second block become NaN; the kernels must not read them.
  std::vector<std::byte> bytes = runner.export_block(s.blocks[1]);
  auto* values = reinterpret_cast<uint16_t*>(bytes.data());
  for (size_t tile = 0; tile < bytes.size() / 1024; ++tile) {  // head_dim 16: K and V of a tile are 256 values each
    for (size_t pair = 0; pair < 8; ++pair)
      for (size_t at = 4; at < 16; ++at)
        for (size_t j = 0; j < 2; ++j) values[tile * 512 + pair * 32 + at * 2 + j] = 0x7fc0;
    for (size_t at = 4; at < 16; ++at)
      for (size_t d = 0; d < 16; ++d) values[tile * 512 + 256 + at / 2 * 32 + d * 2 + at % 2] = 0x7fc0;
  }
  CHECK(runner.import_block(s.blocks[1], bytes, crc32c(bytes)) == crc32c(bytes));
  CHECK(runner.decode(s, 6) == want.sampled);
}

TEST_CASE("cpu engine: a config that cannot work is one sentence") {
  const auto model = tiny("llama", "BF16");
  const auto error = [&](const CpuEngineConfig& config) { return make_cpu_engine(model, config).error(); };
  // 2 layers x 2 heads x 16 positions x 16 dims x 2 (K, V) x 2 B
  CHECK(error({.kv_bytes = 100}).detail ==
        "cpu engine: kv_bytes is 100, one KV block of 16 tokens of this model needs 4096");
  CHECK(error({.kv_bytes = -1}).code == Code::kInvalidArgument);
  CHECK(error({.threads = 0}).code == Code::kInvalidArgument);
  CHECK(error({.block_tokens = 24}).code == Code::kInvalidArgument);
  CHECK(error({.device_blocks = 2'000'000'000, .block_tokens = 4096}).code == Code::kFull);
  CHECK(error({.isa = static_cast<CpuIsa>(99)}).code == Code::kUnavailable);
  EngineRunner least = make_runner(model, {.device_blocks = 1});
  TestSequence s = sequence_of({1, 2, 3}, 0, kRandom);
  CHECK(least.decode(s, 5).size() == 5);
}

// Sets SEER_CPU_ISA while it lives.
class IsaFromEnvironment {
 public:
  explicit IsaFromEnvironment(const char* value) {
    if (const char* before = std::getenv("SEER_CPU_ISA")) before_ = before;
    ::setenv("SEER_CPU_ISA", value, 1);
  }
  ~IsaFromEnvironment() {
    if (before_)
      ::setenv("SEER_CPU_ISA", before_->c_str(), 1);
    else
      ::unsetenv("SEER_CPU_ISA");
  }

 private:
  std::optional<std::string> before_;
};

TEST_CASE("cpu engine: SEER_CPU_ISA chooses the kernels, and is never ignored") {
  const auto model = tiny("llama", "BF16");
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvxVnni, CpuIsa::kAvx512, CpuIsa::kAmx}) {
    CAPTURE(to_string(isa));
    const IsaFromEnvironment environment(to_string(isa));
    if (const CpuKernels* kernels = cpu_kernels(isa)) {
      CHECK(cpu_kernels(CpuIsa::kAuto) == kernels);
      CHECK(row_softmax_kernels(CpuIsa::kAuto) == row_softmax_kernels(isa));
      CHECK(make_cpu_engine(model, {.device_blocks = 4}).ok());
      continue;
    }
    const auto engine = make_cpu_engine(model, {.device_blocks = 4});
    CHECK(engine.error().code == Code::kUnavailable);
    CHECK(engine.error().detail ==
          cat("cpu engine: SEER_CPU_ISA is \"", to_string(isa), "\", which this processor lacks"));
  }
  for (const std::string value : {"foo", "", "auto", "AVX2"}) {
    const IsaFromEnvironment environment(value.c_str());
    const auto engine = make_cpu_engine(model, {.device_blocks = 4});
    CHECK(engine.error().code == Code::kInvalidArgument);
    CHECK(engine.error().detail ==
          cat("cpu engine: SEER_CPU_ISA is \"", value, "\", expected scalar, avx2, avxvnni, avx512 or amx"));
    CHECK(make_cpu_engine(model, {.device_blocks = 4, .isa = CpuIsa::kScalar}).ok());  // only kAuto looks at it
  }
}

}  // namespace
}  // namespace seer
