#include "gpu/stop_rule.h"

#include <algorithm>

#include "gpu/sampler.h"
#include "protocols/check.h"

namespace seer {

StopRule::StopRule(const SamplingParams& params, const StopLimits& limits, const TokenLog& log, TokenText text_of)
    : output_tokens_(log.output_tokens()),
      output_tokens_max_(std::min(params.max_tokens, limits.context_tokens_max - log.prompt_tokens())),
      stop_strings_(params.stop),
      stop_tokens_(ending_ids(params, limits.eos_ids)),
      text_of_(std::move(text_of)) {
  SEER_CHECK(stop_strings_.empty() || text_of_);
  if (!stop_tokens_.empty()) stop_token_least_ = stop_tokens_.front(), stop_token_most_ = stop_tokens_.back();
  for (const std::string& stop : stop_strings_) tail_bytes_max_ = std::max(tail_bytes_max_, stop.size() - 1);
  for (int64_t i = log.size(); i-- > log.prompt_tokens() && tail_.size() < tail_bytes_max_;)
    tail_.insert(0, text_of_(log[i]));
  if (tail_.size() > tail_bytes_max_) tail_.erase(0, tail_.size() - tail_bytes_max_);
}

Finish StopRule::look_closely(int32_t token) {
  Finish finish;
  if (std::ranges::binary_search(stop_tokens_, token)) finish.stop_token = token;
  if (!stop_strings_.empty()) finish.stop_index = find_stop_string(text_of_(token));
  if (finish.stop_token >= 0 || finish.stop_index >= 0)
    finish.reason = FinishReason::kStop;
  else if (output_tokens_ >= output_tokens_max_)
    finish.reason = FinishReason::kLength;
  return finish;
}

// The stop string whose match ends first within the newest piece, or -1. Advances the tail.
int32_t StopRule::find_stop_string(const std::string& piece) {
  const size_t old_bytes = tail_.size();
  tail_ += piece;
  int32_t found = -1;
  size_t found_end = 0;
  for (size_t s = 0; s < stop_strings_.size(); ++s) {
    const std::string& stop = stop_strings_[s];
    // The match must end after the old text, in which there was none.
    const size_t at = tail_.find(stop, old_bytes + 1 > stop.size() ? old_bytes + 1 - stop.size() : 0);
    if (at == std::string::npos || (found >= 0 && at + stop.size() >= found_end)) continue;
    found = static_cast<int32_t>(s);
    found_end = at + stop.size();
  }
  if (tail_.size() > tail_bytes_max_) tail_.erase(0, tail_.size() - tail_bytes_max_);
  return found;
}

}  // namespace seer
