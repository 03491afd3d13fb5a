// SimDrafter: drafts for simulated engines. Functions give the tokens and their number. In a tree, every third row is a branch
// with a wrong token; the next row continues beside it.
#pragma once
#include <functional>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "actors/policy/draft/drafter.h"

namespace seer {

struct SimDrafts {
  /// Fills in the tokens of a path from this position on.
  std::function<void(RequestId, int64_t position, std::span<int32_t> tokens)> fill;
  /// Number of tokens of the next draft; at most limits.max_tokens. Empty: as many as allowed.
  std::function<int64_t(RequestId, const DraftLimits&)> count = {};
  /// Called with how much a request has written.
  std::function<void(RequestId, int64_t output_tokens)> learn = {};
};

class SimDrafter final : public Drafter {
 public:
  explicit SimDrafter(SimDrafts drafts) : drafts_(std::move(drafts)) {}

  void draft(const DraftText& text, const DraftLimits& limits, Draft& draft) override {
    draft.clear();
    const auto count = static_cast<size_t>(drafts_.count ? drafts_.count(text.request, limits) : limits.max_tokens);
    draft.tokens.resize(count);
    draft.parents.resize(count);
    drafts_.fill(text.request, text.log.size(), draft.tokens);
    std::iota(draft.parents.begin(), draft.parents.end(), 0);
    if (limits.tree) branch(draft);
  }
  void learn(const DraftText& text) override {
    if (drafts_.learn) drafts_.learn(text.request, text.log.output_tokens());
  }

 private:
  static void branch(Draft& path) {
    const std::vector<int32_t> tokens = path.tokens;
    size_t depth = 0;
    for (size_t i = 0, parent = 0; i < tokens.size(); ++i) {
      const bool is_branch = i % 3 == 1;
      path.tokens[i] = is_branch ? tokens[depth] + 1 : tokens[depth];
      path.parents[i] = static_cast<int32_t>(parent);
      if (is_branch) continue;
      ++depth;
      parent = i + 1;
    }
  }

  SimDrafts drafts_;
};

}  // namespace seer
