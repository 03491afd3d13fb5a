// `--policy auto` of seer rollout: measures what the batches cost that `seer` and `seer+` would typically run on an instance, and
// smaller ones, or takes it from a profile, and lets actors/policy/schedule/policy_choice.h choose. Responses do not depend on the policy: a measurement
// that other programs disturb costs time only. Used by local_rollout.cpp.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "actors/policy/schedule/policy_choice.h"
#include "cli/config.h"
#include "cli/step_calibration.h"
#include "protocols/chunk.h"
#include "protocols/result.h"

namespace seer {

/// Between two steps of an instance of `seer rollout`: the result is read and the next step planned. 0.1 ms is idle_s / steps of
/// the report where an instance always has work.
inline constexpr double kStepGapUs = 100;

/// What an instance with `kv_tokens` tokens of KV is given: the medians of prompts and limits, and its share of the requests.
/// REQUIRES: there are groups.
InstanceWork instance_work(const std::vector<GroupSpec>& groups, const RolloutOptions& options, int64_t kv_tokens);

/// With options.draft_profile the steps are those of that file; without it, they are measured on engines of its own, as many
/// as run at a time, with at most 256 MiB of KV together. Errors: as make_cpu_engine() and read_step_profile().
Result<PolicyChoice> choose_policy(const std::shared_ptr<const Model>& model, const CpuEngineConfig& engine,
                                   const std::vector<GroupSpec>& groups, const RolloutOptions& options);

/// For the report: "a batch of 53 costs 1.22 of one of 26 per token; seer+ below 0.95", or with a limit "at most 8 running: a token
/// costs 0.62 of one in a batch of 26".
std::string choice_text(const PolicyChoice& choice);

}  // namespace seer
