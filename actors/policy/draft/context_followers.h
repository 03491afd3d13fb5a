// ContextFollowers: the candidates for the token after a state of a SuffixIndex. It counts how often each followed the state's
// string and the next shorter suffixes that more tokens followed. One is filled for every row of a draft, so it is on the
// stack and allocates nothing. Used by DraftTree.
#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "actors/policy/draft/draft_scores.h"
#include "actors/policy/draft/suffix_index.h"

namespace seer {

struct ContextFollowers {
  static constexpr uint32_t kContexts = DraftScores::kContexts;
  static constexpr uint32_t kCandidatesMax = 32;

  struct Follower {
    int32_t token;
    bool leads;         // the most frequent after some context, or the source's. A path considers only these
    SuffixState state;      // of the context that made it a candidate, plus the token; kRoot: the source made it one
    uint32_t match_tokens;  // length of that string
    std::array<uint32_t, kContexts> counts;  // 0 for longer contexts than that one, after which it was too rare
  };

  uint32_t contexts = 0;
  std::array<uint32_t, kContexts> lengths;  // tokens of each context, the longest first
  std::array<uint32_t, kContexts> totals;   // how often any token followed it
  uint32_t count = 0;
  std::array<Follower, kCandidatesMax> followers;

  /// Adds the contexts of the state's string (its last match_tokens tokens) and of its suffixes.
  void find(const StreamLog& log, const SuffixIndex& index, SuffixState state, uint32_t match_tokens);
  /// Notes that the source has this token next. `adds`: it becomes a candidate even if it followed no context.
  void add_source(int32_t token, bool adds);

 private:
  struct Seen {
    int32_t token;
    SuffixState state;
    uint32_t count;
  };
  void add_context(const StreamLog& log, const SuffixIndex& index, SuffixState state, std::span<const Seen> seen,
                   uint32_t total, uint32_t match_tokens);
};

}  // namespace seer
