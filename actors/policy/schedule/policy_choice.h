// PolicyChoice: `--policy auto`: which of `seer` and `seer+` suits an engine. They differ in how much of the KV cache they use.
// `seer` promises a whole chunk of KV before it starts a request, so that memory is held back and batches are smaller; `seer+`
// promises a tenth, fills the memory and lets requests yield. That pays where a fuller batch costs less per token (a GPU
// reads the weights once for all rows), and only costs where a step's time grows with its rows and with the KV that no
// longer stays in the CPU's caches. So the choice compares the time per token of the batch that each would run. Where a batch
// smaller than both is clearly cheaper per token, instances are to run no more than that.
// Used by cli/policy_auto. Pure functions.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "actors/policy/schedule/policies.h"
#include "protocols/step_cost.h"

namespace seer {

/// What --policy calls it.
inline constexpr const char* kAutoPolicy = "auto";

/// What one instance holds, and what it is given to do. All at least 1.
struct InstanceWork {
  int64_t kv_tokens = 0;      // that its KV cache holds
  int64_t rows_max = 0;       // running requests at most
  int64_t requests = 0;       // its share of all
  int64_t prompt_tokens = 0;  // of a typical request
  int64_t limit_tokens = 0;   // output tokens that a typical request may have at most
};

/// Decode steps that each policy would typically run: sequences of `context_tokens` tokens before the step.
struct TypicalBatches {
  int64_t context_tokens = 1;
  int64_t held_sequences = 1;  // seer
  int64_t full_sequences = 1;  // seer+; not fewer

  int64_t of(const std::string& policy) const { return policy == kSeerPlusPolicy ? full_sequences : held_sequences; }
};
TypicalBatches typical_batches(const InstanceWork& work, const ChunkSchedulerConfig& config);
/// Sizes of batches worth a look, ascending: the two above, and powers of two from kCapMin on below them.
inline constexpr int64_t kCapMin = 4;
std::vector<int64_t> batch_sizes(const TypicalBatches& batches);
/// A decode step of `sequences` sequences.
StepShape decode_shape(int64_t sequences, int64_t context_tokens);

/// Least share of the time per token that the fuller batch must save for `seer+` to be chosen. In `seer simulate`, over GPUs and
/// over profiles with gaps of 0 to 3.2 ms between steps, `seer+` is 1 + 0.9 to 1.7 savings as fast as `seer`, and slower where the
/// saving is below 0 (docs/policy_choice.md). Real runs of `seer+` take about 7 % more than simulated ones, as those of `seer`
/// do not, so the saving must make up for that. The GPUs of the three built-in workloads are at 0.078 to 0.087; the
/// shipped model on CPU with 0.1 ms between steps at -0.21 to 0.035. Near the threshold both policies take about as long: it matters little
/// which way a noisy measurement falls there.
inline constexpr double kSeerPlusSavingMin = 0.05;

/// Of batches that cost at most so much more per token than the cheapest, the fullest is taken: what is measured is not exact,
/// and responses are longer or shorter than the typical one.
inline constexpr double kCapSlack = 0.05;

struct PolicyChoice {
  std::string policy = kSeerPolicy;  // or kSeerPlusPolicy
  TypicalBatches batches;
  double saving = 0;  // of time per token, by the fuller batch; below 0: it is dearer
  int64_t rows_max = 0;    // running requests of an instance at most; 0: as many as the policy would run
  double cap_saving = 0;   // of time per token, by a batch of rows_max over the policy's own
};
/// `step_us` is what a step of one of batch_sizes() takes, with what passes from its end to the start of the next one. A time that
/// is no number above 0 says nothing: then `seer`, with a saving of 0 and no limit.
PolicyChoice choose_policy(const TypicalBatches& batches, const std::function<double(const StepShape&)>& step_us);

}  // namespace seer
