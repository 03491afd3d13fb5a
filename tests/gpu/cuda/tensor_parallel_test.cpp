// One engine on several devices, emulated or GPUs. Its bits depend on the parts in which sums over columns are taken, not on how many GPUs
// take them: an engine on one GPU that takes them in four parts is the reference for two and four. Cases named "tensor parallel with
// graphs" launch steps as graphs, the others kernel by kernel as the program does: on GPUs either may be what fails.
#include <chrono>
#include <thread>

#include "gpu/cuda/kernel_steps.h"
#include "gpu/cuda/peers.h"

namespace seer {
namespace {

/// Columns of the output projection and of down are whole tiles of a GEMM in each of four parts.
const nlohmann::json kFourParts = {{"num_attention_heads", 8}, {"num_key_value_heads", 4}, {"head_dim", 32},
                                   {"intermediate_size", 256}, {"vocab_size", 300}};

EngineRunner engine_on(int ranks, const std::shared_ptr<const Model>& model, CudaEngineConfig config, const simt::SimtConfig& device = {}) {
  auto made = make_cuda_engine(model, simt_devices(ranks, device), config);
  REQUIRE_MESSAGE(made.ok(), made.error().detail);
  return EngineRunner(*std::move(made));
}
/// Of two and four those that there are devices for.
std::vector<int> rank_counts() {
  std::vector<int> counts{2, 4};
  std::erase_if(counts, [](int ranks) { return ranks > simt::simt_devices_max(); });
  REQUIRE(!counts.empty());
  return counts;
}
CudaEngineConfig config_of(CudaType type, int32_t sum_parts = 0) {
  CudaEngineConfig config = small_config(type);
  config.sum_parts = sum_parts;
  config.graphs = false;
  return config;
}

/// What an engine samples for batches that grow from 1 to 7 sequences: of graphs those for 1, 2, 4 and 8 rows.
std::vector<std::vector<SampledToken>> run_growing_batch(EngineRunner runner) {
  std::vector<TestSequence> live;
  std::vector<std::vector<SampledToken>> got;
  for (int n = 0; n < 20; ++n) {
    if (n % 3 == 0) live.push_back(sequence_of(random_tokens(6 + n, 96, static_cast<uint64_t>(n)), 5, kRandom));
    got.push_back(runner.advance(live));
  }
  return got;
}

void check_new_weights(bool graphs) {
  TestFolder folder;
  write_tiny_model(folder.path(), tiny_config("qwen3"), "BF16", 8);
  const auto model = tiny("qwen3", "BF16");
  const TestSequence prompt = sequence_of(random_tokens(21, 96, 8), 3, kRandom);
  const Reference want = reference_on(engine_on(2, *load_model(folder.path()), config_of(CudaType::kBf16)), prompt, 6);
  for (const bool beside : {false, true}) {
    CAPTURE(beside);
    CudaEngineConfig config = config_of(CudaType::kBf16);
    config.graphs = graphs;
    config.weights_beside = beside;
    EngineRunner runner = engine_on(2, model, config);
    TestSequence a = prompt, b = prompt;
    CHECK(runner.decode(a, 6) != want.sampled);
    CHECK(runner.update(WeightVersion{2}, folder.path()).ok());
    CHECK(runner.decode(b, 6) == want.sampled);
  }
}

}  // namespace

TEST_CASE("tensor parallel: with equal parts of sums, one, two and four GPUs give the same bits") {
  constexpr size_t kSequences = 9;  // with few of them the sums of another order may round to the same bits
  int in_other_order = 0;  // kinds whose bits the order of sums changes
  for (const auto& [kind, type] :
       {std::pair<std::string, CudaType>{"qwen3", CudaType::kBf16}, {"qwen2", CudaType::kBf16}, {"llama", CudaType::kF32}}) {
    CAPTURE(kind);
    nlohmann::json size = kFourParts;
    size["attention_bias"] = size["mlp_bias"] = kind == "llama";
    size["tie_word_embeddings"] = kind != "qwen2";
    const auto model = tiny(kind, type == CudaType::kF32 ? "F32" : "BF16", size);
    const int32_t parts = type == CudaType::kF32 ? 4 : 0;  // bf16 has four by itself
    const StepsRun want = run_steps_on(engine_on(1, model, config_of(type, parts)), kSequences);
    REQUIRE(want.status.ok());
    in_other_order += run_steps_on(engine_on(1, model, config_of(type, 1)), kSequences).sampled != want.sampled;
    for (const int ranks : rank_counts()) {
      CAPTURE(ranks);
      const StepsRun run = run_steps_on(engine_on(ranks, model, config_of(type, parts), {.seed = 7}), kSequences);
      REQUIRE_MESSAGE(run.status.ok(), run.status.error().detail);
      CHECK(run.sampled == want.sampled);
    }
  }
  CHECK(in_other_order >= 2);
}

TEST_CASE("tensor parallel: the KV of the first layer has the bits of one GPU; later layers and log-probabilities are near") {
  const auto model = tiny("qwen3", "BF16", kFourParts);
  const TestSequence prompt = sequence_of(random_tokens(40, 300, 3), 11, kRandom);
  const Reference want = reference_on(engine_on(1, model, config_of(CudaType::kBf16)), prompt, 1);
  const ModelConfig& c = model->config;
  const size_t layer = want.blocks[0].size() / static_cast<size_t>(c.layers);
  for (const int ranks : rank_counts()) {
    CAPTURE(ranks);
    const Reference got = reference_on(engine_on(ranks, model, config_of(CudaType::kBf16)), prompt, 1);
    const size_t of_rank = layer / static_cast<size_t>(ranks);
    std::vector<std::byte> first, want_first;
    bool all_equal = true;
    for (size_t b = 0; b < 2; ++b) {  // whole blocks
      want_first.insert(want_first.end(), want.blocks[b].begin(), want.blocks[b].begin() + static_cast<ptrdiff_t>(layer));
      for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
        const auto own = got.blocks[b].begin() + static_cast<ptrdiff_t>(rank * of_rank * static_cast<size_t>(c.layers));
        first.insert(first.end(), own, own + static_cast<ptrdiff_t>(of_rank));
      }
      all_equal = all_equal && got.blocks[b] == want.blocks[b];
    }
    CHECK(first == want_first);
    CHECK(!all_equal);
    CHECK(std::abs(got.sampled[0].logprob - want.sampled[0].logprob) < 0.1f);
  }
}

