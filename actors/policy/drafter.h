// Drafter: proposes tokens that a sequence may go on with, for the engine to verify. Used by instance_actor, once per
// decoding sequence and step. Single owner, not thread-safe.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "protocols/ids.h"

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
  /// Request ids no longer mean what they did: a rollout is over.
  virtual void forget() {}
};

}  // namespace seer
