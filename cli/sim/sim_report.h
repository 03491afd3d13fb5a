// SimReport: the results of rollout iterations. Runs of the same workload and policy under several seeds become figures with a
// confidence interval; figures become JSON for programs, CSV, and a table for people. The page with charts is sim_html.h.
// Used by `seer simulate`, and for its page by `seer rollout`. Pure: data in, text out; the same data gives the same bytes.
//
// Invariants:
//  (1) figures are in the order in which their workload, and in it their policy, first appears among the runs;
//  (2) an unknown value is NaN here, null in JSON, empty in CSV and "-" in the table, never 0.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "actors/policy/schedule/policies.h"
#include "cli/figure_text.h"  // kUnknown
#include "cli/timeline.h"
#include "protocols/step_cost.h"

namespace seer {

/// The policy that speedups are against, as in the paper.
inline constexpr const char* kSimBaseline = kVerlPolicy;

/// How a response was computed.
struct ResponseWork {
  int64_t decode_steps = 0;  // with one token each
  double batch_s = 0;        // time in running batches, with its prefills
};

/// Steps of one instance, one after the other, with the same sequences.
struct StepsTaken {
  StepShape shape;  // their mean
  int64_t steps = 0;
  double step_ns = 0;
};

/// What keeps a run from its lower bound, each as a share of total_s (sim_gap.h). They add up to 1 - bound_share, or
/// a little more where the bound by work is the tighter one.
struct SimGap {
  double idle = kUnknown;     // instances had nothing to run
  double waiting = kUnknown;  // long responses were in no batch
  double early = kUnknown;    // long responses ended before the last one
  double prefill = kUnknown;  // what steps took longer because of it
  double batch = kUnknown;    // batches with too few rows, or too little KV, to be worth their time with any rows
  double mix = kUnknown;      // other rows would have been worth more in these batches
};

/// One rollout iteration, simulated or real: a workload under a policy, drawn from a seed.
struct SimRun {
  std::string workload;
  std::string policy;
  uint64_t seed = 0;
  bool is_synchronous = true;       // every request of the iteration finished in it; false for `partial`
  double total_s = 0;               // from the start until the last request was done
  double tail_s = 0;                // total_s minus the time when 90 % of the requests were done
  double bound_total_s = kUnknown;  // no schedule without drafting finishes the same requests sooner
  double work_bound_total_s = kUnknown;  // the same from the work of all steps alone; not more than bound_total_s
  SimGap gap;                               // to bound_total_s
  int64_t requests = 0;
  int64_t output_tokens = 0;
  double tokens_per_s = 0;                  // output_tokens / total_s
  int64_t preemptions = 0;                  // chunks ended early, their KV dropped
  int64_t migrations = 0;                   // chunks on another instance than the request's chunk before
  int64_t yields = 0;                       // chunks ended early, their KV kept in the pool
  int64_t reprefill_tokens = 0;             // tokens whose KV was computed a second time
  double idle_share = kUnknown;             // 1 - busy time / total_s, over all instances, 0..1
  double late_start_share = kUnknown;       // mean start time of the last 5 % of requests to start / total_s
  double estimate_error = kUnknown;         // mean of |estimate - length| / length
  double acceptance_length = kUnknown;      // tokens gained by a verify of a draft; unknown without drafting
  double drafted_per_verify = kUnknown;     // draft tokens of a verify
  double iteration_s = kUnknown;            // with rewards, training and the weight update (sim_iteration.h); unknown: not asked for
  double gpu_hours = kUnknown;              // of the iteration if known, else of the rollout; unknown without GPUs
  uint64_t events_hash = 0;                 // equal for two runs if they had the same events; 0: not simulated
  std::vector<InstanceTimeline> instances;  // empty: not recorded
  std::vector<double> completions_s;        // when each request was done, in any order; empty: not recorded
  std::vector<ResponseWork> responses;      // in the order of completions_s; empty: not recorded
  std::vector<StepsTaken> steps;            // in any order; empty: not recorded
};

/// Mean and half of the 95 % confidence interval around it.
struct Interval {
  double mean = kUnknown;
  double ci95 = kUnknown;  // unknown for fewer than two values
};

/// All seeds of a workload under a policy. Fields as in SimRun; a seed whose value is unknown is left out of the mean.
struct SimFigures {
  std::string workload;
  std::string policy;
  bool is_synchronous = true;
  std::vector<uint64_t> seeds;
  std::vector<uint64_t> events_hashes;  // one per seed
  Interval total_s;
  Interval tail_s;
  Interval tokens_per_s;
  Interval speedup_vs_verl;  // tokens_per_s / that of verl under the same seed
  Interval preemptions;
  Interval idle_share;
  Interval
      bound_share;  // bound_total_s / total_s: 1 is the best possible. Unknown if not synchronous: that does less.
  Interval gap_idle;    // as in SimGap
  Interval gap_waiting;
  Interval gap_early;
  Interval gap_prefill;
  Interval gap_batch;
  Interval gap_mix;
  Interval late_start_share;
  Interval migrations;
  Interval yields;
  Interval reprefill_tokens;
  Interval estimate_error;
  Interval acceptance_length;
  Interval drafted_per_verify;
  Interval iteration_s;
  Interval gpu_hours;
  Interval requests;
  Interval output_tokens;
  Interval bound_total_s;
  Interval bound_tokens_per_s;     // output_tokens / bound_total_s
  Interval bound_speedup_vs_verl;  // bound_tokens_per_s / tokens_per_s of verl under the same seed
  Interval work_bound_share;       // as bound_share, and likewise the rest
  Interval work_bound_total_s;
  Interval work_bound_tokens_per_s;
  Interval work_bound_speedup_vs_verl;
};

/// Student's t interval around the mean of the finite values.
Interval mean_interval(std::span<const double> values);

std::vector<SimFigures> sim_figures(std::span<const SimRun> runs);

/// A row of the table in the terminal and on the page: one per workload and policy and, after the policies of a workload, one for
/// each of its lower bounds, if known.
struct SimRow {
  std::string workload;
  std::string policy;
  bool is_synchronous = true;
  bool is_bound = false;
  std::vector<std::string> cells;  // one per title; "MEAN" or "MEAN ±CI95"
};
struct SimRows {
  std::vector<std::string> titles;
  std::vector<SimRow> rows;
};
SimRows sim_rows(std::span<const SimFigures> figures);

/// The --report file, with its last newline: a list of an object per workload and policy, a figure being
/// {"mean": number or null, "ci95": number or null}.
std::string sim_report_json(std::span<const SimFigures> figures);

/// The same as CSV (RFC 4180, lines ended by \n): a header, then a line per workload and policy.
std::string sim_csv(std::span<const SimFigures> figures);

/// For people, in 100 columns: sim_rows() of each workload, aligned, and the meaning of its marks. Empty columns are left
/// out; columns that do not fit go into a second table below.
std::string sim_table(std::span<const SimFigures> figures);

/// One table for all workloads, without their bounds: the first columns are the words of the workload's name, under `titles`. For
/// sweeps, whose points are workloads. REQUIRES: each name has as many words as there are titles.
std::string sim_joint_table(std::span<const SimFigures> figures, std::span<const std::string> titles);

/// A figure with three or four digits: 2181.4 -> "2 181", 61.53 -> "61.5", 1.904 -> "1.90"; unknown -> "-".
std::string figure_text(double value);

}  // namespace seer
