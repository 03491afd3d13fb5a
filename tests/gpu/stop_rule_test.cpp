#include "gpu/stop_rule.h"

#include <doctest/doctest.h>

#include <random>

using namespace seer;

namespace {

// Token t of the tests is the text kPieces[t].
const std::vector<std::string> kPieces = {"a", "b", "ab", "ba", "", "\n", "aab", "bab\nb", "\xc3", "\xa9"};
std::string piece(int32_t token) { return kPieces[static_cast<size_t>(token)]; }

SamplingParams with_stop(std::vector<std::string> stop, int64_t max_tokens = 1000) {
  SamplingParams params;
  params.stop = std::move(stop);
  params.max_tokens = max_tokens;
  return params;
}

constexpr int32_t kEos = 99;
const StopLimits kLimits{.eos_ids = {kEos, 100}, .context_tokens_max = 1000};

StopRule rule_of(const SamplingParams& params, std::vector<int32_t> output = {}, int64_t prompt_tokens = 10) {
  TokenLog log(std::vector<int32_t>(static_cast<size_t>(prompt_tokens)));
  log.append(output);
  return StopRule(params, kLimits, log, piece);
}

}  // namespace

TEST_CASE("stop rule: EOS and stop tokens finish, EOS not when ignored") {
  SamplingParams params;
  params.stop_token_ids = {7};
  CHECK(rule_of(params).add(3) == Finish{});
  CHECK(rule_of(params).add(7) == Finish{FinishReason::kStop, 7, -1});
  CHECK(rule_of(params).add(kEos) == Finish{FinishReason::kStop, kEos, -1});
  CHECK(rule_of(params).add(100) == Finish{FinishReason::kStop, 100, -1});
  params.ignore_eos = true;
  CHECK(rule_of(params).add(kEos) == Finish{});
  CHECK(rule_of(params).add(7).reason == FinishReason::kStop);
}

TEST_CASE("stop rule: the last allowed token finishes by length, unless it is a stop") {
  SamplingParams params;
  params.max_tokens = 2;
  StopRule rule = rule_of(params);
  CHECK(rule.tokens_left() == 2);
  CHECK(rule.add(0) == Finish{});
  CHECK(rule.tokens_left() == 1);
  CHECK(rule.add(0) == Finish{FinishReason::kLength, -1, -1});
  CHECK(rule_of(params, {0}).add(kEos).reason == FinishReason::kStop);
}

TEST_CASE("stop rule: prompt and output together stay within the context") {
  StopRule rule = rule_of({}, {}, 998);
  CHECK(rule.add(0).reason == FinishReason::kNone);
  CHECK(rule.add(0).reason == FinishReason::kLength);
  CHECK(rule_of({}, {0}, 998).add(0).reason == FinishReason::kLength);
}

TEST_CASE("stop rule: a stop string may span tokens and end inside the newest one") {
  StopRule rule = rule_of(with_stop({"abba"}));
  CHECK(rule.add(0).reason == FinishReason::kNone);          // a
  CHECK(rule.add(1).reason == FinishReason::kNone);          // ab
  CHECK(rule.add(4).reason == FinishReason::kNone);          // a token without text
  CHECK(rule.add(7) == Finish{FinishReason::kStop, -1, 0});  // abbab\nb
  CHECK(rule_of(with_stop({"\n"})).add(7).stop_index == 0);
  CHECK(rule_of(with_stop({"\xc3\xa9"}), {8}).add(9).stop_index == 0);  // one character in two tokens
}

TEST_CASE("stop rule: of several stop strings the one that ends first counts, then the first in the list") {
  CHECK(rule_of(with_stop({"\nb", "ab", "b\n", "ba"})).add(7).stop_index == 3);
  CHECK(rule_of(with_stop({"aab", "b", "ab"})).add(6).stop_index == 0);
}

TEST_CASE("stop rule: random outputs finish where the whole text first has a stop string, however chunked") {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    std::vector<std::string> stops;
    for (size_t i = 1 + rng() % 3; i > 0; --i) {
      std::string stop;
      for (size_t n = 1 + rng() % 6; n > 0; --n) stop += "ab\n"[rng() % 8 / 3];
      stops.push_back(stop);
    }
    const SamplingParams params = with_stop(stops, 40);
    StopRule whole = rule_of(params), chunked = rule_of(params);
    std::vector<int32_t> output;
    std::string text;
    for (;;) {
      const auto token = static_cast<int32_t>(rng() % kPieces.size());
      output.push_back(token);
      text += piece(token);

      // The obvious reference: searches the whole text for the match that ends first.
      Finish expected;
      size_t first_end = std::string::npos;
      for (size_t s = 0; s < stops.size(); ++s) {
        const size_t at = text.find(stops[s]);
        if (at == std::string::npos || at + stops[s].size() >= first_end) continue;
        first_end = at + stops[s].size();
        expected = {FinishReason::kStop, -1, static_cast<int32_t>(s)};
      }
      if (expected.reason == FinishReason::kNone && output.size() == 40) expected.reason = FinishReason::kLength;

      REQUIRE(whole.add(token) == expected);
      REQUIRE(chunked.add(token) == expected);
      if (expected.reason != FinishReason::kNone) break;
      if (rng() % 3 == 0) chunked = rule_of(params, output);
    }
  }
}
