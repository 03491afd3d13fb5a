// The CUDA engine on the emulated device. Its promise is the CPU engine's: the bits of a sequence are the same whatever runs beside
// it and however it is cut into steps. In f32 mode they are the CPU engine's own bits.
#include "gpu/cuda/cuda_engine.h"

#include <cmath>
#include <limits>

#include "gpu/accept_draft.h"
#include "gpu/cuda/cuda_bench.h"

namespace seer {
namespace {

EngineRunner cpu_runner(const std::shared_ptr<const Model>& model, KvType kv) {
  auto made = make_cpu_engine(model, {.device_blocks = 64, .kv_type = kv});
  REQUIRE(made.ok());
  return EngineRunner(*std::move(made));
}
EngineRunner gpu_runner(const std::shared_ptr<const Model>& model, CudaType type, uint64_t seed = 1) {
  return EngineRunner(simt_engine(model, small_config(type), {.seed = seed}));
}

/// Parameters that use each rule of the sampler, alone and together.
std::vector<SamplingParams> sampling_rules() {
  std::vector<SamplingParams> rules(10, kRandom);
  rules[1] = greedy_sampling();
  rules[2].temperature = 0.6f;
  rules[3].logprob_mode = LogprobMode::kRaw;
  rules[3].temperature = 1.4f;
  rules[4].top_k = 5;
  rules[5].top_p = 0.8f;
  rules[6].min_p = 0.1f;
  rules[7].repetition_penalty = 1.3f;
  rules[8] = greedy_sampling();
  rules[8].repetition_penalty = 1.5f;
  rules[9].top_k = 40;
  rules[9].top_p = 0.95f;
  rules[9].min_p = 0.01f;
  rules[9].temperature = 1.2f;
  rules[9].repetition_penalty = 0.9f;
  for (const size_t i : {5, 8, 9}) {
    rules.push_back(rules[i]);
    rules.back().logprob_mode = LogprobMode::kKept;
  }
  for (const size_t i : {0, 1, 9}) {
    rules.push_back(rules[i]);
    rules.back().min_tokens = 12;
    for (int32_t id = 1; id < 90; id += 6) rules.back().stop_token_ids.push_back(id);  // the model's end token is 1
  }
  return rules;
}

/// The ids that the cuts left for each sampled token of a step.
std::vector<std::vector<int32_t>> kept_ids(const StepResult& result) {
  std::vector<std::vector<int32_t>> ids;
  for (const std::vector<KeptList>& of_sequence : result.kept)
    for (const KeptList& kept : of_sequence) ids.push_back(kept ? *kept : std::vector<int32_t>());
  return ids;
}

Reference reference(const std::shared_ptr<const Model>& model, CudaType type, const TestSequence& prompt, int count) {
  return reference_on(gpu_runner(model, type), prompt, count);
}

/// The last has scores as large as those of trained models, where rounding in the softmax shows.
std::vector<std::pair<CudaType, std::shared_ptr<const Model>>> attention_models() {
  const TinyEdit large = [](const TinyTensor& t, uint64_t, float x) { return t.name.ends_with("q_norm.weight") ? 16 * x : x; };
  return {{CudaType::kBf16, tiny("qwen3", "BF16")},
          {CudaType::kF32, tiny("qwen3", "F32")},
          {CudaType::kBf16, tiny("qwen3", "BF16", nlohmann::json::object(), WeightType::kAsStored, large)}};
}

}  // namespace

TEST_CASE("cuda engine: in f32 mode tokens and log-probabilities are the CPU engine's bits, under every sampling rule") {
  for (const std::string kind : {"llama", "qwen2", "qwen3"}) {
    CAPTURE(kind);
    const auto model = tiny(kind, kind == "llama" ? "F16" : "F32");
    EngineRunner gpu = gpu_runner(model, CudaType::kF32), cpu = cpu_runner(model, KvType::kF32);
    std::vector<TestSequence> on_gpu;
    uint64_t seed = 0;
    for (const SamplingParams& sampling : sampling_rules()) {
      ++seed;
      const int prompt = sampling.min_tokens > 0 ? 2 : 5 + 4 * static_cast<int>(seed);  // together they have 64 blocks of KV
      on_gpu.push_back(sequence_of(random_tokens(prompt, 96, seed), seed, sampling));
    }
    std::vector<TestSequence> on_cpu = on_gpu;
    for (int step = 0; step < 30; ++step) {
      std::vector<SequenceStep> gpu_steps, cpu_steps;
      for (TestSequence& s : on_gpu) gpu_steps.push_back(gpu.plan(s, std::ssize(s.tokens) - s.computed, 1));
      for (TestSequence& s : on_cpu) cpu_steps.push_back(cpu.plan(s, std::ssize(s.tokens) - s.computed, 1));
      const StepResult a = gpu.step(std::move(gpu_steps)), b = cpu.step(std::move(cpu_steps));
      REQUIRE(a.sampled == b.sampled);
      REQUIRE(kept_ids(a).size() == 3);
      REQUIRE(kept_ids(a) == kept_ids(b));
      for (size_t i = 0; i < on_gpu.size(); ++i)
        for (std::vector<TestSequence>* all : {&on_gpu, &on_cpu}) (*all)[i].tokens.push_back(a.sampled[i][0].token);
    }
  }
}

TEST_CASE("cuda engine: in f32 mode 200 greedy tokens are those of the CPU engine, in bf16 mode log-probabilities are near") {
  const auto f32 = tiny("qwen3", "F32"), bf16 = tiny("qwen3", "BF16");
  const TestSequence prompt = sequence_of(random_tokens(20, 96, 5), 0, greedy_sampling());
  TestSequence a = prompt, b = prompt;
  EngineRunner gpu = gpu_runner(f32, CudaType::kF32), cpu = cpu_runner(f32, KvType::kF32);
  CHECK(gpu.decode(a, 200) == cpu.decode(b, 200));

  // The same tokens scored by both in bf16, and by the CPU in f32.
  const auto scored = [&](EngineRunner runner) {
    TestSequence s = prompt;
    s.tokens = a.tokens;
    s.tokens.pop_back();
    SequenceStep step = runner.plan(s, std::ssize(s.tokens), 200);
    step.targets.assign(a.tokens.end() - 200, a.tokens.end());
    return runner.step({step}).sampled.at(0);
  };
  const auto want = scored(cpu_runner(f32, KvType::kF32)), on_cpu = scored(cpu_runner(bf16, KvType::kBf16)),
             on_gpu = scored(gpu_runner(bf16, CudaType::kBf16));
  const auto error = [&](const std::vector<SampledToken>& got) {
    double squares = 0;
    for (size_t i = 0; i < want.size(); ++i) squares += std::pow(got[i].logprob - want[i].logprob, 2);
    return std::sqrt(squares / static_cast<double>(want.size()));
  };
  MESSAGE("error of log-probabilities in bf16: CPU " << error(on_cpu) << ", GPU " << error(on_gpu));
  CHECK(error(on_cpu) > 0);
  CHECK(error(on_gpu) < 1.25 * error(on_cpu));
}

TEST_CASE("cuda engine: every chunking and block table gives the bits of one row at a time") {
  for (const auto& [type, model] : attention_models()) {
    CAPTURE(static_cast<int>(type));
    const TestSequence prompt = sequence_of(random_tokens(283, 96, 3), 11, kRandom);  // two splits of attention
    const Reference want = reference(model, type, prompt, 22);
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(seed);
      std::mt19937_64 rng(seed);
      EngineRunner runner = gpu_runner(model, type, seed);
      std::shuffle(runner.free_blocks().begin(), runner.free_blocks().end(), rng);
      TestSequence s = prompt;
      for (int64_t left = 283; left > 1;) {  // pieces beyond a pass too
        const auto rows = std::min<int64_t>(left, 1 + static_cast<int64_t>(rng() % 200));
        if (rows == left) break;
        runner.step({runner.plan(s, rows, 0)});
        left -= rows;
      }
      CHECK(runner.decode(s, 22) == want.sampled);
      REQUIRE(s.blocks.size() == want.blocks.size());
      for (size_t i = 0; i < s.blocks.size(); ++i) CHECK(runner.export_block(s.blocks[i]) == want.blocks[i]);
    }
  }
}

