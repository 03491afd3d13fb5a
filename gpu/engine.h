// Engine: the seam between the runtime and whatever turns token rows into sampled tokens (the CPU, a GPU, a
// simulation). Used by instance_actor only, which plans the steps and owns the block tables; the engine owns the weights
// and the memory of the KV blocks.
//
// Work is queued in order, like on a CUDA stream: a copy submitted after a step sees that step's KV. Results come back
// in the same order. `notify` runs on an engine thread (in simulation: at the virtual time of completion) each time
// results are ready, without a lock held. It wakes the owner, who then calls take_results() and submit(), perhaps on that very
// thread. There the engine must not be destroyed.
//
// submit() and take_results() are called by one owner thread at a time. Nothing blocks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "protocols/result.h"
#include "protocols/rollout.h"

namespace seer {

using DeviceBlockId = int32_t;  // index of a KV block in the engine's own memory

struct EngineInfo {
  std::string model;               // folder or name, for reports
  uint64_t model_shape = 0;        // shape_hash() of its config; 0: it has none
  int32_t vocab_size = 0;
  int64_t context_tokens_max = 0;  // prompt and output together
  std::vector<int32_t> eos_ids;
  uint32_t block_tokens = 16;      // tokens of one KV block
  int64_t block_bytes = 0;         // K and V of one block over all layers
  int32_t device_blocks = 0;       // KV capacity
  size_t queue_max = 64;           // pieces of work that may be open
  int32_t steps_max = 1;           // steps that one order may ask for, see StepRun
  int32_t orders_max = 1;          // orders that may be open: 1 or 2; 1 if steps_max > 1
  uint64_t kv_layout = 0;          // layout and type of KV blocks: engines with equal ones can use each other's
  uint64_t kv_hash = 0;            // of kv_layout and the weights: engines with equal ones make the same KV. In every BlockKey
  WeightVersion version{1};        // of the weights; this and kv_hash change with a WeightResult
};

/// Rows of one sequence in a step. Row i feeds tokens[i] at position start + i, writes its K and V there, and attends to
/// all positions up to itself.
///
/// With `parents` the rows are a draft tree (verify of several drafts at once): row i follows row parents[i] < i, is at
/// position start + its depth, and attends to [0, start), its ancestors and itself: it gets the same bits as its path would
/// as a linear draft. Row 0 is the root (parent -1) and feeds the last known token; every row is sampled. When the step
/// ends, the KV of the accepted path (accepted_path() in accept_draft.h) is at the positions [start, start + its length).
struct SequenceStep {
  int64_t start = 0;                    // positions [0, start) have their KV in `blocks` already
  std::vector<int32_t> tokens;          // prefill: a piece of the prompt; decode: 1; verify: last token and the draft
  std::vector<DeviceBlockId> blocks;    // block table covering positions [0, start + tokens.size()); empty in a StepRun
  int32_t sample_rows = 0;              // the last sample_rows rows are sampled: 0 mid-prefill, 1 decode, all verify
  uint64_t seed = 0;                    // with the sampled token's position, the key of its random number
  std::shared_ptr<const SamplingParams> sampling;  // set when sample_rows > 0
  int64_t ends_from = 0;                // at positions before this none of ending_ids() (sampler.h) is sampled: min_tokens
  std::vector<int32_t> history;         // all tokens at positions [0, start); only needed with a repetition penalty
  std::vector<int32_t> targets;         // if not empty (size sample_rows): score these tokens instead of sampling
  std::vector<int32_t> parents;         // a draft tree, see above; empty: row i follows row i - 1
  int32_t fed_by = -1;                  // >= 0: tokens[0] is not known yet. It is the last token that the previous step samples
                                        // for its sequence with this index; if that is kNotFinite, this row's result is ignored

