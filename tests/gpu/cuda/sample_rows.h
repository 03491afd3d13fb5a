// weigh_logits and sample_rows by themselves, on the emulation or on a GPU: any logits, against the sampler of the CPU.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gpu/cpu/exact_math.h"
#include "gpu/cuda/cuda_bench.h"
#include "gpu/cuda/cuda_forward.h"
#include "gpu/philox.h"
#include "gpu/sampler.h"

namespace seer {

struct SampleCase {
  std::string what;
  std::vector<float> logits;
  SamplingParams params;
  uint64_t seed = 1;
  std::vector<int32_t> tokens = {0};  // of the sequence up to the row
  int32_t target = -1;                // >= 0: score it
  bool bans = false;                  // its stop tokens
};

/// What a row gives: the kept ids are those of LogprobMode::kKept, as far as they come back.
struct SampledRow {
  SampledToken sampled;
  std::vector<int32_t> kept;
};

/// Samples a row of each case, of a sequence of its own. REQUIRES: equal sizes of rows, at most kSamplesMax cases.
inline std::vector<SampledRow> sample_on_device(const std::vector<SampleCase>& cases) {
  using namespace cuda;
  constexpr int32_t kBlockTokens = 16, kTableStride = 64;
  const auto device = simt::make_simt_device({});
  const auto count = static_cast<int32_t>(cases.size()), vocab = static_cast<int32_t>(cases[0].logits.size());
  const int32_t stride = padded(vocab, 4), parts = (vocab + kPart - 1) / kPart, bits = (vocab + 31) / 32;
  std::vector<float> logits(static_cast<size_t>(count * stride));
  std::vector<SlotState> slots;
  std::vector<int32_t> tables, log;
  std::vector<RowState> rows;
  Pass pass;
  pass.rows.resize(cases.size());
  for (const SampleCase& c : cases) {
    const auto slot = static_cast<int32_t>(slots.size()), position = static_cast<int32_t>(c.tokens.size()) - 1;
    std::ranges::copy(c.logits, logits.begin() + slot * stride);
    ChangeList change;
    change.add_sequence(slot, {.start = position, .tokens = {c.tokens.back()}, .sample_rows = 1, .seed = c.seed,
                               .sampling = std::make_shared<const SamplingParams>(c.params), .ends_from = c.bans ? position + 2 : 0}, kBlockTokens);
    slots.push_back(change.slots[0].state);
    for (int32_t i = 0; i < kTableStride; ++i) tables.push_back(slot * kTableStride + i);
    log.resize(tables.size() * kBlockTokens);
    std::ranges::copy(c.tokens, log.begin() + slot * kTableStride * kBlockTokens);
    rows.push_back({.slot = slot, .position = position, .token = c.tokens.back(), .block = 0, .place = position,
                    .root = std::numeric_limits<int32_t>::max(), .parent = -1, .tree = -1});
    pass.samples.push_back({.row = slot, .target = c.target});
  }
  std::vector<std::byte> plan(static_cast<size_t>(CudaForward::plan_bytes(count)));
  CudaForward::write_plan(pass, plan.data());
  const auto memory = [&](int64_t elements, auto like) { return reinterpret_cast<decltype(like)*>(*device->allocate(elements * int64_t{sizeof like})); };
  const SampleArgs args{.plan = reinterpret_cast<const Plan*>(put_on(*device, plan)),
                        .rows = reinterpret_cast<const RowState*>(put_on(*device, rows)),
                        .slots = reinterpret_cast<const SlotState*>(put_on(*device, slots)),
                        .tables = reinterpret_cast<const int32_t*>(put_on(*device, tables)),
                        .log = reinterpret_cast<const int32_t*>(put_on(*device, log)),
                        .logits = reinterpret_cast<float*>(put_on(*device, logits)),
                        .maxima = memory(count * parts, float{}),
                        .sums = memory(count * parts, double{}),
                        .logprob_sums = memory(count * parts, double{}),
                        .candidates = memory(int64_t{count} * vocab, 0ull),
                        .bucket = memory(int64_t{count} * vocab, 0ull),
                        .penalized = memory(count * bits, uint32_t{}),
                        .sampled = memory(count, Sampled{}),
                        .kept_counts = reinterpret_cast<int32_t*>(put_on(*device, std::vector<int32_t>(cases.size()))),
                        .kept = reinterpret_cast<int32_t*>(put_on(*device, std::vector<int32_t>(cases.size() * kKeptStride, -1))),
                        .vocab = vocab, .vocab_stride = stride, .parts = parts, .penalized_stride = bits, .table_stride = kTableStride,
                        .block_tokens = kBlockTokens, .first_sample = 0};
  const int32_t launched = count + 1;  // a row too many
  device->launch(Stream::kSteps, KernelId::k_weigh_logits, {(parts + kWeighedParts - 1) / kWeighedParts, launched}, args);
  device->launch(Stream::kSteps, KernelId::k_sample_rows, {launched}, args);
  std::vector<Sampled> sampled(cases.size());
  std::vector<int32_t> counts(cases.size()), kept(cases.size() * kKeptStride);
  device->copy_out(Stream::kSteps, sampled.data(), args.sampled, std::ssize(sampled) * 8);
  device->copy_out(Stream::kSteps, counts.data(), args.kept_counts, std::ssize(counts) * 4);
  device->copy_out(Stream::kSteps, kept.data(), args.kept, std::ssize(kept) * 4);
  const Status status = device->wait(device->record(Stream::kSteps));
  REQUIRE_MESSAGE(status.ok(), status.error().detail);
  std::vector<SampledRow> out;
  for (size_t i = 0; i < sampled.size(); ++i) {
    const auto first = kept.begin() + static_cast<ptrdiff_t>(i * kKeptStride);
    out.push_back({{sampled[i].token, sampled[i].logprob}, {first, first + counts[i]}});
  }
  return out;
}

inline SampledRow sample_on_cpu(const SampleCase& c) {
  if (c.target >= 0) {
    const float logprob = token_logprob(c.logits, c.target, c.params);
    return {std::isnan(logprob) ? SampledToken{kNotFinite, 0} : SampledToken{c.target, logprob}, {}};
  }
  std::vector<float> logits = c.logits;
  const RowSample sample = sample_row(logits, c.params, c.seed, std::ssize(c.tokens), c.tokens,
                                      c.bans ? ending_ids(c.params, {}) : std::vector<int32_t>());
  SampledRow row{{sample.token, sample.logprob}, sample.kept ? *sample.kept : std::vector<int32_t>()};
  row.kept.resize(std::min<size_t>(row.kept.size(), cuda::kKeptStride));
  return row;
}

/// Rows in which the drawn target is so near to the weight of the first of two tokens that only the sum in order decides.
inline std::vector<SampleCase> near_targets(int32_t vocab) {
  constexpr float kNone = -1e30f;
  std::vector<SampleCase> found;
  bool has[2] = {false, false};  // the target is beyond the weight
  for (uint64_t seed = 0; !has[0] || !has[1]; ++seed) {
    const double uniform = philox_uniform(seed, 1);
    const auto logit = static_cast<float>(std::log(1 / uniform - 1));
    for (const float x : {logit, std::nextafter(logit, 9.0f), std::nextafter(logit, -9.0f)}) {
      if (uniform < 0.6 || x > 0) continue;
      const double beyond = uniform * (1 + static_cast<double>(exact_exp(x))) - 1;
      if (std::abs(beyond) > 0x1p-42 || std::exchange(has[beyond >= 0], true)) continue;
      SampleCase near{.what = "a target within 2^-42", .logits = std::vector<float>(static_cast<size_t>(vocab), kNone), .params = {}, .seed = seed};
      near.logits[30] = 0;
      near.logits[40] = x;
      found.push_back(std::move(near));
    }
  }
  return found;
}

/// Every rule over logits of several kinds, alone and beside a penalty of either kind on tokens with logits of both signs.
inline std::vector<SampleCase> sample_cases(int32_t vocab) {
  std::mt19937_64 rng(5);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> random(static_cast<size_t>(vocab)), tied(random.size()), equal(random.size(), 0.25f), steep(random.size()), masked(random.size()),
      weightless(random.size());
  constexpr float kHighest = std::numeric_limits<float>::max();
  for (size_t i = 0; i < random.size(); ++i) {
    random[i] = normal(rng);
    tied[i] = std::round(random[i]);
    steep[i] = random[i] * 40;
    masked[i] = i % 3 == 0 ? -kHighest : i % 101 == 0 ? kHighest : random[i];
    weightless[i] = i % 5 == 0 ? 0 : -87.34f;  // above the floor of the cuts, but with a weight of 0
  }
  std::vector<int32_t> many;
  for (int32_t i = 0; i < 900; ++i) many.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab)));
  std::vector<SamplingParams> rules(1);
  rules.push_back({.temperature = 0});
  rules.push_back({.temperature = 0.6f, .top_k = 7});
  rules.push_back({.top_k = vocab / 2});
  rules.push_back({.top_p = 0.9f, .top_k = 40});
  rules.push_back({.temperature = 1.7f, .top_p = 0.95f});
  rules.push_back({.top_p = 0.01f});
  rules.push_back({.min_p = 0.02f});
  rules.push_back({.temperature = 0.8f, .top_p = 0.8f, .top_k = 300, .min_p = 0.001f});
  rules.push_back({.temperature = 3, .logprob_mode = LogprobMode::kRaw});
  std::vector<SampleCase> cases;
  for (const SamplingParams& rule : rules)
    for (const auto& [what, logits] : {std::pair{"random", &random}, {"tied", &tied}, {"equal", &equal}, {"steep", &steep}, {"masked", &masked}, {"weightless", &weightless}})
      for (const float penalty : {1.0f, 1.3f, 0.7f}) {
        SampleCase c{.what = what, .logits = *logits, .params = rule, .seed = cases.size(), .tokens = penalty == 1.0f ? std::vector<int32_t>{3} : many};
        c.params.repetition_penalty = penalty;
        cases.push_back(std::move(c));
      }
  for (size_t i = 0, plain = cases.size(); i < plain; ++i) {
    SampleCase c = cases[i];
    c.params.logprob_mode = LogprobMode::kKept;
    if (validate(c.params).ok()) cases.push_back(std::move(c));
  }
  for (size_t i = 0, unbanned = cases.size(); i < unbanned; i += 5) {  // every row and rule
    SampleCase c = cases[i];
    c.bans = true;
    for (int32_t id = 0; id < kEndingIdsMax; ++id) c.params.stop_token_ids.push_back(id * (vocab / 20));
    cases.push_back(std::move(c));
  }
  for (const SamplingParams& rule : {rules[0], rules[9]})
    for (const int32_t target : {0, 1, vocab - 1})
      cases.push_back({.what = "scored", .logits = masked, .params = rule, .target = target});
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    cases.push_back({.what = "not finite", .logits = random, .params = rules[4]});
    cases.back().logits[static_cast<size_t>(vocab) - 2] = bad;
  }
  for (SampleCase& near : near_targets(vocab)) cases.push_back(std::move(near));
  return cases;
}

