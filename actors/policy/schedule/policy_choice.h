// PolicyChoice: `--policy auto` chooses between `seer` and `seer+` for an engine. They differ in how much of the KV cache they
// use. `seer` promises a whole chunk of KV before it starts a request, so it holds memory back and runs smaller batches. `seer+`
// promises a tenth, fills the memory and lets requests yield. That pays if a fuller batch costs less per token (a GPU reads the
// weights once for all rows). It costs time if a step's time grows with its rows and with KV that no longer fits in the CPU's
// caches. So the choice compares the time per token of the batches that both would run. If a smaller batch than both is clearly
// cheaper per token, the choice also limits instances to it. `seer+` by name promises a tenth or all by the same comparison.
// Used by cli/policy_auto. Pure functions.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "actors/policy/schedule/policies.h"
#include "protocols/step_cost.h"

namespace seer {

/// Its name for --policy.
inline constexpr const char* kAutoPolicy = "auto";

/// The size of one instance and its share of the work. All at least 1.
struct InstanceWork {
  int64_t kv_tokens = 0;      // room in its KV cache
  int64_t rows_max = 0;       // running requests at most
  int64_t requests = 0;       // its share of all
  int64_t prompt_tokens = 0;  // of a typical request
  int64_t limit_tokens = 0;   // output tokens that a typical request may have at most
};

/// The batches that each policy would typically run, of sequences with `context_tokens` tokens before the step.
struct TypicalBatches {
  int64_t context_tokens = 1;
  int64_t held_sequences = 1;  // seer
  int64_t full_sequences = 1;  // seer+; not fewer

  int64_t of(const std::string& policy) const { return policy == kSeerPlusPolicy ? full_sequences : held_sequences; }
};
TypicalBatches typical_batches(const InstanceWork& work, const ChunkSchedulerConfig& config);
/// Sizes of batches to compare, ascending: the two above, and below them the powers of two from kCapMin on.
inline constexpr int64_t kCapMin = 4;
std::vector<int64_t> batch_sizes(const TypicalBatches& batches);
/// A decode step of `sequences` sequences.
StepShape decode_shape(int64_t sequences, int64_t context_tokens);

/// `seer+` is chosen if its fuller batch saves at least this share of the time per token. In simulation `seer+` is faster than
/// `seer` by 0.6 to 1.7 times the saving, and slower if the saving is below 0 (docs/policy_choice.md). But real runs of `seer+`
/// take about 4 % longer, relative to those of `seer`, than simulated ones, so the saving must make up for that. The GPUs of the
/// three built-in workloads have 0.078 to 0.087; the shipped model on CPU has -0.23 to 0.035. Near the threshold both policies
/// take about as long, so noise in the measurement matters little.
inline constexpr double kSeerPlusSavingMin = 0.05;

/// The fullest batch is taken whose time per token is at most this share above the least: measurements are not exact, and
/// responses are longer or shorter than the typical one.
inline constexpr double kCapSlack = 0.05;

struct PolicyChoice {
  std::string policy = kSeerPolicy;  // or kSeerPlusPolicy
  TypicalBatches batches;
  double saving = 0;  // share of the time per token that the fuller batch saves; below 0: it costs more
  int64_t rows_max = 0;    // limit on running requests of an instance; 0: none
  double cap_saving = 0;   // share of the time per token that a batch of rows_max saves over the policy's own

  /// If `seer+` is named and its reserve is not: as `seer` where a fuller batch saves too little. Below 0: the policy's default.
  double seer_plus_reserve() const { return saving > kSeerPlusSavingMin || batches.held_sequences == batches.full_sequences ? -1 : 1; }
};
/// `step_us`: time of a step with one of batch_sizes(), with the gap before the next step. If a time is not a number above 0, the
/// choice is `seer`, with a saving of 0 and no limit.
PolicyChoice choose_policy(const TypicalBatches& batches, const std::function<double(const StepShape&)>& step_us);

}  // namespace seer