TEST_CASE("cuda engine (emulated): GPUs without wgmma give the bits of those with it") {
  const auto model = tiny("qwen3", "BF16");
  const TestSequence prompt = sequence_of(random_tokens(180, 96, 4), 12, kRandom);  // rows for each kind of tile
  std::vector<std::vector<SampledToken>> sampled;
  for (const bool group_mma : {true, false}) {
    CudaEngineConfig config = small_config(CudaType::kBf16);
    config.rows_max = 256;
    EngineRunner runner(simt_engine(model, config, {.group_mma = group_mma}));
    TestSequence s = prompt;
    for (const int rows : {20, 100}) runner.step({runner.plan(s, rows, 0)});
    sampled.push_back(runner.decode(s, 12));
  }
  CHECK(sampled[0] == sampled[1]);
}

TEST_CASE("cuda engine: a sequence does not notice the batch it is in, of 1 to 16") {
  const auto model = tiny("qwen2", "BF16");
  constexpr int kSequences = 16, kCount = 6;
  std::vector<TestSequence> prompts;
  std::vector<Reference> want;
  const std::vector<SamplingParams> rules = sampling_rules();
  for (int i = 0; i < kSequences; ++i) {
    const auto at = static_cast<size_t>(i);
    prompts.push_back(sequence_of(random_tokens(3 + 5 * i, 96, 100 + at), 1000 + at, rules[at % rules.size()]));
    want.push_back(reference(model, CudaType::kBf16, prompts[at], kCount));
  }
  for (size_t batch = 1; batch <= kSequences; ++batch) {
    CAPTURE(batch);
    EngineRunner runner = gpu_runner(model, CudaType::kBf16, batch);
    std::vector<TestSequence> live(prompts.begin(), prompts.begin() + static_cast<ptrdiff_t>(batch));
    for (int n = 0; n < kCount; ++n) {
      const std::vector<SampledToken> sampled = runner.advance(live);
      for (size_t i = 0; i < batch; ++i) CHECK(sampled[i] == want[i].sampled[static_cast<size_t>(n)]);
    }
  }
}

