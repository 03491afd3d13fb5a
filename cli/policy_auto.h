// `--policy auto` of seer rollout and seer serve, and `seer+` without --reserve: measures steps, or reads their times from a profile,
// for the batches that `seer` and `seer+` would typically run on an instance, and for smaller ones. Then
// actors/policy/schedule/policy_choice.h chooses. A rollout knows its work and measures just those batches; a server measures before its
// first request, for any work.
// Responses do not depend on the policy, so a disturbed measurement only costs time.
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

/// Microseconds between two steps of an instance of `seer rollout`, to read the result row by row and plan the next step. Measured
/// as idle_s / steps in the reports of instances that always had work (docs/policy_choice.md).
constexpr double step_gap_us(int64_t rows) { return 4 + 2.5 * static_cast<double>(rows); }

/// The work of an instance: medians of prompt lengths and limits, and its share of the requests. Its kv_tokens are left to
/// choose_policy(). REQUIRES: groups is not empty.
InstanceWork instance_work(const std::vector<GroupSpec>& groups, const MachineOptions& options);

/// Step times come from options.draft_profile. Without it they are measured on temporary engines, as many as run at a time, with
/// at most 256 MiB of KV together. Errors: those of EngineSource::make and read_step_profile().
Result<PolicyChoice> choose_policy(const EngineSource& source, InstanceWork work, const MachineOptions& options,
                                   const ChunkSchedulerConfig& scheduler);

/// Microseconds of a decode step, with the gap before the next one.
using DecodeStepUs = std::function<double(const StepShape&)>;
/// For work that is not known yet: the times come from options.draft_profile, or from steps of many sizes and contexts on temporary
/// engines as above. Takes about a second. On slow engines the largest batches are not measured but extrapolated. Errors: as above.
Result<DecodeStepUs> measure_decode_steps(const EngineSource& source, const MachineOptions& options);
/// Chooses by these times.
PolicyChoice choose_policy(const DecodeStepUs& step_us, const EngineSource& source, InstanceWork work, const MachineOptions& options,
                           const ChunkSchedulerConfig& scheduler);

/// Whether it hangs on step times: `auto`, and `seer+` whose reserve is not given.
bool is_measured(const ChunkSchedulerConfig& scheduler);
/// The same configuration, with what was chosen: policy and limit for `auto`, the reserve for `seer+`. REQUIRES: is_measured(scheduler).
ChunkSchedulerConfig chosen(ChunkSchedulerConfig scheduler, const PolicyChoice& choice);

/// Why, for the report. `auto`: "a batch of 53 costs 1.22 of one of 26 per token; seer+ below 0.95", or with a limit "at most 8
/// running: a token costs 0.62 of one in a batch of 26". `seer+`: "reserve 1: a batch of 53 costs 1.22 of one of 26 per token; 0.1
/// below 0.95". REQUIRES: is_measured(scheduler).
std::string choice_text(const ChunkSchedulerConfig& scheduler, const PolicyChoice& choice);

}  // namespace seer
