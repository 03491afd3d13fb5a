#include "gpu/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "gpu/cpu/exact_math.h"
#include "gpu/cpu/row_softmax.h"
#include "gpu/philox.h"
#include "protocols/check.h"

namespace seer {
namespace {

constexpr float kHighest = std::numeric_limits<float>::max();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kNoWeightBelow = -87.336f;  // exact_exp() is 0 from here down

const RowSoftmaxKernels& kernels() {
  static const RowSoftmaxKernels* const fastest = row_softmax_kernels(CpuIsa::kAuto);
  return *fastest;
}

// The same clamping as in row_softmax.h.
float clamp_logit(float x) { return std::min(x > -kHighest ? x : -kHighest, kHighest); }

// Orders floats as integers: equal for both zeros and all denormals, whatever the thread's denormal mode.
int32_t order_key(float x) {
  const auto bits = std::bit_cast<int32_t>(x);
  if ((bits & 0x7f800000) == 0) return 0;
  return bits < 0 ? std::numeric_limits<int32_t>::min() - bits : bits;
}

// The softmax of a row at one temperature, relative to its largest logit, for the cuts.
struct RowSoftmax {
  float max = 0;
  float temperature = 1;
  double total = 0;

  RowSoftmax(std::span<const float> logits, float temperature_in) : temperature(temperature_in) {
    const auto count = static_cast<int64_t>(logits.size());
    max = kernels().max(logits.data(), count).largest;
    std::vector<double> sums(static_cast<size_t>((count + kPartIds - 1) / kPartIds));
    kernels().exp_sums(logits.data(), count, max, temperature, sums.data());
    for (double sum : sums) total += sum;
  }
  float scaled(float logit) const { return (clamp_logit(logit) - max) / temperature; }
};

// Penalises each distinct token once and keeps the original logits.
class RepetitionPenalty {
 public:
  RepetitionPenalty(std::span<float> logits, float penalty, const std::vector<int32_t>& tokens) {
    if (penalty == 1.0f) return;
    std::vector<bool> seen(logits.size());
    for (int32_t token : tokens) {
      SEER_CHECK(token >= 0, token);
      SEER_CHECK(static_cast<size_t>(token) < logits.size(), token, logits.size());
      if (seen[token]) continue;
      seen[token] = true;
      float& logit = logits[token];
      untouched_.push_back({token, logit});
      logit = clamp_logit(logit);
      if (logit > -kHighest) logit = logit > 0.0f ? logit / penalty : logit * penalty;
    }
  }
  float untouched(std::span<const float> logits, int32_t token) const {
    for (const auto& [id, logit] : untouched_)
      if (id == token) return logit;
    return logits[token];
  }

 private:
  struct Untouched {
    int32_t token;
    float logit;
  };
  std::vector<Untouched> untouched_;
};

// Calls visit(id) for the ids whose logit passes, ascending. The test runs on a whole group first, which the compiler
// turns into vector code: most groups have none. Stops when visit() returns false.
template <class Passes, class Visit>
void for_each_passing(std::span<const float> logits, Passes passes, Visit visit) {
  constexpr size_t kGroup = 64;
  for (size_t begin = 0; begin < logits.size(); begin += kGroup) {
    const auto group = logits.subspan(begin, std::min(kGroup, logits.size() - begin));
    int any = 0;
    for (float logit : group) any |= static_cast<int>(passes(logit));
    if (any == 0) continue;
    for (size_t i = 0; i < group.size(); ++i)
      if (passes(group[i]) && !visit(static_cast<int32_t>(begin + i))) return;
  }
}

// The lowest id with the largest logit.
int32_t greedy(std::span<const float> logits) {
  const int32_t best = order_key(kernels().max(logits.data(), static_cast<int64_t>(logits.size())).largest);
  int32_t token = -1;
  for_each_passing(
      logits, [best](float logit) { return order_key(clamp_logit(logit)) == best; },
      [&](int32_t id) {
        token = id;
        return false;
      });
  return token;
}

// Goes up the ids until the cumulative weight passes `target`. Rounding may leave the target just above the whole mass:
// then it is the last token with any weight.
class CdfWalk {
 public:
  explicit CdfWalk(double target) : target_(target) {}
  bool passed(int32_t token, float weight) {
    if (weight == 0.0f) return false;
    token_ = token;
    cumulative_ += static_cast<double>(weight);
    return cumulative_ > target_;
  }
  int32_t token() const { return token_; }

