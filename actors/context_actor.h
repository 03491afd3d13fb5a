// context_actor: the Context Manager of one iteration (paper 3.2): learns the length of each finished response and tells
// the rollout how long the rest of its group is likely to be. One per iteration owner.
#pragma once
#include <vector>

#include "actors/policy/schedule/length_estimator.h"
#include "protocols/actors.h"

namespace seer {

struct ContextActor {
  using handle = ContextHandle;
  static constexpr const char* kActorName = "context";

  /// `limits`: the original max_tokens of each group, by group id: the estimate before any member has finished.
  ContextActor(rt::self_ptr<ContextActor> self_in, const std::vector<int64_t>& limits);
  handle::behavior_type make_behavior();

  rt::self_ptr<ContextActor> self;
  LengthEstimator lengths;
};

}  // namespace seer
