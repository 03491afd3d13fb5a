#include "actors/policy/schedule/verl_scheduler.h"

namespace seer {

std::vector<WholeGroupScheduler::Home> VerlScheduler::deal(const std::vector<GroupId>& homeless) {
  const std::vector<InstanceId> instances = ledger_.picker().open_instances();
  std::vector<Home> dealt;
  for (const GroupId group : homeless)
    for (size_t tried = 0; tried < instances.size(); ++tried) {
      const InstanceId instance = instances[deals_++ % instances.size()];
      if (!ledger_.can_hold(instance, requests().group(group))) continue;
      dealt.push_back({group, instance});
      break;
    }
  return dealt;
}

}  // namespace seer