TEST_CASE("tensor parallel: every chunking and batch gives the bits of one row at a time, and KV moves between engines") {
  const auto model = tiny("qwen2", "BF16");
  const TestSequence prompt = sequence_of(random_tokens(61, 96, 3), 11, kRandom);
  const Reference want = reference_on(engine_on(2, model, config_of(CudaType::kBf16)), prompt, 9);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    EngineRunner here = engine_on(2, model, config_of(CudaType::kBf16), {.seed = 10 * seed}),
                 there = engine_on(2, model, config_of(CudaType::kBf16));
    CHECK(here.info().kv_hash == there.info().kv_hash);
    TestSequence s = prompt, other = sequence_of(random_tokens(20, 96, seed), 1, kRandom);
    here.step({here.plan(other, 20, 1), here.plan(s, 13 * static_cast<int64_t>(seed), 0)});
    std::vector<SampledToken> got = here.decode(s, 4);
    for (DeviceBlockId& block : s.blocks) {
      uint32_t crc = 0;
      const std::vector<std::byte> bytes = here.export_block(block, &crc);
      block = there.take_block();
      CHECK(there.import_block(block, bytes, crc) == crc);
    }
    for (const SampledToken& t : there.decode(s, 5)) got.push_back(t);
    CHECK(got == want.sampled);
  }
  CHECK(engine_on(1, model, config_of(CudaType::kBf16)).info().kv_layout !=
        engine_on(2, model, config_of(CudaType::kBf16)).info().kv_layout);
}

TEST_CASE("tensor parallel: draft trees give the tokens and the KV of decoding without") {
  const auto model = tiny("qwen3", "BF16");
  const auto make = [&] { return engine_on(2, model, config_of(CudaType::kBf16)); };
  check_decoding_with_trees(make, make, 29);
}

TEST_CASE("tensor parallel: new weights reach every GPU, beside the old ones or in their place") { check_new_weights(false); }

TEST_CASE("tensor parallel with graphs: new weights reach every GPU, beside the old ones or in their place") { check_new_weights(true); }

TEST_CASE("tensor parallel with graphs: steps give the bits of kernels launched one by one") {
  const auto model = tiny("qwen3", "BF16", kFourParts);
  CudaEngineConfig config = config_of(CudaType::kBf16);
  const auto want = run_growing_batch(engine_on(1, model, config));
  config.graphs = true;
  for (const int ranks : rank_counts()) {
    CAPTURE(ranks);
    CHECK(run_growing_batch(engine_on(ranks, model, config)) == want);
  }
}

TEST_CASE("tensor parallel with graphs (emulated): where some GPUs have no memory for a graph, all do without, and the bits are the same") {
  const auto model = tiny("qwen3", "BF16");
  CudaEngineConfig config = config_of(CudaType::kBf16);
  const auto want = run_growing_batch(engine_on(2, model, config));
  config.graphs = true;
  for (const auto& [first, second] : {std::pair{1, 100}, {100, 0}, {2, 1}}) {
    CAPTURE(first);
    CAPTURE(second);
    std::vector<std::unique_ptr<cuda::Device>> devices;
    devices.push_back(simt::make_simt_device({.seed = 1, .graphs_max = first}));
    devices.push_back(simt::make_simt_device({.index = 1, .seed = 2, .graphs_max = second}));
    auto made = make_cuda_engine(model, std::move(devices), config);
    REQUIRE(made.ok());
    CHECK(run_growing_batch(EngineRunner(*std::move(made))) == want);
  }
}

