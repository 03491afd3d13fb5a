#include "cli/learned_steps.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace seer {
namespace {

constexpr size_t kBinsMax = 4096;
constexpr double kBinStepsMax = 65'536;  // then what the bin has counts half, so that a server may change
constexpr double kStepsLeast = 32;       // fewer are not believed
constexpr double kShareLeast = 1e-3;     // nor those that are less than this share of all
constexpr size_t kPointsLeast = 3;
constexpr int64_t kBlockTokens = 16;     // a server does not say; simulations allot KV in such blocks

/// Equal for amounts that differ by less than a fifth or so; each small integer has its own.
int size_class(double amount) {
  if (amount < 8.5) return static_cast<int>(std::lround(amount));
  return 8 + static_cast<int>(std::lround(4 * std::log2(amount / 8)));
}

int64_t rounded(double amount) { return std::max<int64_t>(0, std::llround(amount)); }

}  // namespace

LearnedSteps::Sums& LearnedSteps::Sums::operator+=(const Sums& other) {
  decoding += other.decoding;
  kv_tokens += other.kv_tokens;
  waiting += other.waiting;
  prefills += other.prefills;
  prefill_tokens += other.prefill_tokens;
  prefill_kv_tokens += other.prefill_kv_tokens;
  prefill_attended += other.prefill_attended;
  return *this;
}

LearnedSteps::Sums LearnedSteps::Sums::operator-(const Sums& other) const {
  Sums difference = *this;
  return difference += other * -1;
}

LearnedSteps::Sums LearnedSteps::Sums::operator*(double factor) const {
  return {decoding * factor, kv_tokens * factor, waiting * factor, prefills * factor, prefill_tokens * factor, prefill_kv_tokens * factor, prefill_attended * factor};
}

void LearnedSteps::advance(int64_t now_us) {
  const auto us = static_cast<double>(std::max<int64_t>(0, now_us - now_us_));
  now_.decoding += us * static_cast<double>(decoding_);
  now_.kv_tokens += us * static_cast<double>(kv_tokens_);
  now_.waiting += us * static_cast<double>(waiting_);
  now_us_ = std::max(now_us_, now_us);
}

void LearnedSteps::asked(const std::string& rid, int64_t context_tokens, int64_t now_us) {
  advance(now_us);
  open_[rid] = {.context_tokens = context_tokens};
  ++waiting_;
}

void LearnedSteps::came(const std::string& rid, int64_t tokens, int64_t cached_tokens, int64_t now_us) {
  const auto found = open_.find(rid);
  if (found == open_.end() || tokens <= 0) return;
  advance(now_us);
  Open& request = found->second;
  const bool is_first = !std::exchange(request.decodes, true);
  if (is_first) {
    --waiting_;
    ++decoding_;
    kv_tokens_ += request.context_tokens;
    const int64_t cached = std::clamp<int64_t>(cached_tokens, 0, request.context_tokens - 1);
    StepShape prefill;
    prefill.add(cached, request.context_tokens - cached, 1);
    now_ += {.prefills = 1,
             .prefill_tokens = static_cast<double>(prefill.rows),
             .prefill_kv_tokens = static_cast<double>(prefill.kv_tokens),
             .prefill_attended = static_cast<double>(prefill.attended)};
  }
  request.context_tokens += tokens;
  kv_tokens_ += tokens;
  if (!is_first) {
    request.tokens += tokens;
    if (waiting_ > 0) return;
    note_steps(request);
  }
  request.since_us = now_us_;
  request.tokens = 0;
  request.then = now_;
}

