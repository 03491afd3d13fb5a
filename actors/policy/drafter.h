// Drafter: proposes tokens that a sequence may go on with, for the engine to verify. Used by instance_actor, once per
// decoding sequence and step. Single owner, not thread-safe.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "protocols/draft.h"

namespace seer {

/// A request whose next token is to be sampled.
struct DraftAsk {
  RequestId request;
  std::span<const int32_t> prompt;
  std::span<const int32_t> output;  // so far
  int64_t tokens_max = 0;           // at least 1
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  /// Replaces `draft` by at most ask.tokens_max tokens that may follow.
  virtual void draft(const DraftAsk& ask, std::vector<int32_t>& draft) = 0;

  // What is shared through draft servers (protocols/draft.h). A drafter that shares nothing leaves these.
  using IsMine = std::function<bool(GroupId)>;
  /// The request has written so much; no draft is asked for.
  virtual void observe(RequestId /*request*/, std::span<const int32_t> /*prompt*/, std::span<const int32_t> /*output*/) {}
  /// Adds what a server lacks, as far as known here, of the groups that are its; at most tokens_max tokens.
  virtual void take_updates(const IsMine& /*is_mine*/, int64_t /*tokens_max*/, std::vector<CstTokens>& /*parts*/) {}
  /// What is known of a group; nothing where it would be no use to know more.
  virtual std::optional<CstCursor> cursor(GroupId /*group*/) { return std::nullopt; }
  virtual void fetched(const CstFetched& /*answer*/) {}

  /// Request ids no longer mean what they did: a rollout is over.
  virtual void forget() {}
};

}  // namespace seer
