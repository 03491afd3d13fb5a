// Drafter: proposes tokens that a sequence may go on with, for the engine to verify. Used by instance_actor, once per
// decoding sequence and step (the paper's batch_speculate, a request at a time). Single owner, not thread-safe.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "protocols/chunk.h"
#include "protocols/draft.h"
#include "protocols/token_log.h"

namespace seer {

/// A proposal behind the last known token of a request: a path or a tree.
struct Draft {
  std::vector<int32_t> tokens;
  /// The row that each token follows, where row 0 feeds the last known token and row i + 1 feeds tokens[i]: with -1 for
  /// row 0 put in front, SequenceStep::parents. A draft that is no tree has 0, 1, 2, ...
  std::vector<int32_t> parents;
  /// That the token will be accepted, 0..1: of a path, of all its tokens. Falls from token to token. Empty: not known.
  std::vector<float> probabilities;

  bool is_path() const {
    for (size_t i = 0; i < parents.size(); ++i)
      if (parents[i] != static_cast<int32_t>(i)) return false;
    return true;
  }
  void clear() {
    tokens.clear();
    parents.clear();
    probabilities.clear();
  }
  /// Leaves the first `count` tokens: still a draft, since a row comes behind that which it follows.
  void shorten(size_t count) {
    tokens.resize(count);
    parents.resize(count);
    if (!probabilities.empty()) probabilities.resize(count);
  }
};

struct DraftLimits {
  int32_t max_tokens = 8;         // of the draft
  float min_probability = 0.09f;  // of a token to be accepted, those before it included; less likely ones are left out
  bool tree = false;              // branches, the likeliest tokens first; else one path
};

/// What a request has written so far. Its next token is to be sampled.
struct DraftText {
  RequestId request;
  const TokenLog& log;
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  /// Replaces `draft` by tokens that may follow, those of a longer draft being the same at first. REQUIRES:
  /// limits.max_tokens >= 1.
  virtual void draft(const DraftText& text, const DraftLimits& limits, Draft& draft) = 0;
  /// Takes note of the text, for which no draft is wanted: those of other requests may be made from it.
  virtual void learn(const DraftText&) {}
  /// Requests of these groups run now, of others none do, until this is called again or a text of them is shown.
  virtual void running(std::span<const GroupId> /*groups*/) {}
  virtual DraftLosses losses() const { return {}; }

  // What is shared through draft servers (protocols/draft.h). A drafter that shares nothing leaves these.
  using IsMine = std::function<bool(GroupId)>;
  /// Adds what a server lacks, as far as known here, of the groups that are its; at most tokens_max tokens.
  virtual void take_updates(const IsMine& /*is_mine*/, int64_t /*tokens_max*/, std::vector<CstTokens>& /*parts*/) {}
  /// What is known of a group; nothing where it would be no use to know more.
  virtual std::optional<CstCursor> cursor(GroupId /*group*/) { return std::nullopt; }
  virtual void fetched(const CstFetched& /*answer*/) {}

  /// Request ids no longer mean what they did: a rollout is over.
  virtual void forget() {}
};

}  // namespace seer
