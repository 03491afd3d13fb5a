// tests/integration/exactness_test.cpp checks that scores are the log-probabilities of a rollout, bit for bit.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/rollout_command.h"
#include "cli/scratch.h"
#include "gpu/cpu/cpu_engine.h"
#include "gpu/cuda/cuda_device.h"
#include "gpu/step_runner.h"
#include "gpu/tiny_model.h"

using namespace seer;
using Json = nlohmann::json;

namespace {

const std::atomic<bool> kGoOn{false};

/// A model, lines to score, and their scores.
class Scoring {
 public:
  Scoring() {
    write_tiny_model(model_.path(), tiny_config("qwen3"), "BF16", 1);
    options.model = model_.path();
    options.in = folder.path("in.jsonl");
    options.out = folder.path("out.jsonl");
    options.threads = 1;
    options.kv_bytes = 4 << 20;
  }

  Status run(const std::vector<std::string>& lines, const std::atomic<bool>& stop = kGoOn) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    folder.write("in.jsonl", text);
    return score_command(options, stop);
  }
  /// The output's lines. REQUIRES: run() with these lines succeeds.
  std::vector<Json> scored(const std::vector<std::string>& lines) {
    const Status status = run(lines);
    REQUIRE_MESSAGE(status.ok(), status.error().detail);
    std::vector<Json> answers;
    std::istringstream out(folder.read("out.jsonl"));
    for (std::string line; std::getline(out, line);) answers.push_back(Json::parse(line));
    return answers;
  }

  ScratchFolder folder;
  ScoreOptions options;

 private:
  TestFolder model_;
};

std::vector<int32_t> some_ids(size_t count) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(i * i % 96));
  return ids;
}

/// some_ids(), of which the first `prompt_tokens` are the prompt's.
std::string line_of(size_t tokens, size_t prompt_tokens) {
  const std::vector<int32_t> ids = some_ids(tokens);
  const auto output = ids.begin() + static_cast<std::ptrdiff_t>(prompt_tokens);
  return Json{{"prompt_ids", std::vector(ids.begin(), output)}, {"output_ids", std::vector(output, ids.end())}}.dump();
}

/// Scores of some_ids() after the first, straight from an engine.
std::vector<float> scores_in_one_step(const ScoreOptions& options, size_t tokens) {
  const auto model = load_model(options.model);
  REQUIRE(model.ok());
  auto engine = make_cpu_engine(*model, {.threads = 1});
  REQUIRE(engine.ok());
  StepRunner runner(*std::move(engine));
  const std::vector<int32_t> ids = some_ids(tokens);
  StepBatch batch;
  SequenceStep& step = batch.sequences.emplace_back();
  step.tokens = {ids.begin(), ids.end() - 1};
  step.targets = {ids.begin() + 1, ids.end()};
  step.sample_rows = static_cast<int32_t>(tokens) - 1;
  for (size_t i = 0; i * 16 < tokens; ++i) step.blocks.push_back(static_cast<DeviceBlockId>(i));
  step.sampling = std::make_shared<const SamplingParams>();
  const StepResult result = runner.run(std::move(batch));
  std::vector<float> scores;
  for (const SampledToken& token : result.sampled.at(0)) scores.push_back(token.logprob);
  return scores;
}

}  // namespace

TEST_CASE("score: lines come back in their order, as they were, with a score for each token of the output") {
  Scoring scoring;
  const std::vector<Json> scored = scoring.scored({R"({"id": "b", "prompt_ids": [2, 3], "output_ids": [4, 5, 6]})",
                                                   R"({"prompt_ids": [7], "output_ids": [8], "note": 1.50})",
                                                   R"({"prompt_ids": [7], "output_ids": [], "error": "lost"})"});
  REQUIRE(scored.size() == 3);
  CHECK(scored[0]["id"] == "b");
  CHECK(scored[0]["scores"].size() == 3);
  CHECK(scored[1]["scores"].size() == 1);
  CHECK(scored[2]["scores"] == Json::array());
  for (const Json& line : scored)
    for (const double score : line["scores"]) CHECK(score < 0);
  CHECK(scoring.folder.read("out.jsonl").find(R"("note": 1.50,"scores")") != std::string::npos);
}

