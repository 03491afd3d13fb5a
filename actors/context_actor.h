// context_actor: the Context Manager (paper 3.2): learns the length of each finished response and tells its rollout how
// long the rest of its group is likely to be. Knows a group from its first finished response. One per iteration owner.
#pragma once
#include "actors/policy/schedule/length_estimator.h"
#include "protocols/actors.h"

namespace seer {

struct ContextActor {
  using handle = ContextHandle;
  static constexpr const char* kActorName = "context";

  explicit ContextActor(rt::self_ptr<ContextActor> self_in) : self(self_in) {}
  handle::behavior_type make_behavior();

  rt::self_ptr<ContextActor> self;
  LengthEstimator lengths;
};

}  // namespace seer
