#include "gpu/accept_draft.h"

#include "protocols/check.h"

namespace seer {

int32_t acceptance_length(std::span<const int32_t> draft, std::span<const SampledToken> sampled) {
  SEER_CHECK(sampled.size() == draft.size() + 1, sampled.size(), draft.size());
  size_t accepted = 0;
  while (accepted < draft.size() && draft[accepted] == sampled[accepted].token) ++accepted;
  return static_cast<int32_t>(accepted) + 1;
}

std::vector<int32_t> accepted_path(std::span<const int32_t> tokens, std::span<const int32_t> parents,
                                   std::span<const SampledToken> sampled) {
  SEER_CHECK(!tokens.empty());
  SEER_CHECK(parents.size() == tokens.size() && sampled.size() == tokens.size(), parents.size(), sampled.size());
  std::vector<int32_t> path{0};
  for (size_t row = 1; row < tokens.size(); ++row)  // a child comes after its parent
    if (parents[row] == path.back() && tokens[row] == sampled[static_cast<size_t>(path.back())].token)
      path.push_back(static_cast<int32_t>(row));
  return path;
}

}  // namespace seer
