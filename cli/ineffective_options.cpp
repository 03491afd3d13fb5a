#include "cli/ineffective_options.h"

#include <algorithm>

#include "actors/policy/schedule/serve_order.h"
#include "cli/sim/sim_partial.h"
#include "cli/sim/simulate_command.h"

namespace seer {
namespace {

/// Options that need something, whether it is there, and what it is.
struct Need {
  std::vector<const char*> options;
  bool is_met;
  std::string what;
};

std::vector<std::string> sentences(const std::vector<Need>& needs, const std::set<std::string>& given) {
  std::vector<std::string> found;
  std::set<std::string> named;  // one sentence for each option, the first
  for (const Need& need : needs)
    for (const char* option : need.options)
      if (!need.is_met && given.contains(option) && named.insert(option).second)
        found.push_back(cat("--", option, " has no effect ", need.what));
  return found;
}

}  // namespace

std::vector<std::string> ineffective_options(const RolloutOptions& o, const std::set<std::string>& given) {
  const std::vector<std::string> policies = o.compare.empty() ? std::vector{o.scheduler.policy} : o.compare;
  const bool chooses = std::ranges::find(policies, kAutoPolicy) != policies.end();
  return sentences(
      {{{"policy"}, o.compare.empty(), "beside --compare, which names the policies"},
       {{"lengths"}, std::ranges::any_of(policies, needs_lengths), "without a policy that takes lengths: oracle, streamrl-oracle"},
       {{"draft-max", "draft-shape", "draft-rule", "draft-lambda"}, o.drafting != "off", "with --drafting off"},
       {{"draft-profile"}, o.drafting != "off" || chooses, "with --drafting off and without --policy auto"},
       {{"draft-lambda"}, o.draft_rule != "uniform", "with --draft-rule uniform"},
       {{"cold-bytes"}, !o.cold_dir.empty(), "without --cold-dir"},
       {{"cold-dir", "cold-bytes"}, o.dram_bytes > 0, "with --dram-bytes 0: KV goes to disk from DRAM"}},
      given);
}

std::vector<std::string> ineffective_options(const SimulateOptions& o, const std::set<std::string>& given) {
  const bool any_drafts = std::ranges::any_of(o.policies, drafts);
  const auto runs = [&](const std::string& scheduling) {
    return std::ranges::any_of(o.policies, [&](const std::string& policy) { return scheduling_of(policy) == scheduling; });
  };
  return sentences({{{"draft-acceptance", "drafting", "draft-rule", "dram-bytes", "block-tokens"}, !o.faults, "with --faults"},
                    {{"draft-acceptance", "drafting", "draft-rule", "draft-max"}, any_drafts, "without a policy that ends in +sd"},
                    {{"over-issue"}, runs(kPartialPolicy), "without the policy partial"},
                    {{"unexplained"}, runs("seer+"), "without the policy seer+"}},
                   given);
}

}  // namespace seer
