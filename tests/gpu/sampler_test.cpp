#include "gpu/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <span>

#include "gpu/cpu/denormals.h"
#include "gpu/cpu/exact_math.h"
#include "gpu/philox.h"

// SamplingParams by name: the fields left out have their defaults.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

using namespace seer;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_row(std::mt19937_64& rng, size_t count, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> row(count);
  for (float& x : row) x = normal(rng);
  return row;
}

RowSample sample(std::vector<float> row, const SamplingParams& params, uint64_t seed = 1, int64_t position = 0,
                 const std::vector<int32_t>& penalty_tokens = {}) {
  return sample_row(row, params, seed, position, penalty_tokens);
}

// Tokens drawn over many positions.
std::set<int32_t> tokens_seen(const std::vector<float>& row, const SamplingParams& params, int draws = 2000) {
  std::set<int32_t> seen;
  for (int i = 0; i < draws; ++i) seen.insert(sample(row, params, 3, i).token);
  return seen;
}

// The obvious reference: full sorts, every token's weight in hand. Gives the tokens that may be drawn, ascending, with
// their weights (0: cut away).
std::vector<float> reference_weights(std::vector<float> row, const SamplingParams& params,
                                     const std::vector<int32_t>& penalty_tokens) {
  for (int32_t token : std::set<int32_t>(penalty_tokens.begin(), penalty_tokens.end()))
    row[token] = row[token] > 0 ? row[token] / params.repetition_penalty : row[token] * params.repetition_penalty;
  const float max = *std::max_element(row.begin(), row.end());
  std::vector<float> weights;
  for (float& x : row) weights.push_back(exact_exp(x = (x - max) / params.temperature));

  std::vector<int32_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  if (params.top_k > 0) {
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    order.resize(std::min(order.size(), static_cast<size_t>(params.top_k)));
    std::sort(order.begin(), order.end());
  }
  if (params.top_p < 1) {
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return weights[a] > weights[b]; });
    long double total = 0, mass = 0;
    for (int32_t id : order) total += weights[id];
    size_t count = 0;
    do mass += weights[order[count++]];
    while (count < order.size() && mass < static_cast<long double>(params.top_p) * total);
    order.resize(count);
  }
  std::vector<float> kept(row.size());
  for (int32_t id : order)
    if (weights[id] >= params.min_p) kept[id] = weights[id];
  return kept;
}

// True when `token` is where the cumulative weight passes u, give or take rounding.
bool is_drawn(const std::vector<float>& weights, int32_t token, double u) {
  if (weights[token] == 0) return false;
  long double total = 0, before = 0;
  for (float w : weights) total += w;
  for (int32_t id = 0; id < token; ++id) before += weights[id];
  const long double slack = 1e-12L * total;
  return before <= u * total + slack && u * total <= before + weights[token] + slack;
}

}  // namespace

TEST_CASE("sampler: random rows and parameters agree with the slow obvious reference") {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    const auto one_of = [&](auto... values) {
      const std::common_type_t<decltype(values)...> all[] = {values...};
      return all[rng() % sizeof...(values)];
    };
    const size_t count = rng() % 10 == 0 ? 4000 + rng() % 3000 : 1 + rng() % 400;
    auto row = random_row(rng, count, one_of(0.01f, 1.0f, 5.0f, 30.0f));
    if (rng() % 3 == 0)
      for (float& x : row) x = std::round(x);  // ties
    SamplingParams params;
    params.temperature = one_of(1.0f, 0.6f, 1e-4f, 100.0f, 1.3f);
    params.top_k = static_cast<int32_t>(one_of(0, 0, 1, 2, 20, 5000, static_cast<int>(1 + rng() % count)));
    params.top_p = one_of(1.0f, 1.0f, 0.95f, 0.5f, 0.999f, 1e-6f);
    params.min_p = one_of(0.0f, 0.0f, 0.05f, 0.9f, 1e-5f);
    params.repetition_penalty = one_of(1.0f, 1.0f, 1.2f, 0.5f);
    std::vector<int32_t> history(rng() % 50);
    for (int32_t& token : history) token = static_cast<int32_t>(rng() % count);
    REQUIRE(validate(params).ok());

    const auto weights = reference_weights(row, params, history);
    for (int64_t position = 0; position < 4; ++position) {
      const RowSample got = sample(row, params, seed, position, history);
      CAPTURE(got.token);
      REQUIRE(is_drawn(weights, got.token, philox_uniform(seed, position)));
      const float again = token_logprob(row, got.token, params);
      REQUIRE(std::bit_cast<uint32_t>(again) == std::bit_cast<uint32_t>(got.logprob));
    }
  }
}