 private:
  const double target_;
  double cumulative_ = 0;
  int32_t token_ = -1;
};

struct Candidate {
  int32_t token;
  float scaled;  // (logit - max) / temperature
  float weight;  // its exp
};

bool larger_logit(const Candidate& a, const Candidate& b) {
  const int32_t x = order_key(a.scaled), y = order_key(b.scaled);
  return x != y ? x > y : a.token < b.token;
}
bool more_probable(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}
bool lower_id(const Candidate& a, const Candidate& b) { return a.token < b.token; }

// A lower bound for the k-th largest value: the k-th largest of the maxima of groups. Saves selecting over the whole
// row.
float bound_of_kth_largest(std::span<const float> values, size_t k) {
  constexpr size_t kGroup = 32;
  if (k > values.size() / kGroup) return -kInf;
  std::vector<float> maxima(values.size() / kGroup);
  for (size_t g = 0; g < maxima.size(); ++g) {
    float largest = -kInf;
    for (float value : values.subspan(g * kGroup, kGroup)) largest = value > largest ? value : largest;
    maxima[g] = largest;
  }
  std::nth_element(maxima.begin(), maxima.begin() + static_cast<ptrdiff_t>(k - 1), maxima.end(), std::greater<>());
  return maxima[k - 1];
}

double total_weight(const std::vector<Candidate>& candidates) {
  double total = 0;
  for (const Candidate& c : candidates) total += static_cast<double>(c.weight);
  return total;
}

// The least probable token that top-p keeps: with it, the more probable ones reach the mass `wanted`. Sorts only the bucket
// of nearly equal weights in which that happens. REQUIRES: weights in [0, 1], one of them 1; their sum exceeds `wanted` by
// more than rounding (here by 1e-10 at least, since top_p is at most 1 - 6e-8 and the floor keeps 1 % of what may be
// dropped).
Candidate last_of_top_p(const std::vector<Candidate>& candidates, double wanted) {
  constexpr int kShift = 20;  // sign, exponent and 3 bits of the mantissa
  const auto bucket_of = [](const Candidate& c) { return std::bit_cast<uint32_t>(c.weight) >> kShift; };
  std::vector<double> bucket_mass((std::bit_cast<uint32_t>(1.0f) >> kShift) + 1);
  for (const Candidate& c : candidates) bucket_mass[bucket_of(c)] += static_cast<double>(c.weight);
  size_t bucket = bucket_mass.size() - 1;
  double mass = 0;
  while (bucket > 0 && mass + bucket_mass[bucket] < wanted) mass += bucket_mass[bucket--];
  std::vector<Candidate> members;
  for (const Candidate& c : candidates)
    if (bucket_of(c) == bucket) members.push_back(c);
  SEER_CHECK(!members.empty(), bucket, mass, wanted);
  std::sort(members.begin(), members.end(), more_probable);
  size_t last = 0;
  while (last + 1 < members.size() && (mass += static_cast<double>(members[last].weight)) < wanted) ++last;
  return members[last];
}

// With cuts: the tokens that may be drawn, in ascending order of id.
std::vector<Candidate> cut(std::span<const float> logits, const SamplingParams& params, const RowSoftmax& softmax) {
  const bool has_top_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size();
  const auto k = static_cast<size_t>(params.top_k);
  const bool has_top_p = params.top_p < 1.0f;

  // Scaled logits below the floor cannot come through the cuts, so most of the row is dropped by one comparison. What
  // the floor lets through is cut exactly below; its margin of 0.01 is far above any rounding in it.
  float floor = kNoWeightBelow;
  if (has_top_k) {
    floor = std::max(floor, softmax.scaled(bound_of_kth_largest(logits, k)));
  } else if (has_top_p) {
    // All tokens below (1 - p) / n hold less than 1 - p together: the set is complete before it reaches them.
    const double share = (1.0 - static_cast<double>(params.top_p)) / static_cast<double>(logits.size());
    floor = std::max(floor, static_cast<float>(exact_log(share * softmax.total)));
  }
  if (!has_top_p && params.min_p > 0.0f) floor = std::max(floor, exact_log(params.min_p));
  const float floor_below_max = (floor - 0.01f) * softmax.temperature;

  std::vector<Candidate> kept;
  for_each_passing(
      logits, [&, max = softmax.max](float logit) { return clamp_logit(logit) - max >= floor_below_max; },
      [&](int32_t id) {
        kept.push_back({id, softmax.scaled(logits[id]), 0.0f});
        return true;
      });
  if (has_top_k && kept.size() > k) {
    std::nth_element(kept.begin(), kept.begin() + static_cast<ptrdiff_t>(k), kept.end(), larger_logit);
    kept.resize(k);
    std::sort(kept.begin(), kept.end(), lower_id);
  }
  for (Candidate& c : kept) c.weight = exact_exp(c.scaled);
  if (has_top_p) {
    const double total = has_top_k ? total_weight(kept) : softmax.total;
    const Candidate last = last_of_top_p(kept, static_cast<double>(params.top_p) * total);
    std::erase_if(kept, [&](const Candidate& c) { return more_probable(last, c); });
  }
  if (params.min_p > 0.0f) std::erase_if(kept, [&](const Candidate& c) { return c.weight < params.min_p; });
  return kept;
}

int32_t draw(const std::vector<Candidate>& candidates, double uniform) {
  CdfWalk walk(uniform * total_weight(candidates));
  for (const Candidate& c : candidates)
    if (walk.passed(c.token, c.weight)) break;
  return walk.token();
}

KeptList ids_of(const std::vector<Candidate>& candidates) {
  std::vector<int32_t> ids;
  ids.reserve(candidates.size());
  for (const Candidate& c : candidates) ids.push_back(c.token);
  return std::make_shared<const std::vector<int32_t>>(std::move(ids));
}

/// log-softmax over the candidates.
float kept_logprob(const std::vector<Candidate>& candidates, int32_t token) {
  const auto at = std::ranges::lower_bound(candidates, token, {}, &Candidate::token);
  return static_cast<float>(static_cast<double>(at->scaled) - exact_log(total_weight(candidates)));
}

template <class Float>
std::span<Float> part_of(std::span<Float> logits, int64_t part) {
  const auto begin = static_cast<size_t>(part * kPartIds);
  return logits.subspan(begin, std::min(static_cast<size_t>(kPartIds), logits.size() - begin));
}

PartedRow parted(std::span<const float> logits, const SamplingParams& params) {
  PartedRow row(static_cast<int64_t>(logits.size()), params);
  for (int64_t part = 0; part < row.parts(); ++part) row.add(part, part_of(logits, part));
  return row;
}

}  // namespace

bool PartedRow::suffices(const SamplingParams& params) {
  const bool has_cuts = params.top_k != 0 || params.top_p != 1.0f || params.min_p != 0.0f;
  return params.repetition_penalty == 1.0f && params.logprob_mode != LogprobMode::kKept && (params.temperature == 0.0f || !has_cuts);
}

PartedRow::PartedRow(int64_t vocab, const SamplingParams& params)
    : temperature_(params.temperature),
      logprob_temperature_(
          params.temperature == 0.0f || params.logprob_mode == LogprobMode::kRaw ? 1.0f : params.temperature) {
  SEER_CHECK(vocab > 0, vocab);
  const auto parts = static_cast<size_t>((vocab + kPartIds - 1) / kPartIds);
  maxima_.resize(parts);
  if (temperature_ != 0.0f) sums_.resize(parts);
  if (temperature_ != logprob_temperature_) logprob_sums_.resize(parts);
}

void PartedRow::add(int64_t part, std::span<const float> logits) {
  const auto p = static_cast<size_t>(part);
  const auto count = static_cast<int64_t>(logits.size());
  const RowMax max = kernels().max(logits.data(), count);
  maxima_[p] = max.finite ? max.largest : kNan;
  if (!max.finite) return;
  if (!sums_.empty()) kernels().exp_sums(logits.data(), count, maxima_[p], temperature_, &sums_[p]);
  if (!logprob_sums_.empty())
    kernels().exp_sums(logits.data(), count, maxima_[p], logprob_temperature_, &logprob_sums_[p]);
}

bool PartedRow::finite() const {
  return std::ranges::none_of(maxima_, [](float max) { return std::isnan(max); });
}

float PartedRow::largest() const { return *std::max_element(maxima_.begin(), maxima_.end()); }

PartedRow::Choice PartedRow::choose(uint64_t seed, int64_t position) const {
  const float max = largest();
  if (temperature_ == 0.0f) {
    const auto is_largest = [&](float m) { return order_key(m) == order_key(max); };
    return {.part = std::find_if(maxima_.begin(), maxima_.end(), is_largest) - maxima_.begin()};
  }
  // The weight of a part relative to the one with the largest logit.
  const auto factor = [&](size_t p) { return static_cast<double>(exact_exp((maxima_[p] - max) / temperature_)); };
  double total = 0;
  for (size_t p = 0; p < maxima_.size(); ++p) total += sums_[p] * factor(p);
  const double target = philox_uniform(seed, position) * total;
  double before = 0;
  for (size_t p = 0;; ++p) {  // ends: the number is at most 1 - 2^-53, so the target is below the total
    const double mass = sums_[p] * factor(p);
    if (before + mass > target) return {static_cast<int64_t>(p), (target - before) / factor(p)};
    before += mass;
  }
}

RowSample PartedRow::pick(const Choice& choice, std::span<const float> part_logits) const {
  const auto first = static_cast<int32_t>(choice.part * kPartIds);
  int32_t id = 0;  // within the part
  if (temperature_ == 0.0f) {
    id = greedy(part_logits);
  } else {
    const float max = maxima_[static_cast<size_t>(choice.part)];
    CdfWalk walk(choice.target);
    for (size_t i = 0; i < part_logits.size(); ++i)
      if (walk.passed(static_cast<int32_t>(i), exact_exp((clamp_logit(part_logits[i]) - max) / temperature_))) break;
    id = walk.token();
  }
  return {first + id, logprob(part_logits[static_cast<size_t>(id)])};
}

float PartedRow::logprob(float logit) const {
  const float max = largest();
  if (clamp_logit(logit) == -kHighest && max > -kHighest) return -kInf;
  const std::vector<double>& sums = logprob_sums_.empty() ? sums_ : logprob_sums_;
  double total = 0;
  for (size_t p = 0; p < maxima_.size(); ++p)
    total += sums[p] * static_cast<double>(exact_exp((maxima_[p] - max) / logprob_temperature_));
  const float scaled = (clamp_logit(logit) - max) / logprob_temperature_;
  return static_cast<float>(static_cast<double>(scaled) - exact_log(total));
}

RowSample sample_row(std::span<float> logits, const SamplingParams& params, uint64_t seed, int64_t position,
                     const std::vector<int32_t>& penalty_tokens, std::span<const int32_t> banned) {
  const PartedRow untouched = parted(logits, params);
  if (!untouched.finite()) return {kNotFinite, 0};
  if (PartedRow::suffices(params) && banned.empty()) {
    const PartedRow::Choice choice = untouched.choose(seed, position);
    return untouched.pick(choice, part_of<const float>(logits, choice.part));
  }
  const RepetitionPenalty penalty(logits, params.repetition_penalty, penalty_tokens);
  for (const int32_t id : banned) logits[static_cast<size_t>(id)] = -kHighest;
  const bool gives_kept = params.logprob_mode == LogprobMode::kKept;
  if (params.temperature == 0.0f) {
    const int32_t token = greedy(logits);
    if (gives_kept) return {token, 0.0f, std::make_shared<const std::vector<int32_t>>(1, token)};
    return {token, untouched.logprob(penalty.untouched(logits, token))};
  }
  const RowSoftmax softmax(logits, params.temperature);
  const std::vector<Candidate> kept = cut(logits, params, softmax);
  const int32_t token = draw(kept, philox_uniform(seed, position));
  if (gives_kept) return {token, kept_logprob(kept, token), ids_of(kept)};
  return {token, untouched.logprob(penalty.untouched(logits, token))};
}

float token_logprob(std::span<const float> logits, int32_t token, const SamplingParams& params) {
  SEER_CHECK(token >= 0, token);
  SEER_CHECK(static_cast<size_t>(token) < logits.size(), token, logits.size());
  const PartedRow row = parted(logits, params);
  return row.finite() ? row.logprob(logits[token]) : kNan;
}

Status validate(const SamplingParams& params) {
  const auto bad = [](const char* field, const auto& value, const auto& expected) {
    return fail(Code::kInvalidArgument, "sampling: ", field, " is ", value, ", expected ", expected);
  };
  const auto within = [](float x, float low, float high) { return x >= low && x <= high; };  // false for NaN
  if (params.temperature != 0.0f && !within(params.temperature, kTemperatureLeast, 1e4f))
    return bad("temperature", params.temperature, cat("0 (greedy) or a number from ", kTemperatureLeast, " to 10000"));
  if (!(params.top_p > 0.0f && params.top_p <= 1.0f))
    return bad("top_p", params.top_p, "a number above 0 and at most 1 (1: off)");
  if (params.top_k < 0) return bad("top_k", params.top_k, "0 (off) or a count of tokens");
  if (!(params.min_p >= 0.0f && params.min_p < 1.0f))
    return bad("min_p", params.min_p, "a number from 0 (off) to below 1");
  if (!within(params.repetition_penalty, 0.01f, 100.0f))
    return bad("repetition_penalty", params.repetition_penalty, "a number from 0.01 to 100 (1: off)");
  if (params.max_tokens < 1) return bad("max_tokens", params.max_tokens, "at least 1");
  if (params.min_tokens < 0 || params.min_tokens > params.max_tokens)
    return bad("min_tokens", params.min_tokens, cat("0 (off) or a count of tokens up to max_tokens, ", params.max_tokens));
  for (int32_t id : params.stop_token_ids)
    if (id < 0) return bad("stop_token_ids", id, "token ids, none below 0");
  if (std::ssize(params.stop) > kStopTextsMax) return bad("stop", cat("a list of ", params.stop.size()), cat("at most ", kStopTextsMax, " strings"));
  for (const std::string& text : params.stop)
    if (text.empty()) return bad("stop", "\"\"", "strings that are not empty");
  if (params.logprob_mode > LogprobMode::kKept)
    return bad("logprob_mode", static_cast<int>(params.logprob_mode), "0 (processed), 1 (raw), 2 (none) or 3 (kept)");
  if (params.logprob_mode == LogprobMode::kKept && params.temperature != 0.0f && params.top_p == 1.0f && params.top_k == 0 && params.min_p == 0.0f)
    return bad("top_p", params.top_p, "a number below 1, or top_k or min_p, to give back the ids that were kept");
  return {};
}

std::vector<int32_t> ending_ids(const SamplingParams& params, const std::vector<int32_t>& eos_ids) {
  std::vector<int32_t> ids = params.stop_token_ids;
  if (!params.ignore_eos) ids.insert(ids.end(), eos_ids.begin(), eos_ids.end());
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

Status check_ending_ids(const SamplingParams& params, const std::vector<int32_t>& eos_ids) {
  const int64_t count = params.min_tokens > 0 ? std::ssize(ending_ids(params, eos_ids)) : 0;
  if (count <= kEndingIdsMax) return {};
  return fail(Code::kInvalidArgument, "min_tokens is ", params.min_tokens, " with ", count,
              " stop_token_ids and EOS ids: expected at most ", kEndingIdsMax);
}

}  // namespace seer