/// Takes note of the time of the steps from since_us until now.
void LearnedSteps::note_steps(const Open& request) {
  const auto steps = static_cast<double>(request.tokens), us = static_cast<double>(now_us_ - request.since_us);
  if (us <= 0) return;
  Sums sums = now_ - request.then;
  sums.decoding *= steps / us;
  sums.kv_tokens *= steps / us;
  sums.waiting *= steps / us;
  const BinKey key = bin_of(sums.decoding / steps, sums.kv_tokens / steps, sums.prefill_tokens / steps);
  if (!bins_.contains(key) && bins_.size() >= kBinsMax) return;
  Bin& bin = bins_[key];
  bin.steps += steps;
  bin.us += us;
  bin.sums += sums;
  if (bin.steps > kBinStepsMax) bin = {bin.steps / 2, bin.us / 2, bin.sums * 0.5};
}

void LearnedSteps::ended(const std::string& rid, int64_t now_us) {
  const auto found = open_.find(rid);
  if (found == open_.end()) return;
  advance(now_us);
  const Open& request = found->second;
  if (request.tokens > 0) note_steps(request);
  request.decodes ? --decoding_ : --waiting_;
  if (request.decodes) kv_tokens_ -= request.context_tokens;
  open_.erase(found);
}

LearnedSteps::BinKey LearnedSteps::bin_of(double decoding, double kv_tokens, double prefill_tokens) {
  return {size_class(decoding), size_class(kv_tokens / std::max(1.0, decoding) / 8), size_class(prefill_tokens)};
}

std::vector<ProfilePoint> LearnedSteps::points() const {
  double all = 0, all_us = 0;
  for (const auto& [key, bin] : bins_) {
    all += bin.steps;
    all_us += bin.us;
  }
  std::vector<ProfilePoint> points;
  for (const auto& [key, bin] : bins_) {
    if (bin.steps < std::max(kStepsLeast, kShareLeast * all)) continue;
    const auto mean = [&](double sum) { return sum / bin.steps; };
    const double got = mean(bin.sums.decoding + bin.sums.prefills), there = std::max(got, mean(bin.sums.decoding + bin.sums.waiting));
    // A request that decodes feeds one token, which attends to its context and itself.
    const int64_t sequences = std::max<int64_t>(1, rounded(there));
    StepShape shape{.sequences = sequences,
                    .rows = std::max(sequences, rounded(mean(bin.sums.decoding + bin.sums.prefill_tokens))),
                    .sampled_rows = sequences,
                    .kv_tokens = std::max<int64_t>(1, rounded(mean(bin.sums.kv_tokens + bin.sums.prefill_kv_tokens))),
                    .attended = std::max<int64_t>(1, rounded(mean(bin.sums.kv_tokens + bin.sums.prefill_attended)))};
    points.push_back({.kind = std::get<2>(key) == 0 ? "decode" : "mixed",
                      .shape = shape,
                      .measured_us = bin.us / bin.steps * (got > 0 ? there / got : 1),
                      .weight = bin.us / all_us});
  }
  return points;
}

void LearnedSteps::add(const LearnedSteps& other) {
  for (const auto& [key, bin] : other.bins_) {
    Bin& own = bins_[key];
    own.steps += bin.steps;
    own.us += bin.us;
    own.sums += bin.sums;
  }
}

Result<StepProfile> learned_profile(std::vector<ProfilePoint> points, const std::string& model, const std::string& source) {
  if (points.size() < kPointsLeast)
    return fail(Code::kUnavailable, "steps of ", points.size(), " kinds were seen often enough, which is too few to fit costs to: expected ", kPointsLeast, " kinds, so more requests");
  StepProfile profile{.model = model, .processor = source, .isa = "-", .weight_dtype = "-", .kv_dtype = "-", .threads = 1, .block_tokens = kBlockTokens, .cost = {}, .points = std::move(points)};
  profile.cost = fit_step_cost(profile.points);
  // The least relative errors for times that vary are those of a prediction that is too low: the sum is made right.
  double measured = 0, predicted = 0;
  for (const ProfilePoint& p : profile.points) {
    measured += p.weight;
    predicted += p.weight * profile.predict_us(p.shape) / p.measured_us;
  }
  if (predicted > 0)
    for (double& us : profile.cost.us) us *= measured / predicted;
  return profile;
}

}  // namespace seer
