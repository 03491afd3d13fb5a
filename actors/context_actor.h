// context_actor: the Context Manager (paper 3.2). It learns the length of each finished response and tells the rollout
// how long the rest of the group is likely to be. It knows a group from its first finished response on. One per rollout.
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