TEST_CASE("cuda engine: steps that are graphs give the bits of kernels launched one by one, also where there is memory for few of them") {
  const auto model = tiny("qwen3", "BF16");
  std::vector<std::vector<SampledToken>> want;
  for (const int64_t graphs : {0, 2, 1 << 20}) {
    CudaEngineConfig config = small_config(CudaType::kBf16);
    config.graphs = graphs > 0;
    EngineRunner runner(simt_engine(model, config, {.graphs_max = graphs}));
    std::vector<TestSequence> live;
    std::vector<std::vector<SampledToken>> got;
    for (int n = 0; n < 25; ++n) {
      if (n % 4 == 0)  // batches of 1 to 7, whose contexts cross a split
        live.push_back(sequence_of(random_tokens(n == 0 ? 250 : 6 + n, 96, static_cast<uint64_t>(n)), 5, sampling_rules()[live.size()]));
      got.push_back(runner.advance(live));
    }
    if (graphs == 0) want = got;
    CHECK(got == want);
  }
}

TEST_CASE("cuda engine: a prompt computed beside a long context changes no bit of either") {
  for (const auto& [type, model] : attention_models()) {
    EngineRunner alone(simt_engine(model, small_config(type))), together(simt_engine(model, small_config(type)));
    const auto context = [&](EngineRunner& runner) {  // of two splits
      TestSequence s = sequence_of(random_tokens(300, 96, 1), 1, kRandom);
      runner.step({runner.plan(s, 299, 0)});
      return s;
    };
    TestSequence a = context(alone), b = context(together);
    TestSequence first = sequence_of(random_tokens(70, 96, 2), 2, kRandom), second = first;
    std::vector<SequenceStep> steps{together.plan(second, 70, 1), together.plan(b, 1, 1)};
    const StepResult got = together.step(std::move(steps));
    CHECK(got.sampled[0] == alone.step({alone.plan(first, 70, 1)}).sampled[0]);
    CHECK(got.sampled[1] == alone.step({alone.plan(a, 1, 1)}).sampled[0]);
  }
}

