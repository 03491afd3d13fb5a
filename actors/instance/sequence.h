// Sequence: what an instance knows about one chunk that it runs; SequenceTable: all of them, by chunk. Plain data, shared by the
// parts of an instance: the actor creates and removes sequences, KvMoves fills their tables, RunningBatch gives them slots.
//
// Always true:
//  (1) `table` covers kv_tokens, and every block of `chain` is the block at the same index of `table`;
//  (2) reported_tokens <= log.size();
//  (3) slot != kNoBatchSlot only while running.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "actors/policy/draft/draft_budget.h"
#include "actors/policy/draft/drafter.h"
#include "gpu/engine.h"
#include "gpu/stop_rule.h"
#include "protocols/chunk.h"
#include "protocols/kv.h"
#include "protocols/token_log.h"

namespace seer {

struct RunChunk;
class Tokenizer;

/// A chunk's life: opening (asking the pool) -> importing (pool -> device) -> running -> parking (device -> pool, when it ends
/// unfinished). Only running chunks take part in steps.
enum class ChunkPhase : uint8_t { kOpening, kImporting, kRunning, kParking };

inline constexpr int32_t kNoBatchSlot = -1;
inline constexpr ChunkId kNoChunk{0};

/// The part of a sequence that every step reads. It is separate so that prefetch_sequences() can prefetch all of it.
struct StepState {
  explicit StepState(StopRule stop_in) : stop(std::move(stop_in)) {}

  TokenLog log;
  int64_t end_tokens = 0;                // log.size() when the chunk is full
  int64_t reported_tokens = 0;           // log.size() when it was reported last
  int64_t kv_tokens = 0;                 // tokens whose KV is in `table`
  std::vector<DeviceBlockId> table;
  std::vector<BlockRef> chain;           // full blocks of the first kv_tokens, named on the device
  size_t offered_blocks = 0;             // of the chain: offered to the pool
  size_t pooled_blocks = 0;              // of the chain, from the start: the pool is known to keep them for the request
  uint64_t seed = 0;
  std::shared_ptr<const SamplingParams> sampling;
  int64_t draft_allowed = 0;             // tokens that its draft may have; 0: no draft
  ChunkPhase phase = ChunkPhase::kRunning;
  int32_t slot = kNoBatchSlot;           // of the running batch, while it does the same in each step
  ChunkEnd end = ChunkEnd::kFinished;    // set when parking
  DraftShape draft_shape = DraftShape::kPath, scout_shape = DraftShape::kPath;
  bool is_scout = false;                 // see DraftBudget
  bool keep_kv = true, is_live = false;  // as in RunChunk
  bool has_pool = false;                 // its KV goes to the pool: keep_kv, and there is one
  bool writes = false;                   // has been in a step, so a partial block at the end of `table` is its own
  int32_t parking_ops = 0;               // reservations and exports still open while parking
  std::vector<float> unreported_logprobs;
  StopRule stop;
};

struct Sequence : StepState {
  using StepState::StepState;

  // As in RunChunk.
  ChunkId chunk;
  RequestId request;
  WeightVersion version;
  int64_t computed_tokens = 0;
  uint64_t yield_rank = 0;
  uint64_t arrival = 0;                  // how many came to the instance before it, of all rollouts

  std::vector<BlockRef> names;           // of the blocks of its first tokens (those in RunChunk), until they are in `chain`
  KeptIds unreported_kept;
  Draft draft;                           // proposed after the log, for the step that is planned or runs
  struct {
    Draft draft;
    DraftShape shape = DraftShape::kPath;
    int64_t allowed = 0;                 // tokens that the draft may have; 0: there is no trial
    int64_t after_tokens = 0;            // the draft followed this many tokens of the log
  } trial;                               // see SequenceDrafts
  ChunkDone done;                        // figures gathered for the answer

  DraftBudget::Class draft_class() const {
    return request.sample == 0 ? DraftBudget::kHigh : DraftBudget::kLow;  // the probe of its group
  }
  DraftText text() const { return {request, log}; }
  /// All but the last known token have their KV.
  bool decodes() const { return kv_tokens + 1 == log.size(); }
  /// Has stop strings or stop tokens. Otherwise only its limit or one of the engine's eos_ids ends it.
  bool may_stop_anywhere() const { return !sampling->stop.empty() || !sampling->stop_token_ids.empty(); }
  int64_t tokens_left() const { return std::min(end_tokens - log.size(), stop.tokens_left()); }

  ChunkTokens take_unreported() {
    const int64_t first = std::exchange(reported_tokens, log.size());
    return {chunk, first - log.prompt_tokens(),
            {log.tokens(first, log.size()), std::exchange(unreported_logprobs, {}), std::exchange(unreported_kept, {})}};
  }

  struct Appended {
    Finish end;
    int64_t tokens = 0;
    std::string error;  // if not empty, the response fails for this reason before the next token
  };
  /// Appends the sampled tokens up to the end of the response. The first `passed` are known not to end it. `kept`: of each token, or
  /// empty.
  Appended append(std::span<const SampledToken> sampled, size_t passed, std::span<const KeptList> kept = {});
  Ending ending_of(const Finish& finish) const;
};

/// The sequence of a chunk that has come. Takes the chunk's log and sampling. `last_sampling`: of the sequence made before, which this
/// one shares if it is equal; may be null. `tokenizer`: may be null; needed for stop strings.
std::unique_ptr<Sequence> make_sequence(RunChunk& chunk, InstanceId instance, const StopLimits& limits,
                                        const std::shared_ptr<const Tokenizer>& tokenizer,
                                        std::shared_ptr<const SamplingParams>& last_sampling);
/// The answer to a chunk that does not begin.
ChunkDone not_begun(const RunChunk& chunk, InstanceId instance, WeightVersion version);

/// Whole blocks of the prompt; all requests of the group share them.
inline size_t prompt_blocks(const Sequence& s, uint32_t block_tokens) {
  return static_cast<size_t>(s.log.prompt_tokens()) / block_tokens;
}

/// The sequences of an instance, in order of chunk id. A sequence keeps its address while it is here.
class SequenceTable {
 public:
  using Entry = std::pair<ChunkId, std::unique_ptr<Sequence>>;

  Sequence* find(ChunkId id) const;
  Sequence& at(ChunkId id) const;  // REQUIRES: it is here
  /// REQUIRES: no sequence of this chunk is here.
  Sequence& add(std::unique_ptr<Sequence> sequence);
  std::unique_ptr<Sequence> remove(ChunkId id);  // REQUIRES: it is here
  /// The sequences of a rollout.
  std::span<const Entry> of(RolloutId rollout) const;

  bool any_live() const { return live_ > 0; }
  size_t size() const { return sequences_.size(); }
  bool empty() const { return sequences_.empty(); }
  auto begin() const { return sequences_.begin(); }
  auto end() const { return sequences_.end(); }

 private:
  std::vector<Entry> sequences_;  // by id
  size_t live_ = 0;               // of them
  uint64_t came_ = 0;             // since the start
};

/// Prefetches the cache lines of all sequences together. With many instances in one process, they have left the caches since
/// the last step, and each would otherwise cost a full memory access.
void prefetch_sequences(std::span<Sequence* const> sequences, bool with_drafts);

}  // namespace seer