TEST_CASE("sampler: the ids that the cuts left come with the token, and its log-probability is over them; the token stays the same") {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    const auto row = random_row(rng, 2 + rng() % 3000, 3.0f);
    SamplingParams params{.temperature = rng() % 2 == 0 ? 0.7f : 1.5f, .top_p = 0.9f};
    if (rng() % 3 == 0) params.top_k = 20;
    if (rng() % 3 == 0) params.min_p = 0.01f;
    if (rng() % 3 == 0) params.repetition_penalty = 1.3f;
    const int32_t without = sample(row, params, seed, 0, {0, 1}).token;
    const std::vector<float> weights = reference_weights(row, params, {0, 1});
    params.logprob_mode = LogprobMode::kKept;
    REQUIRE(validate(params).ok());
    CHECK_FALSE(PartedRow::suffices(params));
    const RowSample got = sample(row, params, seed, 0, {0, 1});
    REQUIRE(got.token == without);
    REQUIRE(got.kept != nullptr);
    std::vector<int32_t> expected;
    double total = 0;
    for (size_t id = 0; id < weights.size(); ++id)
      if (weights[id] > 0) expected.push_back(static_cast<int32_t>(id)), total += static_cast<double>(weights[id]);
    REQUIRE(*got.kept == expected);
    REQUIRE(static_cast<double>(got.logprob) == doctest::Approx(std::log(static_cast<double>(weights[static_cast<size_t>(got.token)]) / total)).epsilon(1e-5));
  }
}

TEST_CASE("sampler: at temperature 0 the token alone is kept; without cuts there is nothing to give back") {
  SamplingParams params{.temperature = 0, .logprob_mode = LogprobMode::kKept};
  const RowSample got = sample({1, 5, 3}, params);
  CHECK(got.token == 1);
  CHECK(got.logprob == 0);
  CHECK(*got.kept == std::vector{1});
  params.temperature = 1;
  CHECK(validate(params).error().detail == "sampling: top_p is 1, expected a number below 1, or top_k or min_p, to give back the ids that were kept");
}

TEST_CASE("sampler: log-probabilities are those of the untouched logits, close to exact arithmetic") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    const auto row = random_row(rng, 1 + rng() % 3000, 4.0f);
    for (LogprobMode mode : {LogprobMode::kProcessed, LogprobMode::kRaw}) {
      for (float temperature : {0.0f, 0.5f, 1.0f, 3.0f}) {
        SamplingParams params{.temperature = temperature, .top_p = 0.9f, .top_k = 5, .repetition_penalty = 1.5f};
        params.logprob_mode = mode;
        const RowSample got = sample(row, params, seed, 0, {0});
        const double t = temperature == 0 || mode == LogprobMode::kRaw ? 1.0 : static_cast<double>(temperature);
        double sum = 0;
        for (float x : row) sum += std::exp(static_cast<double>(x) / t);
        const double expected = static_cast<double>(row[got.token]) / t - std::log(sum);
        REQUIRE(static_cast<double>(got.logprob) == doctest::Approx(expected).epsilon(1e-6));
        REQUIRE(token_logprob(row, got.token, params) == got.logprob);
      }
    }
  }
}

