// OutputTokens: some tokens of a response, in order, and what is told of each. Plain data.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "protocols/fields.h"
#include "protocols/kept_ids.h"

namespace seer {

struct OutputTokens {
  std::vector<int32_t> ids;
  std::vector<float> logprobs = {};  // of each token, or none (LogprobMode::kNone)
  KeptIds kept_ids = {};             // of each token, or none (unless LogprobMode::kKept)
  SEER_FIELDS(OutputTokens, ids, logprobs, kept_ids)
  bool operator==(const OutputTokens&) const = default;

  size_t size() const { return ids.size(); }
  bool empty() const { return ids.empty(); }
  void append(const OutputTokens& more) {
    ids.insert(ids.end(), more.ids.begin(), more.ids.end());
    logprobs.insert(logprobs.end(), more.logprobs.begin(), more.logprobs.end());
    kept_ids.append(more.kept_ids);
  }
  /// Keeps the first `tokens`.
  void cut(size_t tokens) {
    ids.resize(std::min(ids.size(), tokens));
    logprobs.resize(std::min(logprobs.size(), tokens));
    kept_ids.cut(tokens);
  }
  /// The tokens from index `first` on; none if there are fewer.
  OutputTokens from(size_t first) const {
    OutputTokens rest;
    rest.ids.assign(ids.begin() + static_cast<std::ptrdiff_t>(std::min(first, ids.size())), ids.end());
    rest.logprobs.assign(logprobs.begin() + static_cast<std::ptrdiff_t>(std::min(first, logprobs.size())), logprobs.end());
    for (size_t at = first; at < kept_ids.tokens(); ++at) rest.kept_ids.add(kept_ids.of(at));
    return rest;
  }
};

}  // namespace seer
