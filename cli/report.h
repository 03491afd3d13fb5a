// RolloutReport: the figures of one rollout iteration, as JSON for programs and as a table for people. --compare makes
// a list of them, and a table side by side with ratios against the first policy.
// Used by seer.cpp and tests/bench. Pure.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/figure_text.h"  // kUnknown
#include "protocols/chunk.h"

namespace seer {

struct InstanceFigures {
  double busy_s = 0;   // in steps
  double idle_s = 0;   // wall_s - busy_s
  int64_t tokens = 0;  // output tokens made there
  int64_t steps = 0;
};

struct RolloutReport {
  std::string policy;
  std::string policy_choice;     // why --policy auto took it; empty where it was named
  int64_t requests = 0;
  int64_t finished = 0;          // of them; fewer after an interrupt
  int64_t failed_requests = 0;   // of them, ended with an error of their own
  int64_t prompt_tokens = 0;     // of all groups, once each
  int64_t output_tokens = 0;
  double wall_s = 0;
  double tokens_per_s = 0;       // output_tokens / wall_s
  double tail_s = 0;             // wall_s minus the time when 90 % of the requests were done
  int64_t chunks = 0;
  int64_t migrations = 0;        // chunks that ran on another instance than the request's chunk before
  int64_t yields = 0;            // chunks ended early, their KV in the pool
  int64_t preemptions = 0;       // chunks ended early, their KV dropped
  int64_t reprefill_tokens = 0;  // tokens whose KV was computed a second time
  int64_t kv_peak_bytes = 0;     // most KV in use at one time, over all instances
  int64_t spilled_bytes = 0;     // written to the cold tier
  int64_t instances_lost = 0;    // died or fell silent and were started again; what ran there was placed again
  int64_t cold_failures = 0;     // its reads and writes that failed (disk full): what they held is computed again
  std::vector<std::string> parts_lost;  // a sentence for each part of a machine that was lost for good
  int64_t fetched_bytes = 0;     // KV that came from other machines
  int64_t fetch_failures = 0;    // KV blocks that did not come from another machine, or not as they were: computed again
  double length_icc = kUnknown;  // share of the variance of log length that is between groups
  double estimate_error = kUnknown;  // mean of |estimate - length| / length over requests after their group's probe
  DraftFigures drafting;         // all zero without
  int64_t fetched_draft_tokens = 0;  // of their groups, that instances got from draft servers
  int64_t past_groups = 0;       // whose prompt earlier rollouts had answered (--draft-history)
  int64_t unkept_groups = 0;     // whose responses could not be stored there
  double cpu_engine_s = 0;       // CPU time of the engines' threads
  double cpu_total_s = 0;        // CPU time of the process
  double actor_cpu_share = kUnknown;  // CPU time of the actor threads / cpu_total_s
  uint64_t weight_version = 0;
  std::vector<InstanceFigures> instances;

  std::string policy_text() const { return policy_choice.empty() ? policy : policy + " (auto)"; }
  double acceptance_length() const {
    const DraftCounts drafts = drafting.all();
    return drafts.verifies > 0 ? drafts.acceptance_length() : kUnknown;
  }
  double idle_share() const {
    double idle_s = 0, all_s = 0;
    for (const InstanceFigures& i : instances) {
      idle_s += i.idle_s;
      all_s += i.busy_s + i.idle_s;
    }
    return all_s > 0 ? idle_s / all_s : kUnknown;
  }
  /// Of the time of all instances: making drafts.
  double draft_share() const {
    const double all_s = wall_s * static_cast<double>(instances.size());
    return all_s > 0 ? static_cast<double>(drafting.draft_us) / 1e6 / all_s : kUnknown;
  }
  /// What tokens took while drafts were wanted, over what was predicted for them (T_SD).
  double drafting_time_ratio() const {
    const StepTimes& times = drafting.drafting_steps;
    return times.predicted_us > 0 ? static_cast<double>(times.us) / static_cast<double>(times.predicted_us) : kUnknown;
  }
};

/// The --report file, with its last newline: an object for one report, a list for --compare.
std::string report_json(const RolloutReport& report);
std::string report_json(std::span<const RolloutReport> reports);

/// For people, in 80 columns: figures in sections, each with what it means, then the instances. Rows in which there is
/// nothing are left out.
std::string report_table(const RolloutReport& report, bool is_coloured = false);
/// For people, in 80 columns: a column per report; tokens/s and tail first as a ratio to the first one's. REQUIRES: not
/// empty.
std::string compare_table(std::span<const RolloutReport> reports, bool is_coloured = false);

}  // namespace seer