TEST_CASE("sampler: the draws have the distribution of the softmax (chi-square)") {
  std::mt19937_64 rng(11);
  const auto row = random_row(rng, 30, 1.5f);
  const auto weights = reference_weights(row, {}, {});
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const int draws = 200'000;
  std::vector<int> seen(row.size());
  for (int i = 0; i < draws; ++i) ++seen[sample(row, {}, static_cast<uint64_t>(i / 500), i % 500).token];
  double chi_square = 0;
  for (size_t id = 0; id < row.size(); ++id) {
    const double expected = draws * static_cast<double>(weights[id]) / total;
    chi_square += (seen[id] - expected) * (seen[id] - expected) / expected;
  }
  CAPTURE(chi_square);
  CHECK(chi_square < 58.3);  // 29 degrees of freedom: 0.999 quantile
  CHECK(chi_square > 10.0);  // 0.0004 quantile: too even is suspicious too
}

TEST_CASE("sampler: a whole row of a large vocabulary has the distribution of its softmax, in all of its parts") {
  std::mt19937_64 rng(5);
  const size_t count = 152'064;
  const auto row = random_row(rng, count, 2.0f);
  const auto weights = reference_weights(row, {}, {});
  for (int64_t position = 0; position < 60; ++position) {
    const RowSample got = sample(row, {}, 9, position);
    REQUIRE(is_drawn(weights, got.token, philox_uniform(9, position)));
  }
}

TEST_CASE("sampler: greedy takes the largest logit after the penalty, the lowest id of equal ones") {
  const SamplingParams greedy{.temperature = 0.0f};
  CHECK(sample({1, 3, 3, 2}, greedy).token == 1);
  CHECK(sample({-0.0f, 0.0f, 1e-40f}, greedy).token == 0);
  CHECK(sample({1, 3, 2.5f, 2}, {.temperature = 0.0f, .repetition_penalty = 2.0f}, 1, 0, {1, 1}).token == 2);
  CHECK(sample({-1, -3, -2}, {.temperature = 0.0f, .repetition_penalty = 4.0f}, 1, 0, {0}).token == 2);
}

TEST_CASE("sampler: banned ids are as if their logits were the lowest, and no log-probability but the kept ones knows of the ban") {
  std::mt19937_64 rng(4);
  for (int trial = 0; trial < 300; ++trial) {
    CAPTURE(trial);
    const std::vector<float> row = random_row(rng, 20 + rng() % 3000, 3);
    std::vector<int32_t> banned;
    for (int i = 0; i < 16; ++i) banned.push_back(static_cast<int32_t>(rng() % 20));  // some twice; some are likely
    std::vector<float> without = row;
    for (const int32_t id : banned) without[static_cast<size_t>(id)] = std::numeric_limits<float>::lowest();
    for (const SamplingParams& params : {SamplingParams{}, {.temperature = 0}, {.top_k = 3}, {.top_p = 0.8f}, {.min_p = 0.3f},
                                         {.top_k = 5, .logprob_mode = LogprobMode::kKept}, {.temperature = 0.5f, .repetition_penalty = 1.5f}}) {
      std::vector<float> logits = row;
      const RowSample got = sample_row(logits, params, 1, trial, {3, 19}, banned);
      CHECK(std::ranges::find(banned, got.token) == banned.end());
      SamplingParams cut = params;
      if (PartedRow::suffices(params)) cut.min_p = std::numeric_limits<float>::min();  // drawn the same way
      const RowSample want = sample(without, cut, 1, trial, {3, 19});
      CHECK(got.token == want.token);
      if (params.logprob_mode == LogprobMode::kKept) {
        CHECK(got.logprob == want.logprob);
        CHECK(*got.kept == *want.kept);
      } else {
        CHECK(got.logprob == token_logprob(row, got.token, params));
      }
    }
  }
}

