// RolloutReport: the figures of one rollout, as JSON for programs and as a table for people. --compare makes a list of them, and
// a table side by side with ratios to the first policy.
// Used by seer.cpp and tests/bench. Pure.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/figure_text.h"  // kUnknown
#include "protocols/chunk.h"
#include "protocols/pool.h"

namespace seer {

/// Figures that the actors report, and figures that only the process knows.
struct RolloutReport {
  std::string policy;
  bool is_auto = false;                // --policy auto chose it
  std::string policy_choice;           // why it, or the reserve of `seer+`, was chosen; empty if both were named
  double reserve = 0;                  // share of a chunk's KV promised before it starts
  RolloutSummary rollout;
  std::vector<KvNodeReport> pool;      // of each machine
  int64_t begun_tokens = 0;            // output tokens of `rollout` that an earlier process made
  int64_t answered_before = 0;         // requests answered by an earlier process (--resume); not among those of `rollout`
  int64_t past_groups = 0;             // groups whose prompts --draft-history knew
  int64_t unkept_groups = 0;           // groups whose responses could not be stored there
  double cpu_total_s = 0;              // CPU time of the process; kUnknown if it ran in a cluster
  double actor_cpu_share = kUnknown;   // CPU time of the actor threads / cpu_total_s
  WeightVersion version;

  std::string policy_text() const { return is_auto ? policy + " (auto)" : policy; }
  double tokens_per_s() const {
    const double wall_s = rollout.wall_s();
    return wall_s > 0 ? static_cast<double>(rollout.output_tokens - begun_tokens) / wall_s : 0;
  }
  DraftFigures drafting() const;  // of all instances
  double acceptance_length() const;
  /// Share of the time of all instances outside of steps.
  double idle_share() const;
  /// Share of the time of all instances spent making drafts.
  double draft_share() const;
  /// Time of the steps that drafted / the time predicted for their tokens (T_SD).
  double drafting_time_ratio() const;
  /// A figure of the KV pool, over all machines.
  int64_t sum(int64_t KvNodeReport::*figure) const;
};

/// The --report file, with its last newline: an object for one report, a list for --compare.
std::string report_json(const RolloutReport& report);
std::string report_json(std::span<const RolloutReport> reports);

/// For people, in 80 columns: figures in sections, each with its meaning, then the instances. Empty rows are left out.
std::string report_table(const RolloutReport& report, bool is_coloured = false);
/// For people, in 80 columns: a column per report; first tokens/s and tail as ratios to those of the first report.
/// REQUIRES: reports is not empty.
std::string compare_table(std::span<const RolloutReport> reports, bool is_coloured = false);

}  // namespace seer
