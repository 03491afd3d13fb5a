#include "actors/policy/schedule/instance_speeds.h"

#include "protocols/check.h"

namespace seer {

void InstanceSpeeds::add(InstanceId instance, int64_t tokens, int64_t us, int64_t now_us) {
  SEER_CHECK(tokens >= 0, instance, tokens);
  SEER_CHECK(us >= 0, instance, us);
  Seen& seen = seen_[instance];
  seen.added_us = now_us;
  seen.tokens += static_cast<double>(tokens);
  seen.us += static_cast<double>(us);
  seen.until_halved -= tokens;
  if (seen.until_halved > 0) return;
  seen = {.tokens = seen.tokens / 2, .us = seen.us / 2, .added_us = now_us};
}

std::vector<InstanceId> InstanceSpeeds::forget_old(int64_t now_us) {
  std::vector<InstanceId> forgotten;
  if (now_us - looked_us_ < 1'000'000) return forgotten;
  looked_us_ = now_us;
  for (const auto& [id, seen] : seen_)
    if (now_us - seen.added_us > kSpeedForgottenUs) forgotten.push_back(id);
  for (const InstanceId id : forgotten) remove(id);
  return forgotten;
}

double InstanceSpeeds::token_us(InstanceId instance) const {
  const auto found = seen_.find(instance);
  if (found == seen_.end() || found->second.tokens < kSpeedTokensLeast) return 0;
  return found->second.us / found->second.tokens;
}

}  // namespace seer