TEST_CASE("sampler: the ids that end a response are its stop tokens and the model's end tokens, each once") {
  CHECK(ending_ids({.stop_token_ids = {7, 2, 7}}, {5, 2}) == std::vector<int32_t>{2, 5, 7});
  CHECK(ending_ids({.stop_token_ids = {7, 2}, .ignore_eos = true}, {5}) == std::vector<int32_t>{2, 7});
  SamplingParams many{.stop_token_ids = std::vector<int32_t>(17)};
  std::iota(many.stop_token_ids.begin(), many.stop_token_ids.end(), 0);
  CHECK(check_ending_ids(many, {3}).ok());
  many.min_tokens = 4;
  CHECK(check_ending_ids(many, {3}).error().detail == "min_tokens is 4 with 17 stop_token_ids and EOS ids: expected at most 16");
  many.stop_token_ids.pop_back();
  CHECK(check_ending_ids(many, {3}).ok());
}

TEST_CASE("sampler: the penalty counts once for a token however often it occurs") {
  CHECK(sample({4, 1.5f}, {.temperature = 0.0f, .repetition_penalty = 2.0f}, 1, 0, {0, 0, 0}).token == 0);
}

TEST_CASE("sampler: top-k keeps exactly k, of equal logits the lower ids") {
  CHECK(tokens_seen({1, 2, 1, 1, 2}, {.top_k = 3}) == std::set<int32_t>{0, 1, 4});
  CHECK(tokens_seen({1, 1, 1, 1}, {.top_k = 2}) == std::set<int32_t>{0, 1});
  CHECK(tokens_seen({1, 1, 1, 1}, {.top_k = 100}) == std::set<int32_t>{0, 1, 2, 3});
  std::vector<float> flat(5000, 1.0f);
  CHECK(tokens_seen(flat, {.top_k = 3}) == std::set<int32_t>{0, 1, 2});
}

TEST_CASE("sampler: top-p keeps the fewest tokens whose share is reached, and at least one") {
  const float half = std::log(0.5f), quarter = std::log(0.25f);
  CHECK(tokens_seen({quarter, half, quarter}, {.top_p = 0.4f}) == std::set<int32_t>{1});
  CHECK(tokens_seen({quarter, half, quarter}, {.top_p = 0.6f}) == std::set<int32_t>{0, 1});
  CHECK(tokens_seen({quarter, half, quarter}, {.top_p = 0.8f}) == std::set<int32_t>{0, 1, 2});
  CHECK(tokens_seen({quarter, half, quarter}, {.top_p = 1e-7f}) == std::set<int32_t>{1});
  CHECK(tokens_seen({0, 0, 0, 0}, {.top_p = 0.5f}) == std::set<int32_t>{0, 1});
  // Of the two that top-k leaves, the first has two thirds.
  CHECK(tokens_seen({quarter, half, quarter}, {.top_p = 0.6f, .top_k = 2}) == std::set<int32_t>{1});
}

TEST_CASE("sampler: min-p is relative to the most probable token") {
  const std::vector<float> row = {std::log(0.6f), std::log(0.32f), std::log(0.08f)};
  CHECK(tokens_seen(row, {.min_p = 0.5f}) == std::set<int32_t>{0, 1});
  CHECK(tokens_seen(row, {.min_p = 0.1f}) == std::set<int32_t>{0, 1, 2});
  CHECK(tokens_seen(row, {.min_p = 0.99f}) == std::set<int32_t>{0});
}

TEST_CASE("sampler: a cold temperature is greedy, a hot one even") {
  CHECK(tokens_seen({1, 3, 2.99f}, {.temperature = 1e-4f}) == std::set<int32_t>{1});
  CHECK(tokens_seen({-1e30f, 1e30f, 3e38f}, {.temperature = 1e-4f}) == std::set<int32_t>{2});
  CHECK(tokens_seen({0, 10, 30}, {.temperature = 100.0f}) == std::set<int32_t>{0, 1, 2});
  CHECK(sample({0, 10}, {.temperature = 1e-4f}).logprob == 0.0f);
}

