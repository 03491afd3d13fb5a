// StopRule: when a response is finished. One per running sequence; it sees each output token once, in order.
// Used by instance_actor. Single owner, not thread-safe.
//
// A token finishes the response, and stays in it, when it is an EOS or stop token, when it completes a stop string, or
// when no further token is allowed. A stop beats a length limit reached by the same token.
//
// Stop strings are looked for in the text of the output tokens joined, so a match may span tokens and end anywhere
// within the newest one. Only the last bytes in which a match could still begin are kept. They depend on the output alone,
// so a rule restored from the output ids of earlier chunks decides like one that saw every token itself.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "protocols/rollout.h"
#include "protocols/token_log.h"

namespace seer {

/// Bytes that a token adds to the output text.
using TokenText = std::function<std::string(int32_t token)>;

struct Finish {
  FinishReason reason = FinishReason::kNone;
  int32_t stop_token = -1;  // the EOS or stop token, or -1
  int32_t stop_index = -1;  // the stop string: index into SamplingParams::stop, or -1. Of several the one that ends
                            // first, then the first in the list
  bool operator==(const Finish&) const = default;
};

struct StopLimits {
  std::vector<int32_t> eos_ids;
  int64_t context_tokens_max = 0;  // prompt and output together
};

class StopRule {
 public:
  /// `log`: of earlier chunks, none of which finished the response.
  /// REQUIRES: text_of is set when there are stop strings; validate(params) is ok.
  StopRule(const SamplingParams& params, const StopLimits& limits, const TokenLog& log, TokenText text_of);

  /// Takes the next output token. REQUIRES: not finished before.
  Finish add(int32_t token) {
    ++output_tokens_;
    if (!stop_strings_.empty() || (token >= stop_token_least_ && token <= stop_token_most_)) return look_closely(token);
    return {output_tokens_ < output_tokens_max_ ? FinishReason::kNone : FinishReason::kLength};
  }
  /// Counts tokens that are known not to end the response. REQUIRES: there are no stop strings.
  void add_passed(int64_t tokens) { output_tokens_ += tokens; }

  /// Output tokens that may still come before a length limit.
  int64_t tokens_left() const { return output_tokens_max_ - output_tokens_; }

 private:
  Finish look_closely(int32_t token);
  int32_t find_stop_string(const std::string& piece);

  int64_t output_tokens_ = 0;
  int64_t output_tokens_max_ = 0;
  int32_t stop_token_least_ = 0, stop_token_most_ = -1;  // range of stop_tokens_: most tokens are outside it
  std::vector<std::string> stop_strings_;
  std::vector<int32_t> stop_tokens_;  // sorted
  TokenText text_of_;
  size_t tail_bytes_max_ = 0;  // the longest stop string less one byte
  std::string tail_;           // the end of the output text
};

}  // namespace seer
