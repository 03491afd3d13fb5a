// The sampler: one row of logits -> one token and its log-probability. Pure functions, thread-safe: the result depends
// on the arguments alone, bit for bit, whatever the batch, the thread or the processor. Used by the engines.
//
// Order of the rules, as in Hugging Face:
//   1. repetition penalty on each distinct token in penalty_tokens: a positive logit is divided by it, others multiplied;
//   2. before min_tokens: the logits of the banned ids, EOS and stop tokens, become the lowest float;
//   3. temperature;
//   4. top-k: exactly the k largest (ties at the threshold: lower ids);
//   5. top-p: of what is left, the fewest tokens in order of falling probability, then id, whose share is >= p;
//   6. min-p: of these, the ones with at least min_p times the largest probability;
//   7. the token at which the cumulative probability over ascending ids passes philox_uniform(seed, position).
// Temperature 0 is greedy: the largest logit after the penalty; the lowest id wins a tie.
//
// The log-probability is that of the untouched logits (before penalty, ban and cuts): log-softmax(logits / temperature), or
// log-softmax(logits) in raw mode and at temperature 0.
//
// LogprobMode::kKept: the log-probability is that of the penalised and cut logits, and the ids that are left come with it. At
// temperature 0 that is the token alone.
//
// A row with a logit that is NaN or infinite gives no token: kNotFinite (engine.h). What a penalty makes of finite logits
// is clamped to the finite floats. Denormals count as zero.
//
// All sums over a row are taken part by part (kPartIds ids each, row_softmax.h), each relative to its own largest
// logit, and then added in order. So the logits of a row need not all be in memory at once (PartedRow).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/engine.h"
#include "protocols/result.h"
#include "protocols/rollout.h"

namespace seer {

struct RowSample {
  int32_t token = 0;  // or kNotFinite
  float logprob = 0;
  KeptList kept = nullptr;
};

/// A row whose logits come in parts of kPartIds ids, in any order and from any threads: enough to sample without cuts
/// and penalty, and for the log-probability of any token. Gives the bits of sample_row() and token_logprob().
class PartedRow {
 public:
  /// True if one pass over the parts is enough. Cuts and penalties need all logits at once.
  static bool suffices(const SamplingParams& params);
  /// REQUIRES: validate(params) is ok.
  PartedRow(int64_t vocab, const SamplingParams& params);

  int64_t parts() const { return static_cast<int64_t>(maxima_.size()); }
  /// REQUIRES: called once for each part, with all of its ids, before the calls below.
  void add(int64_t part, std::span<const float> logits);

  /// False: nothing can be sampled or scored. The calls below REQUIRE true.
  bool finite() const;

  /// Where the sampled token is. pick() needs the logits of that part again.
  struct Choice {
    int64_t part = 0;
    double target = 0;  // cumulative weight within the part that the token passes
  };
  Choice choose(uint64_t seed, int64_t position) const;
  RowSample pick(const Choice& choice, std::span<const float> part_logits) const;
  /// Log-probability of a token with this logit.
  float logprob(float logit) const;

 private:
  float largest() const;

  float temperature_, logprob_temperature_;
  std::vector<float> maxima_;         // of each part; NaN: the part has a logit that is not finite
  std::vector<double> sums_;          // of exp((logit - maximum of the part) / temperature_); empty if greedy
  std::vector<double> logprob_sums_;  // the same at logprob_temperature_; empty if both temperatures are equal
};

/// Samples the token at `position` of the sequence with this seed. A repetition penalty and the ban are applied
/// to the logits in place.
/// REQUIRES: logits not empty; validate(params) is ok; penalty_tokens (prompt and output so far; read only with a
/// repetition penalty) and `banned` are ids of the vocabulary.
RowSample sample_row(std::span<float> logits, const SamplingParams& params, uint64_t seed, int64_t position,
                     const std::vector<int32_t>& penalty_tokens, std::span<const int32_t> banned = {});

/// The log-probability that sample_row() returns with `token`, to the bit; NaN if that gives kNotFinite.
/// REQUIRES: token is an id of the vocabulary; validate(params) is ok; not kKept.
float token_logprob(std::span<const float> logits, int32_t token, const SamplingParams& params);

/// Below this, but for 0, logits / temperature would overflow.
inline constexpr float kTemperatureLeast = 1e-4f;

/// Stop strings of a request. Each is looked for at every token.
inline constexpr int64_t kStopTextsMax = 1024;
/// kInvalidArgument with one sentence on the first field that cannot be used.
Status validate(const SamplingParams& params);

/// The EOS and stop tokens of a request, ascending. `eos_ids`: the model's.
std::vector<int32_t> ending_ids(const SamplingParams& params, const std::vector<int32_t>& eos_ids);
/// Ending ids of a request with min_tokens.
inline constexpr int64_t kEndingIdsMax = 16;
/// kInvalidArgument: min_tokens, and more than kEndingIdsMax ending ids.
Status check_ending_ids(const SamplingParams& params, const std::vector<int32_t>& eos_ids);

}  // namespace seer
