#include "actors/policy/schedule/length_outlook.h"

#include <algorithm>
#include <cmath>

#include "protocols/check.h"

namespace seer {
namespace {

constexpr double kPriorShareOfLimit = 0.3;  // mean length before anything is known
constexpr double kPriorBetween = 0.7;
constexpr double kPriorWithin = 0.5;
constexpr int64_t kSweepEvery = 100;  // a sweep per 1/kSweepEvery of the requests that finish
constexpr int kSweepRounds = 2;
constexpr double kUnexplained = 1e-3;  // a length is unexplained if a smaller share would reach it

/// Its tokens are a whole length. Otherwise the length is at least that: the request is unfinished, or the limit cut it.
bool shows_length(const GroupState& group, const RequestState& request) {
  return request.has_length() && request.generated_tokens < group.max_tokens;
}

}  // namespace

void LengthOutlook::add_group(const GroupState& group) {
  SEER_CHECK(!groups_.contains(group.id), group.id);
  const auto samples = static_cast<int64_t>(group.members.size());
  log_limit_sum_ += static_cast<double>(samples) * std::log(static_cast<double>(group.max_tokens));
  requests_ += samples;
  prior_ = {.log_mean = std::log(kPriorShareOfLimit) + log_limit_sum_ / static_cast<double>(requests_),
            .between = kPriorBetween,
            .within = kPriorWithin};
  if (!fitted_) {
    model_ = prior_;
    ++model_version_;
  }
  groups_[group.id].counted_tokens.assign(group.members.size(), 0);
}

bool LengthOutlook::observe(const GroupState& group, const RequestState& request) {
  Seen& seen = groups_.at(group.id);
  int64_t& counted = seen.counted_tokens[request.id.sample];
  const int64_t before = counted, tokens = request.generated_tokens;
  const bool finished = request.has_length();
  if (!finished && (tokens < kAgeTokensMin || tokens < before + before / kAgeStep + 1)) return false;
  counted = tokens;
  seen.any_finished = seen.any_finished || finished;
  if (seen.model_version != model_version_)
    make_current(group, seen);
  else if (shows_length(group, request))
    seen.posterior.add_finished(std::max<int64_t>(1, tokens), before);
  else
    seen.posterior.add_unfinished(tokens, before);
  return true;
}

int64_t LengthOutlook::could_need_tokens(const GroupState& group, const RequestState& request, int64_t unfinished) {
  const double exceed = kExceed / std::max(static_cast<double>(unfinished), 1 + 2 * kExceed);
  const double outlier = std::max(unexplained_before_, unexplained_share_);
  const int64_t all = std::max<int64_t>(1, group.max_tokens - request.generated_tokens);
  if (outlier >= exceed) return all;  // an outlier alone reaches the limit often enough, whatever the group shows
  Seen& seen = groups_.at(group.id);
  make_current(group, seen);
  const double length = seen.posterior.length_exceeded(request.generated_tokens, group.max_tokens, exceed, outlier);
  return std::max<int64_t>(1, std::llround(length) - request.generated_tokens);
}

const GroupState* LengthOutlook::sweep(const RequestBuffer& buffer) {
  const std::deque<GroupState>& groups = buffer.groups();
  if (rounds_left_ == 0) {
    const int64_t finished = buffer.totals().finished;
    if (finished - finished_at_start_ < std::max<int64_t>(1, requests_ / kSweepEvery)) return nullptr;
    finished_at_start_ = finished;
    rounds_left_ = kSweepRounds;
  }
  const GroupState& group = groups[next_group_];
  visit(group);
  if (++next_group_ == groups.size()) end_round();
  return &group;
}

void LengthOutlook::make_current(const GroupState& group, Seen& seen) const {
  if (seen.model_version == model_version_) return;
  seen.model_version = model_version_;
  seen.posterior = LengthPosterior(model_);
  for (const RequestState& request : group.members) {
    const int64_t tokens = seen.counted_tokens[request.id.sample];
    if (shows_length(group, request))
      seen.posterior.add_finished(std::max<int64_t>(1, tokens));
    else if (tokens > 0)
      seen.posterior.add_unfinished(tokens);
  }
}

void LengthOutlook::visit(const GroupState& group) {
  Seen& seen = groups_.at(group.id);
  make_current(group, seen);
  seen.posterior.add_moments_of_group(moments_);
  for (const RequestState& request : group.members) {
    const int64_t tokens = seen.counted_tokens[request.id.sample];
    if (tokens == 0) continue;
    if (!shows_length(group, request)) seen.posterior.add_moments_of_unfinished(tokens, moments_);
    const bool unexplained = seen.posterior.survival(tokens) < kUnexplained;
    unexplained_ += unexplained;
    tested_ += unexplained || request.has_length();
  }
}

// By chance, a share kUnexplained of explained requests lies beyond the tail. Twice as many are allowed.
void LengthOutlook::end_round() {
  model_ = fit_length_model(moments_, prior_);
  ++model_version_;
  fitted_ = true;
  unexplained_share_ = (std::max(0.0, unexplained_ - 2 * kUnexplained * tested_) + kUnexplainedPrior) / (tested_ + 1);
  moments_ = {};
  tested_ = unexplained_ = 0;
  next_group_ = 0;
  --rounds_left_;
}

}  // namespace seer
