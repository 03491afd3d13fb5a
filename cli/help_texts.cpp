#include "cli/help_texts.h"

#include <algorithm>
#include <string_view>

#include "actors/policy/schedule/policies.h"
#include "actors/policy/schedule/policy_choice.h"
#include "actors/policy/schedule/seer_plus_scheduler.h"
#include "cli/sim/sim_policy.h"

namespace seer {
namespace {

std::string note_line(std::string_view name, std::string_view what) {
  constexpr size_t kNameWidth = 18;
  return cat("  ", name, std::string(kNameWidth - std::min(kNameWidth, name.size()), ' '), what, "\n");
}

std::string policy_notes() {
  std::string text = "Policies:\n";
  for (const SchedulingPolicy& policy : scheduling_policies()) text += note_line(policy.name, policy.what);
  return text;
}

}  // namespace

std::string rollout_notes() {
  return policy_notes() + note_line(kAutoPolicy, cat(kSeerPlusPolicy, " if a fuller batch costs less per token, else ", kSeerPolicy));
}

std::string simulate_notes() {
  std::string text = policy_notes() + note_line(kPartialPolicy, kPartialWhat) +
                     note_line(cat("...", kDraftingSuffix), "the same policy with speculative decoding") + "Parts of seer+ (--without):\n";
  for (const SeerPlusPart& part : kSeerPlusParts) text += note_line(part.name, part.what);
  return text;
}

}  // namespace seer
