#include "cli/sim/sim_policy.h"

#include "actors/policy/schedule/policies.h"
#include "protocols/check.h"

namespace seer {

SimPolicy sim_policy(const std::string& name) {
  SimPolicy policy{.name = name, .scheduling = name};
  policy.drafts = name.ends_with(kDraftingSuffix);
  if (policy.drafts) policy.scheduling.resize(name.size() - std::string_view(kDraftingSuffix).size());
  policy.is_partial = policy.scheduling == kPartialPolicy;
  if (policy.is_partial) policy.scheduling = kVerlPolicy;
  const SchedulingPolicy* const row = find_policy(policy.scheduling);
  SEER_CHECK(row != nullptr, name);
  policy.whole_groups = row->whole_groups;
  return policy;
}

std::vector<std::string> sim_policy_names() {
  std::vector<std::string> names = chunk_policy_names();
  names.push_back(kPartialPolicy);
  for (size_t i = 0, plain = names.size(); i < plain; ++i) names.push_back(names[i] + kDraftingSuffix);
  return names;
}

}  // namespace seer