TEST_CASE("tensor parallel: ranks agree only on what all say yes to, vote after vote, and not with one that does not come") {
  constexpr int32_t kRanks = 3, kVotes = 2000;
  constexpr int64_t kAMinuteUs = 60'000'000;
  const auto says = [](int32_t rank, int32_t vote) { return vote % 7 != rank && vote % 5 != 4; };
  cuda::Peers peers(kRanks, kAMinuteUs);
  std::vector<int32_t> wrong(kRanks);
  {
    std::vector<std::jthread> ranks;
    for (int32_t rank = 0; rank < kRanks; ++rank)
      ranks.emplace_back([&, rank] {
        for (int32_t vote = 0; vote < kVotes; ++vote) {
          bool want = true;
          for (int32_t other = 0; other < kRanks; ++other) want = want && says(other, vote);
          const Result<bool> agreed = peers.agree(rank, says(rank, vote));
          wrong[static_cast<size_t>(rank)] += !agreed.ok() || *agreed != want;
        }
      });
  }
  CHECK(wrong == std::vector<int32_t>(kRanks));
  CHECK(cuda::Peers(2, 1).agree(0, true).error().detail == "cuda: rank 1 of 2 did not come to a vote within 1 us");
}

TEST_CASE("tensor parallel (emulated): a GPU that fails or hangs ends the step on all of them, with a sentence that names it") {
  const auto model = tiny("llama", "BF16");
  const auto first_error = [&](const simt::SimtConfig& second, int64_t timeout_us) {
    std::vector<std::unique_ptr<cuda::Device>> devices = simt_devices(1);
    devices.push_back(simt::make_simt_device(second));
    CudaEngineConfig config = config_of(CudaType::kBf16);
    config.graphs = true;
    config.peer_timeout_us = timeout_us;
    auto made = make_cuda_engine(model, std::move(devices), config);
    REQUIRE(made.ok());
    EngineRunner runner(*std::move(made));
    TestSequence s = sequence_of(random_tokens(9, 96, 1), 1, kRandom);
    Status status;
    for (int i = 0; i < 20 && status.ok(); ++i) {
      runner.submit(StepBatch{.id = 1, .sequences = {runner.plan(s, std::ssize(s.tokens) - s.computed, 1)}});
      const auto result = std::get<StepResult>(runner.wait());
      status = result.status;
      if (status.ok()) s.tokens.push_back(result.sampled[0][0].token);
    }
    REQUIRE(!status.ok());
    CHECK(status.error().code == Code::kUnavailable);
    return status.error().detail;
  };
  const auto begin = std::chrono::steady_clock::now();
  const std::string failed = first_error({.fail_launch = 100}, int64_t{600} * 1'000'000);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(100));  // nobody waited for the timeout
  CHECK_MESSAGE(failed.find("launch 100 (") != std::string::npos, failed);
  // Which of the two notices first is chance: the one that hangs, or the one that waits for it.
  const std::string hung = first_error({.hang_launch = 100}, 2'000'000);
  CHECK_MESSAGE(hung.find("rank 1 of 2 did not ") != std::string::npos, hung);
}

TEST_CASE("tensor parallel (emulated): a model that does not divide is refused in one sentence") {
  const auto error = [](const std::shared_ptr<const Model>& model, int ranks, int32_t sum_parts = 0) {
    std::string detail = make_cuda_engine(model, simt_devices(ranks), config_of(CudaType::kBf16, sum_parts)).error().detail;
    return detail.substr(detail.find(": ", detail.find(": ") + 2) + 2);
  };
  const auto model = tiny("llama", "BF16");
  CHECK(error(model, 3) == "query heads 4, expected a multiple of the 3 GPUs");
  CHECK(error(model, 4) == "KV heads 2, expected a multiple of the 4 GPUs");
  CHECK(error(tiny("llama", "BF16", {{"intermediate_size", 97}}), 2) == "intermediate_size 97, expected a multiple of the 2 GPUs");
  CHECK(make_cuda_engine(model, simt_devices(2), config_of(CudaType::kBf16, 3)).error().detail ==
        "cuda engine: sum_parts is 3, expected a multiple of the 2 GPUs");
  CHECK(make_cuda_engine(model, simt_devices(2), config_of(CudaType::kBf16, 4)).error().detail ==
        "cuda engine: sum_parts is 4, but 64 columns are not that many times 64");
}

}  // namespace seer
