// KeptIds: which ids the cuts (top-k, top-p, min-p) left at each token of a response, for trainers that compute
// log-probabilities over the same ids. Plain data.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "protocols/fields.h"

namespace seer {

/// Ids kept at one token that can be given back. A response ends with an error at a token with more, so its size is bounded.
inline constexpr size_t kKeptIdsMax = 4096;

/// A list of ids for each token, one after the other. Empty unless the request has LogprobMode::kKept.
struct KeptIds {
  std::vector<int32_t> ids;    // of each token ascending
  std::vector<uint64_t> ends;  // of each token's list within `ids`
  SEER_FIELDS(KeptIds, ids, ends)
  bool operator==(const KeptIds&) const = default;

  size_t tokens() const { return ends.size(); }
  std::span<const int32_t> of(size_t token) const {
    const size_t begin = token == 0 ? 0 : ends[token - 1];
    return std::span(ids).subspan(begin, ends[token] - begin);
  }
  void add(std::span<const int32_t> kept) {
    ids.insert(ids.end(), kept.begin(), kept.end());
    ends.push_back(ids.size());
  }
  void append(const KeptIds& more) {
    const size_t before = ids.size();
    ids.insert(ids.end(), more.ids.begin(), more.ids.end());
    for (const uint64_t end : more.ends) ends.push_back(before + end);
  }
  /// Keeps those of the first `tokens` tokens.
  void cut(size_t tokens) {
    if (tokens >= ends.size()) return;
    ends.resize(tokens);
    ids.resize(ends.empty() ? 0 : ends.back());
  }
};

}  // namespace seer
