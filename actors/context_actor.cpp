#include "actors/context_actor.h"

namespace seer {

ContextActor::handle::behavior_type ContextActor::make_behavior() {
  return {[this](const LengthSeen& seen) {
    const GroupId group = seen.request.group;
    lengths.observe(group, seen.tokens);
    rt::tell(self, seen.reply_to, GroupEstimate{group, lengths.estimate(group)});
  }};
}

}  // namespace seer
