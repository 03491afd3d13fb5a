#include "actors/policy/schedule/policies.h"

#include <algorithm>

#include "actors/policy/schedule/divided_scheduler.h"
#include "actors/policy/schedule/seer_plus_scheduler.h"
#include "actors/policy/schedule/serve_order.h"
#include "actors/policy/schedule/streamrl_oracle_scheduler.h"
#include "actors/policy/schedule/verl_scheduler.h"

namespace seer {
namespace {

template <class Scheduler>
std::unique_ptr<ChunkScheduler> make(const ChunkSchedulerConfig& config) {
  return std::make_unique<Scheduler>(config);
}
template <const ServeOrder& order>
std::unique_ptr<ChunkScheduler> make_divided(const ChunkSchedulerConfig& config) {
  return std::make_unique<DividedScheduler>(order, config);
}

// seer+ promises a tenth of a chunk: it fills the memory, and requests yield when it is full.
constexpr SchedulingPolicy kPolicies[] = {
    {.name = kVerlPolicy,
     .what = "baseline: groups are dealt to instances and stay there; requests are not divided",
     .needs_lengths = false, .whole_groups = true, .reserve_share = 1, .make = make<VerlScheduler>},
    {.name = "divided",
     .what = "chunks; in order of submission, started requests keep their place",
     .needs_lengths = false, .whole_groups = false, .reserve_share = 1, .make = make_divided<kFirstSubmittedFirst>},
    {.name = "divided-rr",
     .what = "chunks; the request that waited longest goes first: round robin",
     .needs_lengths = false, .whole_groups = false, .reserve_share = 1, .make = make_divided<kLongestWaitingFirst>},
    {.name = "las",
     .what = "chunks; the request with the fewest tokens so far goes first",
     .needs_lengths = false, .whole_groups = false, .reserve_share = 1, .make = make_divided<kLeastGeneratedFirst>},
    {.name = kSeerPolicy,
     .what = "chunks; a probe of each group first, then the longest estimate (the paper)",
     .needs_lengths = false, .whole_groups = false, .reserve_share = 1, .make = make_divided<kLongestGroupFirst>},
    {.name = kSeerPlusPolicy,
     .what = "chunks; what could still need the most tokens goes first; fills the KV cache",
     .needs_lengths = false, .whole_groups = false, .reserve_share = 0.1, .make = make<SeerPlusScheduler>},
    {.name = "oracle",
     .what = "chunks; the most remaining tokens first, lengths known",
     .needs_lengths = true, .whole_groups = false, .reserve_share = 1, .make = make_divided<kMostRemainingFirst>},
    {.name = "streamrl-oracle",
     .what = "groups are dealt to instances by length, lengths known; requests are not divided",
     .needs_lengths = true, .whole_groups = true, .reserve_share = 1, .make = make<StreamrlOracleScheduler>},
};

Status check_config(const ChunkSchedulerConfig& config) {
  if (config.chunk_tokens < 0)
    return fail(Code::kInvalidArgument, "chunk_tokens=", config.chunk_tokens, " is negative");
  if (!(config.reserve_share <= 1))
    return fail(Code::kInvalidArgument, "reserve_share=", config.reserve_share, " is more than 1");
  if (config.starve_us < 0) return fail(Code::kInvalidArgument, "starve_us=", config.starve_us, " is negative");
  if (!(config.unexplained_before >= 0 && config.unexplained_before <= 1))
    return fail(Code::kInvalidArgument, "unexplained_before=", config.unexplained_before, " is not in [0, 1]");
  if (config.inflight_spread_max < 0)
    return fail(Code::kInvalidArgument, "inflight_spread_max=", config.inflight_spread_max, " is negative");
  if (config.running_max < 0) return fail(Code::kInvalidArgument, "running_max=", config.running_max, " is negative");
  for (const std::string& name : config.without) {
    if (std::ranges::find(kSeerPlusParts, name, &SeerPlusPart::name) != std::end(kSeerPlusParts)) continue;
    std::string known;
    for (const SeerPlusPart& part : kSeerPlusParts) known += cat(" ", part.name);
    return fail(Code::kInvalidArgument, "seer+ has no part \"", name, "\" that could be left out; known:", known);
  }
  if (config.misses_max < 1) return fail(Code::kInvalidArgument, "misses_max=", config.misses_max, " is less than 1");
  return {};
}

}  // namespace

std::span<const SchedulingPolicy> scheduling_policies() { return kPolicies; }

const SchedulingPolicy* find_policy(std::string_view name) {
  const auto found = std::ranges::find_if(kPolicies, [&](const SchedulingPolicy& policy) { return name == policy.name; });
  return found == std::end(kPolicies) ? nullptr : found;
}

std::vector<std::string> chunk_policy_names(bool (*chosen)(const SchedulingPolicy& policy)) {
  std::vector<std::string> names;
  for (const SchedulingPolicy& policy : kPolicies)
    if (chosen == nullptr || chosen(policy)) names.push_back(policy.name);
  return names;
}

double reserve_of(const ChunkSchedulerConfig& config) {
  return config.reserve_share < 0 ? find_policy(config.policy)->reserve_share : config.reserve_share;
}

Result<std::unique_ptr<ChunkScheduler>> make_chunk_scheduler(const ChunkSchedulerConfig& given) {
  SEER_RETURN_IF_ERROR(check_config(given));
  const SchedulingPolicy* const policy = find_policy(given.policy);
  if (policy == nullptr) {
    std::string known;
    for (const std::string& name : chunk_policy_names()) known += " " + name;
    return fail(Code::kInvalidArgument, "unknown scheduling policy \"", given.policy, "\"; known:", known);
  }
  ChunkSchedulerConfig config = given;
  config.reserve_share = reserve_of(config);
  return policy->make(config);
}

}  // namespace seer