TEST_CASE("cuda engine: a verify of any width accepts what decoding samples, with its bits") {
  for (const auto& [type, model] : attention_models()) {
    constexpr int kCount = 60;
    for (const SamplingParams& sampling : {kRandom, sampling_rules()[9], sampling_rules().back()}) {
      const TestSequence prompt = sequence_of(random_tokens(29, 96, 5), 77, sampling);
      const Reference want = reference(model, type, prompt, kCount);
      std::mt19937_64 rng(9);
      EngineRunner runner = gpu_runner(model, type);
      TestSequence s = prompt;
      std::vector<SampledToken> got = runner.decode(s, 1);
      for (int width = 1; got.size() < kCount; width = width % 20 + 1) {
        // A right draft of random length, then wrong tokens.
        const size_t at = got.size(), right = rng() % static_cast<uint64_t>(width + 1);
        TestSequence drafted = s;
        for (size_t i = 0; i < static_cast<size_t>(width); ++i)
          drafted.tokens.push_back(i < right && at + i < kCount ? want.sampled[at + i].token : static_cast<int32_t>(rng() % 96));
        const int32_t rows = width + 1;
        const SequenceStep step = runner.plan(drafted, rows, rows);
        s.blocks = drafted.blocks;
        const auto sampled = runner.step({step}).sampled.at(0);
        const int32_t accepted = acceptance_length(std::span(step.tokens).subspan(1), sampled);
        for (int32_t i = 0; i < accepted; ++i) {
          got.push_back(sampled[static_cast<size_t>(i)]);
          s.tokens.push_back(got.back().token);
        }
        s.computed += accepted;
      }
      got.resize(kCount);
      CHECK(got == want.sampled);
    }
  }
}

TEST_CASE("cuda engine: every row of a draft tree gives what its path gives as a linear draft") {
  for (const auto& [kind, dtype] : {std::pair{"qwen3", "BF16"}, {"llama", "F32"}}) {
    const auto model = tiny(kind, dtype);
    std::mt19937_64 rng(21);
    EngineRunner runner = gpu_runner(model, dtype == std::string("F32") ? CudaType::kF32 : CudaType::kBf16);
    check_rows_of_trees(runner, {2, 17, cuda::kTreeRows}, rng);
  }
}

TEST_CASE("cuda engine: decoding with draft trees gives the tokens and the KV of decoding without") {
  for (const CudaType type : {CudaType::kBf16, CudaType::kF32}) {
    const auto model = tiny("qwen3", type == CudaType::kBf16 ? "BF16" : "F32");
    const auto make = [&] { return gpu_runner(model, type); };
    check_decoding_with_trees(make, make, 200);  // across a split of attention
  }
}

TEST_CASE("cuda engine: a large vocabulary is sampled with the CPU engine's bits under every rule") {
  // Repeated rows of the head: equal logits, also across parts, of which the lower ids win. Steep: most weights and some parts are 0.
  const auto head = [](auto value) {
    return [value](const TinyTensor& t, uint64_t index, float x) { return t.name == "lm_head.weight" ? value(t, index, x) : x; };
  };
  const TinyEdit repeated = head([](const TinyTensor& t, uint64_t index, float) {
    return tiny_value(t, 7, index % (static_cast<uint64_t>(t.shape[1]) * 37));
  });
  const TinyEdit steep = head([](const TinyTensor&, uint64_t, float x) { return 100 * x; });
  for (const auto& [vocab, edit] : {std::pair{3001, TinyEdit{}}, {2048, repeated}, {3003, repeated}, {3001, steep}, {5120, steep}}) {
    CAPTURE(vocab);
    const auto model = tiny("qwen3", "F32", {{"vocab_size", vocab}, {"num_hidden_layers", 1}, {"tie_word_embeddings", false}},
                            WeightType::kAsStored, edit);
    EngineRunner gpu = gpu_runner(model, CudaType::kF32), cpu = cpu_runner(model, KvType::kF32);
    std::vector<SequenceStep> gpu_steps, cpu_steps;
    for (const SamplingParams& sampling : sampling_rules())
      for (uint64_t seed = 0; seed < 3; ++seed) {
        TestSequence a = sequence_of(random_tokens(3, vocab, seed), seed, sampling), b = a;
        gpu_steps.push_back(gpu.plan(a, 3, 3));
        cpu_steps.push_back(cpu.plan(b, 3, 3));
      }
    CHECK(gpu.step(std::move(gpu_steps)).sampled == cpu.step(std::move(cpu_steps)).sampled);
  }
}

