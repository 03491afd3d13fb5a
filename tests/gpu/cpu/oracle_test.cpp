// The engine against the float64 reference of tests/oracle (make_vectors.py wrote data/oracle.json).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "gpu/engine_runner.h"
#include "gpu/tiny_model.h"

namespace seer {
namespace {

std::vector<nlohmann::json> oracle_cases() {
  std::ifstream in(SEER_TEST_DATA "/oracle.json");
  return nlohmann::json::parse(in).get<std::vector<nlohmann::json>>();
}

EngineRunner runner_for(const nlohmann::json& c) {
  TestFolder folder;
  write_tiny_model(folder.path(), c["config"], c["weights"], c["seed"]);
  auto model = load_model(folder.path());
  REQUIRE_MESSAGE(model.ok(), model.error().detail);
  const bool bf16 = c["weights"] == "BF16";
  return EngineRunner(std::move(
      *make_cpu_engine(*model, {.threads = 2, .device_blocks = 64, .kv_type = bf16 ? KvType::kBf16 : KvType::kF32})));
}

TEST_CASE("oracle: log-probabilities are those of float64, within 1e-4 or twice what bf16 costs torch") {
  double worst_f32 = 0, worst_bf16_ratio = 0;
  for (const nlohmann::json& c : oracle_cases()) {
    CAPTURE(c["name"].get<std::string>());
    EngineRunner runner = runner_for(c);
    TestSequence s;
    s.tokens = c["tokens"].get<std::vector<int32_t>>();
    const auto scored = static_cast<int32_t>(s.tokens.size()) - 1;
    SequenceStep step = runner.plan(s, scored, scored);
    step.targets.assign(s.tokens.begin() + 1, s.tokens.end());
    const StepResult result = runner.step({step});
    const auto want = c["logprobs"].get<std::vector<double>>();
    double worst = 0;
    for (int32_t i = 0; i < scored; ++i)
      worst = std::max(worst, std::fabs(static_cast<double>(result.sampled[0][i].logprob) - want[i]));
    CAPTURE(worst);
    if (c["weights"] == "BF16") {
      CHECK(worst <= 2 * c["bf16_error"].get<double>());
      worst_bf16_ratio = std::max(worst_bf16_ratio, worst / c["bf16_error"].get<double>());
    } else {
      CHECK(worst <= 1e-4);
      worst_f32 = std::max(worst_f32, worst);
    }
  }
  MESSAGE("worst f32 error ", worst_f32, ", worst bf16 error over torch's bf16 error ", worst_bf16_ratio);
}

TEST_CASE("oracle: greedy f32 decoding takes the same 256 tokens, up to where two are as likely") {
  for (const nlohmann::json& c : oracle_cases()) {
    if (!c.contains("greedy")) continue;
    CAPTURE(c["name"].get<std::string>());
    EngineRunner runner = runner_for(c);
    TestSequence s;
    s.tokens = c["tokens"].get<std::vector<int32_t>>();
    s.tokens.resize(c["prompt_tokens"].get<size_t>());
    const auto want = c["greedy"].get<std::vector<int32_t>>();
    const auto close = c["greedy_close_steps"].get<std::vector<int>>();
    const std::vector<SampledToken> got = runner.decode(s, static_cast<int>(want.size()));
    for (size_t i = 0; i < want.size(); ++i) {
      if (got[i].token == want[i]) continue;
      CAPTURE(i);
      CHECK(std::find(close.begin(), close.end(), static_cast<int>(i)) != close.end());
      break;  // the contexts differ from here on
    }
  }
}

}  // namespace
}  // namespace seer