TEST_CASE("sampler: a row with one logit that is not finite gives no token, under any rule and wherever it is") {
  SamplingParams raw = {.temperature = 0.7f};
  raw.logprob_mode = LogprobMode::kRaw;
  const std::vector<SamplingParams> rules{{},
                                          {.temperature = 0.0f},
                                          {.temperature = 100.0f},
                                          raw,
                                          {.top_p = 0.5f},
                                          {.top_k = 2},
                                          {.min_p = 0.5f},
                                          {.repetition_penalty = 1.3f},
                                          {.temperature = 0.0f, .repetition_penalty = 1.3f}};
  const std::vector<int32_t> history{0, 1, 2};
  for (const size_t count : {1, 3, 1024, 2500})
    for (const size_t at : {size_t{0}, count / 2, count - 1})
      for (const float bad : {kNan, kInf, -kInf})
        for (size_t rule = 0; rule < rules.size(); ++rule) {
          CAPTURE(count);
          CAPTURE(at);
          CAPTURE(bad);
          CAPTURE(rule);
          std::vector<float> row(count, 1.0f);
          const std::vector<int32_t> penalised(history.begin(), history.begin() + static_cast<ptrdiff_t>(std::min<size_t>(count, 3)));
          REQUIRE(sample(row, rules[rule], 1, 0, penalised).token >= 0);
          REQUIRE_FALSE(std::isnan(token_logprob(row, 0, rules[rule])));
          row[at] = bad;
          REQUIRE(sample(row, rules[rule], 1, 0, penalised).token == kNotFinite);
          REQUIRE(std::isnan(token_logprob(row, 0, rules[rule])));
          PartedRow parted(std::ssize(row), rules[rule]);
          for (int64_t part = parted.parts(); part-- > 0;) {
            const auto begin = static_cast<size_t>(part) * 1024;
            parted.add(part, std::span<const float>(row).subspan(begin, std::min<size_t>(1024, count - begin)));
          }
          REQUIRE_FALSE(parted.finite());
        }
}

TEST_CASE("sampler: finite logits that a penalty takes beyond the largest float count as infinite") {
  const SamplingParams greedy{.temperature = 0.0f, .repetition_penalty = 0.01f};
  CHECK(sample({1, 3e38f, 3.3e38f}, greedy, 1, 0, {1}).token == 1);
  CHECK(sample({-3e38f, -1}, {.temperature = 0.0f, .repetition_penalty = 100.0f}, 1, 0, {0, 1}).token == 1);
}

TEST_CASE("sampler: the result does not depend on the thread's denormal mode") {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    auto row = random_row(rng, 1 + rng() % 60, 1e-38f);
    for (const SamplingParams& params :
         {SamplingParams{}, SamplingParams{.temperature = 0.0f}, SamplingParams{.temperature = 100.0f, .top_k = 3},
          SamplingParams{.top_p = 0.5f, .min_p = 0.1f}}) {
      const RowSample plain = sample(row, params, seed);
      FlushDenormals flush;
      const RowSample flushed = sample(row, params, seed);
      REQUIRE(plain.token == flushed.token);
      REQUIRE(std::bit_cast<uint32_t>(plain.logprob) == std::bit_cast<uint32_t>(flushed.logprob));
    }
  }
}

