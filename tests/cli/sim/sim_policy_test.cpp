#include "cli/sim/sim_policy.h"

#include <doctest/doctest.h>

#include "actors/policy/schedule/policies.h"

using namespace seer;

TEST_CASE("sim policy: every name says which policy places requests, whether it drafts, and from whose text") {
  const std::vector<std::string> names = sim_policy_names();
  CHECK(names.size() == 2 * (scheduling_policies().size() + 1));
  for (const std::string& name : names) {
    CAPTURE(name);
    const SimPolicy policy = sim_policy(name);
    REQUIRE(find_policy(policy.scheduling) != nullptr);
    CHECK(policy.name == name);
    CHECK(policy.drafts == name.ends_with("+sd"));
    CHECK(policy.is_partial == name.starts_with("partial"));
    CHECK(policy.whole_groups == find_policy(policy.scheduling)->whole_groups);
  }
  CHECK(sim_policy("seer+").scheduling == "seer+");
  CHECK(sim_policy("seer++sd").scheduling == "seer+");
  CHECK(sim_policy("partial+sd").scheduling == "verl");
}