TEST_CASE("score: neither where the prompt ends nor in how many steps a line is read changes a score") {
  Scoring scoring;
  constexpr size_t kTokens = 1020;  // seer score takes 512 in a step
  const std::vector<float> all = scoring.scored({line_of(kTokens, 1)})[0]["scores"];
  CHECK(all == scores_in_one_step(scoring.options, kTokens));
  for (const size_t prompt_tokens : {2, 511, 512, 513, 514, 1019}) {
    CAPTURE(prompt_tokens);
    const std::vector<float> scores = scoring.scored({line_of(kTokens, prompt_tokens)})[0]["scores"];
    CHECK(scores == std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(prompt_tokens) - 1, all.end()));
  }
  // A short line's steps have other sizes.
  const std::vector<float> begin = scoring.scored({line_of(20, 1)})[0]["scores"];
  CHECK(begin == std::vector<float>(all.begin(), all.begin() + 19));
}

TEST_CASE("score: the temperature divides the logits, unless raw scores are asked for") {
  Scoring scoring;
  const auto scores_at = [&](float temperature, LogprobMode mode) -> std::vector<float> {
    scoring.options.temperature = temperature;
    scoring.options.logprob_mode = mode;
    return scoring.scored({line_of(9, 3)})[0]["scores"];
  };
  const auto plain = scores_at(1, LogprobMode::kProcessed);
  CHECK(scores_at(0.5f, LogprobMode::kProcessed) != plain);
  CHECK(scores_at(0.5f, LogprobMode::kRaw) == plain);
  CHECK(scores_at(0, LogprobMode::kProcessed) == plain);
}

TEST_CASE("score: a line that the model or the KV cache cannot take is refused before any is scored") {
  Scoring scoring;
  const std::string good = line_of(9, 3), in = scoring.options.in;
  CHECK(scoring.run({good, R"({"prompt_ids": [1], "output_ids": [96]})"}).error().detail ==
        in + ":2: token id 96 (number 0 of the output) is outside the vocabulary of 96");
  // 2 layers x 2 heads x 16 x K and V x 2 B = 256 B a token, 4096 a block of 16 tokens; 32 of 33 tokens need KV.
  scoring.options.kv_bytes = 4096;
  CHECK(scoring.run({good, line_of(33, 1)}).error().detail ==
        in + ":2: the prompt has 1 tokens and the output 32, all but the last need KV, and --kv-bytes 4096 has room for 16: "
             "the least that works is 8192");
  scoring.options.kv_bytes = 8192;
  CHECK(scoring.run({good, line_of(33, 1)}).ok());
  CHECK(scoring.run({good, line_of(34, 1)}).error().code == Code::kInvalidArgument);
}

TEST_CASE("score: when stopped it leaves no result") {
  Scoring scoring;
  const std::atomic<bool> stop{true};
  const Status stopped = scoring.run({line_of(9, 3)}, stop);
  REQUIRE(!stopped.ok());
  CHECK(stopped.error().code == Code::kCancelled);
  CHECK(!scoring.folder.has("out.jsonl"));
}

TEST_CASE("score: on a GPU that is not there, or with weights that it does not compute with, one sentence names the flag") {
  Scoring scoring;
  scoring.options.device = DeviceKind::kCuda;
  if (const auto devices = cuda::count_cuda_devices(); !devices.ok() || *devices == 0)
    CHECK(scoring.run({line_of(9, 3)}).error().code == Code::kUnavailable);
  scoring.options.weights = WeightType::kInt8;
  CHECK(scoring.run({line_of(9, 3)}).error().detail ==
        "--weights int8: expected stored with --device cuda, whose engine computes weights as stored");
}

#ifdef SEER_HAVE_SIMT
TEST_CASE("score: an emulated GPU gives its own scores in any number of steps, near those of the CPU") {
  Scoring scoring;
  const std::vector<float> on_cpu = scoring.scored({line_of(30, 1)})[0]["scores"];
  scoring.options.device = DeviceKind::kSimt;
  const std::vector<float> all = scoring.scored({line_of(30, 1)})[0]["scores"], end = scoring.scored({line_of(30, 20)})[0]["scores"];
  REQUIRE(all.size() == on_cpu.size());
  for (size_t i = 0; i < all.size(); ++i) CHECK(std::abs(all[i] - on_cpu[i]) < 0.1f);
  CHECK(end == std::vector<float>(all.begin() + 19, all.end()));
}
#endif