TEST_CASE("sampler: bad parameters are refused with the field, its value and what was expected") {
  const auto refusal = [](const SamplingParams& params) {
    const Status status = validate(params);
    return status.ok() ? std::string("ok") : status.error().detail;
  };
  CHECK(refusal({}) == "ok");
  CHECK(refusal({.temperature = 0.0f}) == "ok");
  CHECK(refusal({.temperature = -1.0f}) ==
        "sampling: temperature is -1, expected 0 (greedy) or a number from 0.0001 to 10000");
  CHECK(refusal({.temperature = kNan}).starts_with("sampling: temperature is nan"));
  CHECK(refusal({.top_p = 0.0f}) == "sampling: top_p is 0, expected a number above 0 and at most 1 (1: off)");
  CHECK(refusal({.top_p = kNan}).starts_with("sampling: top_p"));
  CHECK(refusal({.top_k = -1}) == "sampling: top_k is -1, expected 0 (off) or a count of tokens");
  CHECK(refusal({.min_p = 1.0f}) == "sampling: min_p is 1, expected a number from 0 (off) to below 1");
  CHECK(refusal({.repetition_penalty = 0.0f}) ==
        "sampling: repetition_penalty is 0, expected a number from 0.01 to 100 (1: off)");
  CHECK(refusal({.max_tokens = 0}) == "sampling: max_tokens is 0, expected at least 1");
  CHECK(refusal({.max_tokens = 9, .min_tokens = 9}) == "ok");
  CHECK(refusal({.max_tokens = 9, .min_tokens = 10}) == "sampling: min_tokens is 10, expected 0 (off) or a count of tokens up to max_tokens, 9");
  CHECK(refusal({.min_tokens = -1}).starts_with("sampling: min_tokens is -1, expected"));
  CHECK(refusal({.stop_token_ids = {5, -2}}) == "sampling: stop_token_ids is -2, expected token ids, none below 0");
  CHECK(refusal({.stop = std::vector<std::string>(1025, "a")}) == "sampling: stop is a list of 1025, expected at most 1024 strings");
  CHECK(refusal({.stop = {"a", ""}}) == "sampling: stop is \"\", expected strings that are not empty");
  SamplingParams params;
  params.logprob_mode = static_cast<LogprobMode>(7);
  CHECK(refusal(params) == "sampling: logprob_mode is 7, expected 0 (processed), 1 (raw), 2 (none) or 3 (kept)");
}

TEST_CASE("sampler: a row that comes in parts, in any order, gives the same bits") {
  const FlushDenormals flush;
  std::mt19937_64 rng(5);
  for (int trial = 0; trial < 60; ++trial) {
    CAPTURE(trial);
    std::vector<float> row = random_row(rng, 1 + rng() % 5000, trial % 3 == 0 ? 20.0f : 2.0f);
    for (float& x : row)
      if (trial % 4 == 3 && rng() % 16 == 0) x = std::array{3e38f, -3e38f, 0.0f, -0.0f, 1e-40f}[rng() % 5];
    SamplingParams params;
    params.temperature = std::array{1.0f, 0.0f, 0.7f, 2.5f}[rng() % 4];
    if (trial % 5 == 0) params.logprob_mode = LogprobMode::kRaw;
    REQUIRE(PartedRow::suffices(params));
    PartedRow parted(std::ssize(row), params);
    const auto part_of = [&](int64_t part) {
      const auto begin = static_cast<size_t>(part) * 1024;
      return std::span<const float>(row).subspan(begin, std::min<size_t>(1024, row.size() - begin));
    };
    std::vector<int64_t> order(static_cast<size_t>(parted.parts()));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng);
    for (const int64_t part : order) parted.add(part, part_of(part));
    for (int64_t position = 0; position < 50; ++position) {
      const PartedRow::Choice choice = parted.choose(9, position);
      const RowSample got = parted.pick(choice, part_of(choice.part)), want = sample(row, params, 9, position);
      REQUIRE(got.token == want.token);
      REQUIRE(std::bit_cast<uint32_t>(got.logprob) == std::bit_cast<uint32_t>(want.logprob));
    }
    const auto token = static_cast<int32_t>(rng() % row.size());
    CHECK(parted.logprob(row[static_cast<size_t>(token)]) == token_logprob(row, token, params));
  }
}

TEST_CASE("sampler: the largest logit and the draw are found across parts") {
  std::vector<float> row(3000, -5.0f);
  row[2500] = row[1100] = 3.0f;
  SamplingParams greedy;
  greedy.temperature = 0.0f;
  CHECK(sample(row, greedy).token == 1100);
  const std::set<int32_t> seen = tokens_seen(row, {}, 400);
  CHECK(seen.contains(1100));
  CHECK(seen.contains(2500));
  row.assign(3000, -1e30f);
  row[2999] = -200.0f;
  CHECK(sample(row, {}).token == 2999);
  CHECK(sample(row, {}).logprob == 0.0f);
}
