// Drafter: proposes tokens that a sequence may go on with, for the engine to verify. Used by instance_actor, once per
// decoding sequence and step. Single owner, not thread-safe.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "protocols/ids.h"

namespace seer {

class Drafter {
 public:
  virtual ~Drafter() = default;
  /// Replaces `draft` by at most `tokens_max` tokens that may follow `tokens`, the prompt and output of `request`.
  virtual void draft(RequestId request, std::span<const int32_t> tokens, int64_t tokens_max,
                     std::vector<int32_t>& draft) = 0;
};

}  // namespace seer