  bool gives_kept() const { return sample_rows > 0 && sampling->logprob_mode == LogprobMode::kKept; }
};

/// In place of a token: some logit of the row is NaN or infinite, so nothing can be sampled or scored. No draft token equals
/// it, so a verify ends at the first such row of the path. The sequence ends there too, as it would by decoding.
inline constexpr int32_t kNotFinite = -1;
/// The error that a user reads. `index`: of the token in the output, from 0.
inline std::string not_finite_text(int64_t index) {
  return "the logits of output token " + std::to_string(index) + " are not finite";
}

struct SampledToken {
  int32_t token = 0;  // or kNotFinite
  float logprob = 0;
  SEER_FIELDS(SampledToken, token, logprob)
  bool operator==(const SampledToken&) const = default;
};
/// LogprobMode::kKept: the ids that the cuts left for a token, ascending; null for tokens of other requests.
using KeptList = std::shared_ptr<const std::vector<int32_t>>;

/// Given rows, computed as one step.
struct StepBatch {
  uint64_t id = 0;
  std::vector<SequenceStep> sequences;                // every sequence at most once
  std::vector<std::vector<SampledToken>> spent = {};  // memory of earlier results, to be reused for this one
};

/// More steps of the running batch (StepRun).
struct StepOrder {
  uint64_t id = 0;
  int32_t steps = 1;        // at most; <= steps_max
  int64_t blocks_free = 0;  // KV blocks that the steps after the first may take in all
};

struct StepResult {
  uint64_t id = 0;
  Status status = {};                              // an error (device lost, no memory): nothing else is set, and the engine
                                                   // cannot be used any more
  std::vector<std::vector<SampledToken>> sampled;  // per sequence: sample_rows tokens in row order
  std::vector<std::vector<KeptList>> kept = {};    // of each sampled token; empty if no request wants them
  std::vector<int32_t> ended = {};                 // of an order: slots whose sequences do not continue
  WeightVersion version = {};                      // of the weights that computed it
  int64_t steps = 1;
  int64_t step_us = 0;                             // engine time of this step, or of all steps
  int64_t cpu_us = 0;                              // CPU time of the engine's threads for it (0: not known)
  std::vector<SequenceStep> spent = {};            // the sequences of a StepBatch, so that their memory can be reused
};

/// Moves whole blocks between the engine's memory and host memory. The host memory stays valid and untouched by others
/// until the result is taken.
struct BlockCopy {
  DeviceBlockId block = 0;
  std::span<std::byte> host;  // block_bytes
  uint32_t crc32c = 0;        // import: expected checksum of the bytes
};
struct CopyBatch {
  enum class Direction : uint8_t { kExport, kImport };
  uint64_t id = 0;
  Direction direction = Direction::kExport;
  std::vector<BlockCopy> blocks;
};
struct CopyResult {
  uint64_t id = 0;
  CopyBatch::Direction direction = CopyBatch::Direction::kExport;
  Status status = {};            // as in StepResult
  std::vector<uint32_t> crc32c;  // per block: checksum of the bytes that moved. Import: the caller compares; a block that
                                 // differs was not written to the engine's memory
  int64_t cpu_us = 0;            // as in StepResult
};

/// Reads weights of the same model from a folder (load_weights() in model/weight_store.h) and keeps them beside the running ones.
/// It runs outside the queue, so it delays no other work. REQUIRES: no other StageWeights is open; nothing is staged.
struct StageWeights {
  uint64_t id = 0;
  WeightVersion version;
  std::string folder;
  uint64_t kv_hash = 0;  // with them, as in EngineInfo: others are refused; 0: any
};
/// Work queued after this runs with the staged weights; the old ones are freed.
/// REQUIRES: StageWeights has succeeded since the last switch.
struct SwitchWeights {
  uint64_t id = 0;
};
/// The result of either. An error of StageWeights says what is wrong with the folder; nothing is staged then. After one of SwitchWeights the
/// engine cannot be used any more.
struct WeightResult {
  uint64_t id = 0;
  Status status;
  WeightVersion version;     // of the running weights
  uint64_t kv_hash = 0;  // with them, as in EngineInfo
};
inline void take_over(const WeightResult& weights, EngineInfo& info) {
  info.version = weights.version;
  info.kv_hash = weights.kv_hash;
}

using EngineWork = std::variant<StepBatch, StepOrder, CopyBatch, StageWeights, SwitchWeights>;
using EngineResult = std::variant<StepResult, CopyResult, WeightResult>;

/// When a sequence of a StepRun ends. How much its drafts gain is not known in advance.
struct StepsLimit {
  int64_t gain_max = 0;  // it ends after the step in which its total gain exceeds this
  int64_t covered = 0;   // positions that its KV blocks cover, a whole number of blocks
};

/// What a sequence of a StepRun gained in some steps.
struct GainedTokens {
  int64_t steps = 0;
  std::vector<SampledToken> sampled;
  std::vector<KeptList> kept;    // of each sampled token, or empty
  std::vector<int32_t> by_step;  // with a draft, how many of them in each step; otherwise empty
  std::vector<int32_t> rows;     // of a single step that verified a draft: the accepted rows, each of which gained a token;
                                 // empty if by_step is enough
};

/// The running batch of an engine: sequences in slots. A sequence joins a slot and repeats its first step there until it
/// leaves: it feeds the token that the engine sampled last, with the same number of draft tokens. The engine is told only
/// who joins, leaves or gets a KV block. Results and times are those of single steps.
///
/// A StepOrder asks for more steps. A real engine does one; a simulated one does several, which saves events. They end after
/// the last step of some sequence, after the last step that has enough KV blocks, or at split(). Other calls act at once;
/// `steps` in them counts the steps of the newest order.
///
/// Up to orders_max orders of one step may be open: the next step is queued before the result of the last one is read. If a
/// token of the last step ends a sequence, the next step still has a row for it, whose result is dropped. A sequence that
/// only the owner can end (a stop string, a cancelled request) leaves while orders are open, with the same effect.
///
/// An instance uses this interface only. SlotEngine gives slots to engines that compute given rows only.
class StepRun {
 public:
  virtual ~StepRun() = default;
  /// The sequence takes part from the next order on. It ends after a step that samples one of eos_ids (without ignore_eos),
  /// after the step that `limit` names (without a limit: its first), or after one that gives no token (kNotFinite). Then it
  /// must leave. REQUIRES: no order is open; the slot is free; with a limit, it decodes, or repeats a path of draft tokens if
  /// steps_max > 1.
  virtual void join(int32_t slot, const SequenceStep& step, const std::optional<StepsLimit>& limit) = 0;
  /// Gives the sequence one more KV block for the steps after the newest order, as take_block_needs() asked.
  virtual void grant(int32_t slot, DeviceBlockId block) = 0;
  /// Tokens that it gained and that were not taken are lost. REQUIRES: no order is open, or orders_max > 1.
  virtual void leave(int32_t slot) = 0;
  /// Takes what it gained in the first `steps` steps and was not taken yet. With steps_max 1: in the steps whose results were
  /// taken, several if they came together; it must be called after each result.
  virtual void take(int32_t slot, int64_t steps, GainedTokens& gained) = 0;
  /// Slots that need one more KV block each after the first `steps` steps, except those reported before. With steps_max 1,
  /// the needs after the newest order are known as soon as it is submitted.
  virtual std::vector<int32_t> take_block_needs(int64_t steps) = 0;
  /// True if every sequence in a slot continues after the newest order, unless a token ends it. With orders_max > 1 only.
  virtual bool all_go_on() const { return false; }
  /// Index of the step that runs, or that ran last. The steps before it are completed.
  virtual int64_t step_running() const = 0;
  /// Makes the running step the last of its order.
  virtual void split() = 0;
  /// Figures of the completed steps that were not reported yet, if any; the result has the rest.
  virtual std::optional<StepResult> take_steps_over() = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;
  /// Changes in take_results() only.
  virtual const EngineInfo& info() const = 0;
  /// REQUIRES: called once, before the first submit().
  virtual void set_notify(std::function<void()> notify) = 0;
  /// Queues work. REQUIRES: valid blocks and token ids; at most info().queue_max pieces of work are open.
  virtual void submit(EngineWork work) = 0;
  virtual std::vector<EngineResult> take_results() = 0;
  /// Its running batch; null: it takes no StepOrder, and needs a SlotEngine.
  virtual StepRun* step_run() { return nullptr; }
};

}  // namespace seer
