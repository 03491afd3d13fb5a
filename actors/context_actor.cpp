#include "actors/context_actor.h"

namespace seer {

ContextActor::ContextActor(rt::self_ptr<ContextActor> self_in, const std::vector<int64_t>& limits) : self(self_in) {
  for (uint32_t i = 0; i < limits.size(); ++i) lengths.add_group(GroupId{i}, limits[i]);
}

ContextActor::handle::behavior_type ContextActor::make_behavior() {
  return {[this](const LengthSeen& seen) {
    (void)lengths.observe(seen.request.group, seen.tokens);
    rt::tell(self, seen.reply_to,
             GroupEstimate{seen.request.group, lengths.estimate(seen.request.group), lengths.estimate_error()});
  }};
}

}  // namespace seer
