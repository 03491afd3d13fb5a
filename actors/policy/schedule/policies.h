// Policies: the table of scheduling policies. All code that lists, parses, explains or branches on policies reads it, so a new
// policy is its own file and a row in policies.cpp.
// Used by rollout_actor, cli/, tests and benchmarks. Pure.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/policy/schedule/chunk_scheduler.h"
#include "protocols/result.h"

namespace seer {

/// Names that code refers to: the baseline, and the two that `--policy auto` chooses from.
inline constexpr const char* kVerlPolicy = "verl";
inline constexpr const char* kSeerPolicy = "seer";
inline constexpr const char* kSeerPlusPolicy = "seer+";

struct SchedulingPolicy {
  const char* name;
  const char* what;           // one line for --help
  bool needs_lengths;         // needs the lengths of responses beforehand (GroupSpec::known_tokens)
  bool whole_groups;          // a group's requests run on one instance from start to end; no chunks, no KV pool
  double reserve_share;       // used if ChunkSchedulerConfig::reserve_share is negative
  std::unique_ptr<ChunkScheduler> (*make)(const ChunkSchedulerConfig& config);  // REQUIRES: a checked configuration
};

/// All policies, in the order in which reports show them.
std::span<const SchedulingPolicy> scheduling_policies();
/// nullptr: no policy has this name.
const SchedulingPolicy* find_policy(std::string_view name);
/// The names of all policies, or of those that `chosen` accepts.
std::vector<std::string> chunk_policy_names(bool (*chosen)(const SchedulingPolicy& policy) = nullptr);

/// The share of a chunk's KV promised before it starts. REQUIRES: the policy is known.
double reserve_of(const ChunkSchedulerConfig& config);

/// Makes the scheduler of config.policy. Errors: kInvalidArgument if a number is out of range or the policy is unknown.
Result<std::unique_ptr<ChunkScheduler>> make_chunk_scheduler(const ChunkSchedulerConfig& config);

}  // namespace seer
