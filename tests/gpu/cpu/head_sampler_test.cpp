// The reference keeps all logits: a plain loop computes each, then the sampler's functions take the whole row.
#include "gpu/cpu/head_sampler.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "gpu/cpu/denormals.h"
#include "gpu/sampler.h"

namespace seer {
namespace {

constexpr int32_t kColumns = 20;

struct Case {
  PackedMatrix head;
  Activations normed{kColumns};
  std::vector<SamplingParams> params;
  std::vector<HeadRow> rows;

  Case(int32_t vocab, uint32_t seed) : head(vocab, kColumns, MatrixType::kF32) {
    std::mt19937 rng(seed);
    const auto random = [&] { return static_cast<float>(rng() % 2001) / 1000.0f - 1.0f; };
    std::vector<float> weights(static_cast<size_t>(vocab) * kColumns);
    for (float& weight : weights) weight = random();
    head.fill(0, {TensorType::kF32, {vocab, kColumns}, std::as_bytes(std::span(weights))});
    params.resize(6);
    params[1].temperature = 0.0f;
    params[2].top_k = 5;
    params[3].top_p = 0.7f;
    params[4].repetition_penalty = 1.5f;
    params[5].temperature = 0.6f;
    normed.reserve_rows(HeadSampler::kRowsMax);
    for (int32_t i = 0; i < HeadSampler::kRowsMax; ++i) {
      for (int32_t k = 0; k < kColumns; ++k) normed.row(i)[k] = random();
      HeadRow row{.sampling = &params[static_cast<size_t>(i % 6)], .seed = rng(), .position = i, .penalty_tokens = {}};
      if (i % 5 == 4) row.target = static_cast<int32_t>(rng() % static_cast<uint32_t>(vocab));
      if (i % 6 == 4) row.penalty_tokens = {0, 3, vocab - 1};
      rows.push_back(row);
    }
    normed.row(9)[3] = std::numeric_limits<float>::quiet_NaN();   // scored
    normed.row(12)[0] = std::numeric_limits<float>::infinity();  // sampled
  }

  SampledToken expected(int32_t i) {
    const HeadRow& row = rows[static_cast<size_t>(i)];
    std::vector<float> logits(static_cast<size_t>(head.rows()), 0.0f), weights(kColumns);
    for (int32_t id = 0; id < head.rows(); ++id) {
      head.read_row(id, weights.data());
      for (int32_t k = 0; k < kColumns; ++k)
        logits[static_cast<size_t>(id)] =
            std::fmaf(normed.row(i)[k], weights[static_cast<size_t>(k)], logits[static_cast<size_t>(id)]);
    }
    if (row.target >= 0) {
      const float logprob = token_logprob(logits, row.target, *row.sampling);
      return std::isnan(logprob) ? SampledToken{kNotFinite, 0} : SampledToken{row.target, logprob};
    }
    const RowSample drawn = sample_row(logits, *row.sampling, row.seed, row.position, row.penalty_tokens);
    return {drawn.token, drawn.logprob};
  }
};

TEST_CASE("head sampler: each row gets the bits of its whole logits, whatever rows and threads are beside it") {
  const FlushDenormals flush;
  for (const int32_t vocab : {50, 1024, 9 * 1024 + 33}) {  // one part, and enough parts that logits are not kept
    CAPTURE(vocab);
    Case test(vocab, static_cast<uint32_t>(vocab));
    std::vector<SampledToken> expected;
    for (int32_t i = 0; i < HeadSampler::kRowsMax; ++i) expected.push_back(test.expected(i));
    CHECK(expected[9].token == kNotFinite);
    CHECK(expected[12].token == kNotFinite);
    for (const int32_t threads : {1, 3}) {
      CAPTURE(threads);
      ThreadPool pool(threads);
      Linear linear(*cpu_kernels(CpuIsa::kScalar), pool);
      HeadSampler sampler(vocab, linear, pool);
      for (const size_t count : {size_t{HeadSampler::kRowsMax}, size_t{13}, size_t{1}}) {
        CAPTURE(count);
        std::vector<SampledToken> tokens(count);
        sampler.run(test.head, test.normed, std::span(test.rows).first(count), tokens);
        int bad = 0;
        for (size_t i = 0; i < count; ++i)
          bad += tokens[i].token != expected[i].token ||
                 std::bit_cast<uint32_t>(tokens[i].logprob) != std::bit_cast<uint32_t>(expected[i].logprob);
        CHECK(bad == 0);
      }
    }
  }
}

}  // namespace
}  // namespace seer