TEST_CASE("cuda engine: prompt blocks may be shared, copied out while others run, and continued on another engine") {
  const auto model = tiny("qwen3", "BF16");
  const std::vector<int32_t> prompt = random_tokens(64, 96, 21);
  const TestSequence first = sequence_of(prompt, 1, kRandom), second = sequence_of(prompt, 2, kRandom);
  const Reference want_first = reference(model, CudaType::kBf16, first, 12), want_second = reference(model, CudaType::kBf16, second, 30);
  EngineRunner here = gpu_runner(model, CudaType::kBf16, 1), there = gpu_runner(model, CudaType::kBf16, 2);
  CHECK(here.info().kv_hash == there.info().kv_hash);
  TestSequence a = first;
  CHECK(here.decode(a, 12) == want_first.sampled);
  TestSequence b = second;  // reads the prompt's first three blocks as `first` wrote them
  b.blocks.assign(a.blocks.begin(), a.blocks.begin() + 3);
  b.computed = 48;
  std::vector<SampledToken> got = here.decode(b, 10);
  for (DeviceBlockId& block : b.blocks) {
    uint32_t crc = 0;
    const std::vector<std::byte> bytes = here.export_block(block, &crc);
    CHECK(crc == crc32c(bytes));
    block = there.take_block();
    std::vector<std::byte> damaged(bytes.size(), std::byte{0x55});
    const std::vector<std::byte> before = there.export_block(block);
    CHECK(there.import_block(block, damaged, crc) != crc);
    CHECK(there.export_block(block) == before);
    CHECK(there.import_block(block, bytes, crc) == crc);
    CHECK(there.export_block(block) == bytes);
  }
  for (const SampledToken& t : there.decode(b, 20)) got.push_back(t);
  CHECK(got == want_second.sampled);
}

TEST_CASE("cuda engine: work that is queued at once keeps its order, per block") {
  const auto model = tiny("llama", "BF16");
  TestSequence s = sequence_of(random_tokens(33, 96, 4), 5, kRandom);
  const Reference want = reference(model, CudaType::kBf16, s, 1);
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    EngineRunner runner = gpu_runner(model, CudaType::kBf16, seed);
    TestSequence live = s, other = sequence_of(random_tokens(33, 96, 9), 5, kRandom);
    SequenceStep step = runner.plan(live, 33, 1);
    other.blocks = live.blocks;  // writes to the same blocks, after they were copied out
    SequenceStep overwrite = runner.plan(other, 33, 1);
    std::vector<std::vector<std::byte>> hosts(3, std::vector<std::byte>(static_cast<size_t>(runner.info().block_bytes)));
    CopyBatch out{.id = 2, .direction = CopyBatch::Direction::kExport, .blocks = {}};
    for (size_t i = 0; i < 3; ++i) out.blocks.push_back({.block = live.blocks[i], .host = hosts[i]});
    std::vector<SequenceStep> steps{step}, overwrites{overwrite};
    runner.submit(StepBatch{.id = 1, .sequences = steps});
    runner.submit(out);
    runner.submit(StepBatch{.id = 3, .sequences = overwrites});
    CHECK(std::get<StepResult>(runner.wait()).sampled.at(0) == want.sampled);
    CHECK(std::get<CopyResult>(runner.wait()).id == 2);
    CHECK(std::get<StepResult>(runner.wait()).id == 3);
    for (size_t i = 0; i < 3; ++i) CHECK(hosts[i] == want.blocks[i]);
  }
}

