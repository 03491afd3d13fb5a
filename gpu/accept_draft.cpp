#include "gpu/accept_draft.h"

#include "protocols/check.h"

namespace seer {

int32_t acceptance_length(std::span<const int32_t> draft, std::span<const SampledToken> sampled) {
  SEER_CHECK(sampled.size() == draft.size() + 1, sampled.size(), draft.size());
  size_t accepted = 0;
  while (accepted < draft.size() && draft[accepted] == sampled[accepted].token) ++accepted;
  return static_cast<int32_t>(accepted) + 1;
}

}  // namespace seer
