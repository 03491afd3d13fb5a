// HardwareModel: how long a step takes on GPUs that we do not have, and how much KV they hold: a roofline over bytes,
// FLOPs, links and launches, from a few published numbers of the GPU and the model (deploy/sim/hardware.json, compiled
// in; each constant with its source). Used by `seer simulate` for the step times of its engines. Pure.
//
// An instance is dp x tp GPUs. Within a tensor-parallel group of tp GPUs, attention heads and matrices are cut in tp
// pieces, with two all-reduces per layer. The dp groups ("ranks") each hold the weights outside routed experts, and the
// sequences are dealt to them evenly; a sequence's KV is on its rank alone. Routed experts are cut like the other
// matrices (ep = 1), or dealt to all GPUs (ep = dp x tp): then every token is sent to the GPUs of its experts and back,
// two all-to-alls per MoE layer, which keep all ranks in step. A step therefore takes as long as its busiest rank.
//
// One step, on the busiest rank:
//   sum over matrices (outside experts; routed experts; head)  max(bytes / HBM, FLOPs / tensor cores)
//   + attention                                                 max(KV bytes / HBM, FLOPs / tensor cores)
//   + all-reduces + all-to-alls + launches per layer + host work per step and per sequence
// Only what max() joins overlaps. The router is taken as even: T tokens that choose k of E experts touch
// E (1 - (1 - k/E)^T) of them. With ep > 1 the busiest GPU's experts get expert_imbalance times the rows of an even router.
// Ranks share no KV, and a sequence stays on its rank. So the busiest rank has rank_skew times the mean of sequences and KV,
// and an instance is full when its fullest rank is: it holds 1 / rank_skew of the ranks' KV.
//
// In models with experts, a step that verifies drafts (more rows are sampled than there are sequences) takes verify_factor times as
// long, and draft rows touch no experts in the sum above. The paper's speed-ups divided by its acceptance lengths say that such a
// step takes 1.4 to 1.5 times as long as a plain one, in the small batches of Moonlight as in the large ones of Kimi-K2. Draft rows that
// choose experts as other rows do make it dear in small batches and nearly free in large ones. Without experts, its rows say what
// it takes (dense_verify_factor is for trials).
//
// Results use +, -, *, /, sqrt and exact_math.h only: the same numbers on every machine.
#pragma once
#include <cstdint>
#include <utility>

#include "gpu/sim/hardware_catalog.h"
#include "protocols/result.h"
#include "protocols/step_cost.h"

namespace seer {

/// An instance: a model on GPUs.
struct HardwareSetup {
  GpuSpec gpu;
  ModelSpec model;
  HardwareCosts costs;
  int64_t gpus_per_instance = 1;  // tp * dp
  int64_t tp = 1, dp = 1;
  int64_t ep = 1;                 // 1 or gpus_per_instance
  double kv_reserve_share = 0.1;  // of GPU memory, neither weights nor KV: activations, graphs, what the trainer keeps
  double rank_skew = 1;           // sequences and KV of the busiest of the dp ranks / their mean
  double time_scale = 1;          // every step takes this many times as long; for a fit
};

class HardwareModel {
 public:
  /// Errors: kInvalidArgument (one sentence) if the numbers do not fit each other or the weights do not fit the GPUs.
  static Result<HardwareModel> create(HardwareSetup setup);

  const HardwareSetup& setup() const { return setup_; }

  /// Time of a step of the instance in nanoseconds; at least 1. Its sequences are taken as alike: the busiest rank has
  /// ceil(sequences / dp) of them. REQUIRES: sequences >= 1, rows >= sequences, the rest >= 0.
  int64_t step_ns(const StepShape& shape) const;
  /// For callers that place sequences on ranks: `rank` is what the busiest rank has of `instance`. Never shorter when a
  /// field of either grows (sampled_rows together with rows), as long as the step verifies drafts or does not, as before. REQUIRES: as above, for both.
  int64_t step_ns(const StepShape& rank, const StepShape& instance) const;

  /// Bytes of K and V of one token over all layers, once: what a move of the KV carries.
  int64_t kv_bytes_per_token() const { return kv_bytes_per_token_; }
  /// Tokens whose KV fits the instance: its dp ranks together, each holding 1 / dp of it.
  int64_t kv_capacity_tokens() const { return kv_capacity_tokens_; }
  /// Bytes of weights on each GPU.
  double weight_bytes_per_gpu() const;

 private:
  explicit HardwareModel(HardwareSetup setup) : setup_(std::move(setup)) {}

  HardwareSetup setup_;
  int64_t kv_bytes_per_token_ = 0;
  int64_t kv_capacity_tokens_ = 0;
};

/// Seconds that only the rows of a step decide, and the factor on all of its time.
struct RowsTime {
  double matrices_s = 0, links_s = 0, host_s = 0, factor = 1;
};

/// The model's step_ns(), for many steps of which most have as many rows as the one before: what these take is kept. Single owner.
class HardwareStepTimes {
 public:
  explicit HardwareStepTimes(HardwareModel model) : model_(std::move(model)) {}
  int64_t operator()(const StepShape& shape);

 private:
  HardwareModel model_;
  StepShape last_;  // no step has none of each
  RowsTime rows_;
};

/// Experts that `tokens` tokens touch on average if each chooses `experts_per_token` of `experts` evenly:
/// E (1 - (1 - k/E)^T). 1 token: k; many: E.
double expected_experts(double tokens, int64_t experts_per_token, int64_t experts);

/// Estimates the load of the busiest of `ranks` ranks if each has `mean` on average and `most` at most: binomial counts,
/// and sqrt(2 ln ranks) deviations above the mean, which bounds the largest of that many normal values. One rank: the mean.
/// Never less for a larger mean or more ranks. REQUIRES: 0 <= mean <= most.
double busiest_of(double mean, double most, int64_t ranks);

/// Seconds of one all-to-all of an expert-parallel instance: each rank sends `rows` tokens to experts_per_token GPUs,
/// or gets them back. Bytes to GPUs of other nodes go over the NIC, the others over NVLink at the same time.
double all_to_all_s(const HardwareSetup& setup, double rows, double bytes_per_element);

}  // namespace seer
