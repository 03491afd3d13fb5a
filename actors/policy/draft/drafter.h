// Drafter: proposes tokens that may come next in a sequence, for the engine to verify. Used by instance_actor, once per
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

/// A proposal to follow the last known token of a request: a path or a tree.
struct Draft {
  std::vector<int32_t> tokens;
  /// The row that each token follows: row 0 feeds the last known token, row i + 1 feeds tokens[i]. A path has 0, 1, 2, ...
  /// These are SequenceStep::parents without the -1 of row 0.
  std::vector<int32_t> parents;
  /// The probability (0..1) that the token and all that it follows are accepted. Falls from token to token. Empty: not known.
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
  /// Keeps the first `count` tokens. They are still a draft, because each row comes after the row that it follows.
  void shorten(size_t count) {
    tokens.resize(count);
    parents.resize(count);
    if (!probabilities.empty()) probabilities.resize(count);
  }
};

struct DraftLimits {
  int32_t max_tokens = 8;         // of the draft
  float min_probability = 0.09f;  // least probability that a token and those before it are accepted
  bool tree = false;              // branches, the likeliest tokens first; else one path
};

/// What a request has written so far.
struct DraftText {
  RequestId request;
  const TokenLog& log;
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  /// Replaces `draft` by tokens that may follow. With a higher limit it begins with the same tokens. REQUIRES:
  /// limits.max_tokens >= 1.
  virtual void draft(const DraftText& text, const DraftLimits& limits, Draft& draft) = 0;
  /// Learns the text without drafting for it: drafts of other requests may use it.
  virtual void learn(const DraftText&) {}
  /// Says which groups have running requests, until the next call or until a text of another group is shown.
  virtual void running(std::span<const GroupId> /*groups*/) {}
  virtual DraftLosses losses() const { return {}; }

  // Sharing through draft servers (protocols/draft.h). A drafter that shares nothing does not override these.
  using IsMine = std::function<bool(GroupId)>;
  /// Adds tokens of the server's groups that the server lacks, as far as is known here; at most tokens_max.
  virtual void take_updates(const IsMine& /*is_mine*/, int64_t /*tokens_max*/, std::vector<CstTokens>& /*parts*/) {}
  /// What is known of a group here; nothing if more tokens would not help.
  virtual std::optional<CstCursor> cursor(GroupId /*group*/) { return std::nullopt; }
  virtual void fetched(const CstFetched& /*answer*/) {}

  /// The group, or the rollout with all its groups, is over: no draft for them will be asked for again.
  virtual void forget(GroupId /*group*/) {}
  virtual void forget(RolloutId /*rollout*/) {}
};

}  // namespace seer