TEST_CASE("cuda engine: rows without finite logits say so, and no other row notices") {
  constexpr int32_t kHuge = 7;
  constexpr int64_t kAt = 25, kTokens = 41;  // fed at this position, so the rows from it on have no logits
  const nlohmann::json size = {{"tie_word_embeddings", false}};
  for (const CudaType type : {CudaType::kBf16, CudaType::kF32}) {
    const std::string dtype = type == CudaType::kBf16 ? "BF16" : "F32";
    CAPTURE(dtype);
    std::vector<int32_t> fine = random_tokens(kTokens, 96, 3), spoiled;
    for (int32_t& token : fine) token += token == kHuge;
    (spoiled = fine)[kAt] = kHuge;
    const auto scored = [](EngineRunner& runner, const std::vector<int32_t>& tokens, int64_t first, int64_t rows, TestSequence& s) {
      s.computed = first;
      SequenceStep step = runner.plan(s, rows, static_cast<int32_t>(rows));
      step.targets.assign(tokens.begin() + first + 1, tokens.begin() + first + rows + 1);
      return step;
    };
    EngineRunner plain = gpu_runner(tiny("qwen3", dtype, size), type);
    TestSequence alone = sequence_of(fine, 0, kRandom);
    const auto want = plain.step({scored(plain, fine, 0, kTokens - 1, alone)}).sampled[0];
    EngineRunner runner = gpu_runner(tiny("qwen3", dtype, size, WeightType::kAsStored, overflowing_token(kHuge)), type);
    for (const int64_t piece : {int64_t{1}, int64_t{16}, kTokens - 1}) {
      CAPTURE(piece);
      TestSequence a = sequence_of(spoiled, 0, kRandom), b = sequence_of(fine, 0, kRandom);
      for (int64_t first = 0; first + 1 < kTokens; first += piece) {
        const int64_t rows = std::min(piece, kTokens - 1 - first);
        const StepResult result = runner.step({scored(runner, spoiled, first, rows, a), scored(runner, fine, first, rows, b)});
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
  }
}

TEST_CASE("cuda engine: leftovers of former owners in a block do not matter, not even NaN") {
  const auto model = tiny("qwen3", "BF16");
  const TestSequence prompt = sequence_of(random_tokens(21, 96, 8), 3, kRandom);
  const Reference want = reference(model, CudaType::kBf16, prompt, 6);
  EngineRunner runner = gpu_runner(model, CudaType::kBf16);
  TestSequence s = prompt;
  runner.step({runner.plan(s, 20, 0)});
  std::vector<std::byte> bytes = runner.export_block(s.blocks[1]);
  auto* values = reinterpret_cast<uint16_t*>(bytes.data());
  for (size_t head = 0; head < bytes.size() / 2 / (16 * 32); ++head)  // K or V of a head: 16 positions of 32 values
    for (size_t i = 4 * 32; i < 16 * 32; ++i) values[head * 16 * 32 + i] = 0x7fc0;
  CHECK(runner.import_block(s.blocks[1], bytes, crc32c(bytes)) == crc32c(bytes));
  CHECK(runner.decode(s, 6) == want.sampled);
}

TEST_CASE("cuda engine: new weights take the old ones' place between two steps") {
  TestFolder folder;
  write_tiny_model(folder.path(), tiny_config("qwen3"), "BF16", 8);
  const auto model = tiny("qwen3", "BF16");
  const TestSequence prompt = sequence_of(random_tokens(21, 96, 8), 3, kRandom);
  const Reference want_old = reference(model, CudaType::kBf16, prompt, 6),
                  want_new = reference(*load_model(folder.path()), CudaType::kBf16, prompt, 6);
  CHECK(want_old.sampled != want_new.sampled);
  EngineRunner runner = gpu_runner(model, CudaType::kBf16);
  TestSequence a = prompt, b = prompt;
  CHECK(runner.decode(a, 6) == want_old.sampled);
  const uint64_t old_hash = runner.info().kv_hash;
  CHECK(runner.update(WeightVersion{2}, folder.path()).ok());
  CHECK(runner.info().version == WeightVersion{2});
  CHECK(runner.info().kv_hash != old_hash);
  CHECK(runner.decode(b, 6) == want_new.sampled);
  CHECK(!runner.update(WeightVersion{3}, "/does/not/exist").ok());
}

TEST_CASE("cuda engine (emulated): a config, a model or a device that cannot work is one sentence") {
  const auto model = tiny("llama", "BF16");
  const auto error = [](const std::shared_ptr<const Model>& of, const CudaEngineConfig& config, const simt::SimtConfig& device = {}) {
    return make_cuda_engine(of, simt::make_simt_device(device), config).error();
  };
  // 2 layers x 2 heads x 16 positions x 32 dims (16 are padded) x 2 (K, V) x 2 B
  CHECK(error(model, {.kv_bytes = 100}).detail == "cuda engine: kv_bytes is 100, one KV block of 16 tokens of this model needs 8192");
  CHECK(error(model, {.block_tokens = 24}).code == Code::kInvalidArgument);
  CHECK(error(model, {.rows_max = 1}).detail == "cuda engine: rows_max is 1, expected 128 to 32768");
  CHECK(error(tiny("llama", "F16"), {}).detail.ends_with("has F16 weights; bf16 would round them, f32 keeps them"));
  CHECK(error(tiny("llama", "BF16", {{"head_dim", 130}}), {}).detail.ends_with("has heads of 130 dimensions, at most 128 are known"));
  CHECK(error(tiny("llama", "BF16", {{"num_attention_heads", 65}, {"num_key_value_heads", 1}}), {}).detail.ends_with(
      "has 65 query heads per KV head, at most 64 are known"));
  CHECK(error(tiny("llama", "BF16", {{"vocab_size", 1048577}, {"hidden_size", 2}}), {}).detail.ends_with(
      "has a vocabulary of 1048577, at most 1048576 are known"));
  const Error full = error(model, small_config(CudaType::kBf16), {.memory_bytes = 1 << 20});
  CHECK(full.code == Code::kFull);
  CHECK(full.detail.starts_with("cuda engine: needs "));
  CHECK(full.detail.ends_with("simt has 1048576 free"));
  MESSAGE(full.detail);
}

TEST_CASE("cuda engine (emulated): as many KV blocks are found as fit on one GPU or on each of two, and no more") {
  const auto model = tiny("llama", "BF16");
  constexpr int64_t kMemory = 64 << 20;
  for (const size_t ranks : {1, 2}) {
    CAPTURE(ranks);
    CudaEngineConfig config = small_config(CudaType::kBf16);
    config.device_blocks = 0;
    const auto make = [&](int64_t kv_bytes, bool weights_beside) {
      std::vector<std::unique_ptr<cuda::Device>> devices;
      for (size_t i = 0; i < ranks; ++i) devices.push_back(simt::make_simt_device({.memory_bytes = kMemory}));
      config.kv_bytes = kv_bytes;
      config.weights_beside = weights_beside;
      return make_cuda_engine(model, std::move(devices), config);
    };
    const auto fit = [&](bool weights_beside, int64_t memory) {
      config.weights_beside = weights_beside;
      return cuda_kv_bytes_that_fit(*model, config, static_cast<int32_t>(ranks), memory);
    };
    const int64_t block_bytes = cuda_kv_block_bytes(model->config, config), fits = fit(false, kMemory).value();
    const auto engine = make(fits, false);
    REQUIRE(engine.ok());
    CHECK((*engine)->info().device_blocks == fits / block_bytes);
    CHECK(make(fits + block_bytes, false).error().code == Code::kFull);
    CHECK(fit(true, kMemory).value() < fits);
    CHECK(fit(false, 1 << 20).error().code == Code::kFull);
  }
}

}  // namespace seer
