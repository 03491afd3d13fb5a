// A rollout iteration in virtual time: the fleet of `seer rollout` (actors/fleet.h) with simulated engines
// and transport, on one thread. Used by `seer simulate` and tests.
//
// Besides step times it models:
//  - KV copies between engine and pool: they queue with the steps and cost copy_us_block each (on a GPU the copy engines move the
//    bytes beside the steps);
//  - blocks fetched from another machine's pool: they take latency_us and their real bytes over nic_bytes_per_s, which the fetches
//    of a machine share (shares_links), those it sends and those it receives;
//  - a cold tier: a device of each machine that serves one operation after the other;
//  - drafting: each verify draws how many draft tokens are accepted from a measured acceptance, which may depend on how many other
//    responses of the group the drafter knows. A shorter one counts as the fraction of this response that it covers. The
//    instances' own DraftBudget decides how many tokens are drafted, and learns from what is accepted.
// Engines keep no KV bytes, so outputs are not checked here; tests/actors does that with the same actors.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "actors/log.h"
#include "actors/policy/draft/draft_budget.h"
#include "actors/policy/schedule/chunk_scheduler.h"
#include "cli/jsonl.h"
#include "cli/sim/sim_report.h"
#include "gpu/sim/draft_acceptance.h"
#include "protocols/result.h"
#include "protocols/step_cost.h"

namespace seer {

/// The model of a cluster.
struct ClusterModel {
  int64_t instances = 0;
  int64_t instances_per_machine = 1;  // these share a KV pool
  int64_t gpus_per_instance = 0;      // for reports; 0: not GPUs
  int64_t kv_tokens = 0;              // KV capacity of one instance
  int64_t block_tokens = 256;         // of a KV block; larger than real ones, for fewer events
  int64_t offer_blocks = 16;          // full blocks of a running chunk that go to the pool together
  int64_t report_steps = 256;         // steps between two reports of tokens; more than in reality, for fewer events
  int64_t draft_report_steps = 128;   // at most this many with drafting, which chooses drafts at each report
  int64_t steps_at_once = 512;        // equal steps between two events that are done at once; 1: one by one, the reference.
                                      // Always one by one if responses share whole blocks
  int64_t kv_bytes_per_token = 0;
  int64_t rows_max = 256;         // most running requests of one instance
  int64_t prefill_tokens = 8192;  // most in one step
  int64_t dram_bytes = 0;         // of one machine's pool; 0: no pool
  int64_t nic_bytes_per_s = 50'000'000'000;
  bool shares_links = true;       // false: each fetch has nic_bytes_per_s alone, the reference
  int64_t latency_us = 20;
  int64_t cold_bytes = 0;         // of one machine's cold tier; 0: none
  int64_t cold_read_bytes_per_s = 0, cold_write_bytes_per_s = 0;  // of the store, not of its device
  int64_t copy_us_block = 5;
  std::function<int64_t(const StepShape&)> step_ns;
};

/// The work to simulate: groups of equal prompts, and the length of each response.
struct SimWork {
  std::vector<GroupLengths> groups;  // group i is groups[i]
  int64_t max_gen = 0;               // most tokens of any response
  int64_t context_tokens_max = 0;    // of prompt and response together; 0: longest prompt + max_gen
  int64_t target_requests = 0;       // the iteration stops when this many are finished; 0: all
  const std::atomic<bool>* stop = nullptr;  // when set, the simulation ends with kCancelled
};

/// A request that was stopped before its end.
struct StoppedRequest {
  int64_t group = 0, sample = 0;
  int64_t generated_tokens = 0;
};

/// Speculative decoding.
struct SimDrafting {
  DraftAcceptance acceptance;
  bool grouped = true;  // drafts from all responses of the group; false: nothing else depends on them
  DraftBudgetConfig budget;
  /// If set: a draft token costs a pass over all sequences that decode, by a draft model or a head of the model. Takes the shape
  /// of their step without drafts.
  std::function<int64_t(const StepShape&)> pass_ns = {};
};

/// Simulates one iteration under one policy, with drafting if given. The caller fills in `run.workload`, `seed` and
/// `bound_total_s`.
/// Errors: kInvalidArgument (policy, chunk options, or a response that fits in no instance), kUnavailable (the rollout
/// ended early: a defect), kCancelled. `stopped` gets the requests that target_requests left unfinished.
/// An instance must hold the longest request. Errors: kInvalidArgument.
Status check_kv(const ClusterModel& cluster, const SimWork& work);
Result<SimRun> simulate_rollout(const ClusterModel& cluster, const SimWork& work,
                                const ChunkSchedulerConfig& scheduler,
                                const std::optional<SimDrafting>& drafting = {},
                                std::vector<StoppedRequest>* stopped = nullptr, const EventLog& log = {});

}  // namespace seer