/// More parts than a sum over them takes at once.
inline std::vector<SampleCase> long_sample_cases() {
  std::vector<SampleCase> cases;
  for (const SamplingParams& rule : {SamplingParams{}, SamplingParams{.temperature = 0.5f, .logprob_mode = LogprobMode::kRaw}, SamplingParams{.top_p = 0.9f},
                                     SamplingParams{.temperature = 30, .top_p = 0.99f, .logprob_mode = LogprobMode::kKept}}) {  // keeps more than come back
    SampleCase& c = cases.emplace_back(SampleCase{.what = "long", .logits = std::vector<float>(17000), .params = rule});
    std::mt19937_64 rng(cases.size());
    std::normal_distribution<float> normal(0, 3);
    for (float& logit : c.logits) logit = normal(rng);
  }
  return cases;
}

/// The device gives the tokens and log-probabilities of the CPU.
inline void check_sample_rows(const std::vector<SampleCase>& cases) {
  for (size_t first = 0; first < cases.size(); first += cuda::kSamplesMax) {
    const std::vector<SampleCase> some(cases.begin() + static_cast<ptrdiff_t>(first),
                                       cases.begin() + static_cast<ptrdiff_t>(std::min(first + cuda::kSamplesMax, cases.size())));
    const std::vector<SampledRow> got = sample_on_device(some);
    for (size_t i = 0; i < some.size(); ++i) {
      CAPTURE(first + i);
      CAPTURE(some[i].what);
      CAPTURE(some[i].params.repetition_penalty);
      const SampledRow want = sample_on_cpu(some[i]);
      CHECK(got[i].sampled.token == want.sampled.token);
      CHECK(std::bit_cast<uint32_t>(got[i].sampled.logprob) == std::bit_cast<uint32_t>(want.sampled.logprob));
      CHECK(got[i].kept == want.kept);
    }
  }
}

}  // namespace seer
