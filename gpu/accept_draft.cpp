#include "gpu/accept_draft.h"

#include "protocols/check.h"

namespace seer {
namespace {

/// Row 0, and the rows of a draft (without those of row 0) that follow one another with the tokens that next(path so far) gives.
template <class Next>
std::vector<int32_t> follow(std::span<const int32_t> tokens, std::span<const int32_t> parents, Next next) {
  std::vector<int32_t> path{0};
  for (size_t i = 0; i < tokens.size(); ++i)  // a child comes after its parent
    if (parents[i] == path.back() && tokens[i] == next(path)) path.push_back(static_cast<int32_t>(i) + 1);
  return path;
}

}  // namespace

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
  return follow(tokens.subspan(1), parents.subspan(1),
                [&](const std::vector<int32_t>& path) { return sampled[static_cast<size_t>(path.back())].token; });
}

std::vector<int32_t> path_of_text(std::span<const int32_t> tokens, std::span<const int32_t> parents, std::span<const int32_t> came) {
  SEER_CHECK(parents.size() == tokens.size(), parents.size(), tokens.size());
  return follow(tokens, parents, [&](const std::vector<int32_t>& path) { return came[path.size() - 1]; });
}

}  // namespace seer
