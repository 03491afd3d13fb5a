// SuffixDecoding: the rule by which SuffixDecoding (ArcticInference) drafts a path, to compare with, rebuilt on
// SuffixIndex. Its drafts are like the original's; its cost is not. It drafts from two texts, the request's own and
// that of the whole group. In each, for every suffix of the request that occurs there, it follows the most frequent
// continuation for at most spec_factor tokens per token of the suffix, and while the product of the relative
// frequencies is at least min_probability. The draft is the continuation with the largest sum of these products.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "actors/policy/draft/stream_log.h"
#include "actors/policy/draft/suffix_index.h"

namespace seer {

class SuffixDecoding {
 public:
  explicit SuffixDecoding(std::span<const std::vector<int32_t>> references) {
    for (const std::vector<int32_t>& tokens : references) append(group(), group().log.add_stream(), tokens);
    for (Text& text : texts_) text.request = text.log.add_stream();
  }

  /// The request goes on with these tokens.
  void append(std::span<const int32_t> tokens) {
    for (Text& text : texts_) append(text, text.request, tokens);
  }

  void draft(int32_t tokens_max, float spec_factor, float min_probability, std::vector<int32_t>& draft) {
    draft.clear();
    float best = 0;
    for (const Text& text : texts_) {
      // All suffixes of one state go on alike, and the longest may draft the most.
      for (SuffixState s = last(text); s != SuffixIndex::kRoot; s = text.index.link(s)) {
        const auto wanted = static_cast<int32_t>(static_cast<float>(text.index.length(s)) * spec_factor + 1e-6f);
        const float score = walk(text, s, std::min(tokens_max, wanted), min_probability);
        if (score <= best) continue;
        best = score;
        draft = walked_;
      }
    }
  }

 private:
  struct Text {
    StreamLog log;
    SuffixIndex index;
    uint32_t request = 0;  // stream
  };
  Text& group() { return texts_[1]; }

  static SuffixState last(const Text& text) {
    const int64_t end = text.log.end(text.request);
    return end == 0 ? SuffixIndex::kRoot : text.index.state(text.log.place(text.request, end - 1));
  }
  static void append(Text& text, uint32_t stream, std::span<const int32_t> tokens) {
    int64_t position = text.log.end(stream);
    text.log.append(stream, position, tokens);
    for (; position < text.log.end(stream); ++position)
      text.index.append(text.log, text.log.place(stream, position),
                        position == 0 ? SuffixIndex::kRoot : text.index.state(text.log.place(stream, position - 1)),
                        position == 0);
  }

  /// The continuation of the state, into walked_; returns its score.
  float walk(const Text& text, SuffixState at, int32_t tokens_max, float min_probability) {
    walked_.clear();
    float probability = 1, score = 0;
    while (static_cast<int32_t>(walked_.size()) < tokens_max) {
      int32_t token = -1;
      SuffixState next = SuffixState::none();
      uint32_t most = 0;
      text.index.followers(text.log, at, [&](int32_t t, SuffixState state, uint32_t count) {
        if (count < most || (count == most && t > token)) return;
        token = t;
        next = state;
        most = count;
      });
      if (most == 0) break;
      if (next == SuffixState::none()) next = text.index.following(text.log, at, token);
      probability *= static_cast<float>(most) / static_cast<float>(text.index.count(at));
      if (probability < min_probability) break;
      walked_.push_back(token);
      score += probability;
      at = next;
    }
    return score;
  }

  std::array<Text, 2> texts_;
  std::vector<int32_t> walked_;
};

}  // namespace seer
