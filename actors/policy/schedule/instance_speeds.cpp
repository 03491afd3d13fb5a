#include "actors/policy/schedule/instance_speeds.h"

#include "protocols/check.h"

namespace seer {

void InstanceSpeeds::add(InstanceId instance, int64_t tokens, int64_t us) {
  SEER_CHECK(tokens >= 0, instance, tokens);
  SEER_CHECK(us >= 0, instance, us);
  Seen& seen = seen_[instance];
  seen.tokens += static_cast<double>(tokens);
  seen.us += static_cast<double>(us);
  seen.until_halved -= tokens;
  if (seen.until_halved > 0) return;
  seen = {seen.tokens / 2, seen.us / 2};
}

double InstanceSpeeds::token_us(InstanceId instance) const {
  const auto found = seen_.find(instance);
  if (found == seen_.end() || found->second.tokens < kSpeedTokensLeast) return 0;
  return found->second.us / found->second.tokens;
}

}  // namespace seer
