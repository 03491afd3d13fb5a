// instance_actor: one engine with its KV cache. Runs chunks: finds the KV of their prefix (device, pool, or prefill),
// batches their rows into steps, reports tokens, and moves KV to the pool after the steps.
//
// The actor handles the messages, owns the table of chunks, and decides which chunk is admitted, gives way or has ended. Three
// plain classes do the rest, each with its own state: KvMoves (KV between device and pool), SequenceDrafts (speculative
// decoding) and RunningBatch (what the next step computes). on_work_ready() takes results; go_on() orders the next step.
//
// A chunk's life: opening -> importing -> running -> parking -> ChunkDone (ChunkPhase).
//
// Always true:
//  (1) every RunChunk is answered by exactly one ChunkDone, unless DropChunks of its rollout came first or the actor ended;
//  (2) all tokens of a chunk are reported, in order, the last of them with its ChunkDone;
//  (3) the weights change only while there are no chunks, so every token and KV block of a chunk has one version.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "actors/instance/chunk_sinks.h"
#include "actors/instance/drafting.h"
#include "actors/instance/engine_queue.h"
#include "actors/instance/kv_moves.h"
#include "actors/instance/running_batch.h"
#include "actors/instance/sequence.h"
#include "gpu/device_blocks.h"
#include "gpu/engine.h"
#include "gpu/step_planner.h"
#include "gpu/text/tokenizer.h"
#include "protocols/actors.h"
#include "storage/host_arena.h"

namespace seer {

struct InstanceConfig {
  InstanceId id;
  StepPlannerConfig planner;
  int32_t rows_max = 256;     // chunks of one rollout; more are rejected
  /// A chunk with KV in the pool is imported only if each running chunk still has room for this many more tokens. Otherwise
  /// some chunk gives way soon after. The scheduler reserves the same room, but its view is one report old. Without this,
  /// simulated `seer+` on Qwen2-VL-72B yields 2.2 times as often and moves 1.4 times as many chunks, for 0.1 to 0.2 % less
  /// time (on Kimi-K2 0.3 %).
  int32_t headroom_tokens = 32;
  int32_t offer_blocks = 8;   // a running chunk offers full blocks to the pool when it has this many
  int32_t report_steps = 32;  // steps between two reports of tokens: the bound on the token log's lag
  int32_t live_report_steps = 4;  // the same for chunks whose tokens somebody reads as they come
  int64_t alive_us = 60'000'000;  // while steps run, a report is sent at least so often, and tells of chunks without new tokens too
  int32_t step_depth = 2;     // orders of steps in the engine at most; an engine may take fewer
};

/// What an instance works with. Without a pool, `kv_node` and `arena` are null.
struct InstanceParts {
  std::shared_ptr<HostArena> arena;             // of kv_node's machine. Before the engine, which may copy to it until it is gone
  std::shared_ptr<Engine> engine;               // this instance is its only user
  std::shared_ptr<const Tokenizer> tokenizer;   // may be null; needed for stop strings
  KvNodeHandle kv_node;
  Drafting drafting;
};

struct InstanceActor {
  using handle = InstanceHandle;
  static constexpr const char* kActorName = "instance";

  InstanceActor(rt::self_ptr<InstanceActor> self_in, InstanceConfig config_in, InstanceParts parts_in);
  handle::behavior_type make_behavior();

  // -- messages
  void on_use(const UseInstance& use);
  void note_user(RolloutId rollout, const ChunkSink& to);
  void on_run_chunk(RunChunk chunk);
  Status check_chunk(const RunChunk& chunk) const;
  void on_work_ready();
  void on_reserved(const KvReserved& reserved);
  void on_opened(const KvOpened& opened);
  void cancel_chunk(ChunkId id);
  void drop_chunks(RolloutId rollout);
  void yield_chunks();
  void on_down(const rt::down& message);
  void update_weights(const UpdateInstance& update);
  const InstanceReport& current_report();

  // -- a step: take results, then order the next one
  Status take_results();
  void on_steps(StepResult& result);
  void on_copy(const CopyResult& result);
  void on_weights(const WeightResult& result);
  void switch_when_unused();
  bool is_switching() const { return update && update->phase == Update::Phase::kSwitching; }
  void answer_update(std::string error);
  void on_gain(Sequence& s, int64_t rows, std::span<const SampledToken> sampled, std::span<const KeptList> kept, size_t passed);
  void go_on();
  bool admit();
  bool plan();
  void give_all_way();
  void take_steps_over();
  void add_figures(const StepResult& result);

  // -- chunks
  void run(Sequence& s);
  void give_way(Sequence& s);
  void park(Sequence& s, ChunkEnd end);
  void parking_progressed(Sequence& s);
  void end_request(Sequence& s, Ending ending);
  void answer(ChunkId id, ChunkEnd end);
  int32_t steps_to_report() const;
  void report_tokens();
  void report_live();
  void report_growth();
  void tell_rollouts(std::vector<ChunkTokens> reported);
  void share_drafts();
  void tell_pool(KvMoves::ToPool message);

  rt::self_ptr<InstanceActor> self;
  InstanceConfig config;
  InstanceParts parts;
  EngineInfo info;  // equals the engine's, after its last result
  DeviceBlocks devices;
  EngineQueue engine;
  SequenceTable sequences;
  std::optional<SequenceDrafts> drafts;   // with a drafter
  KvMoves kv;                             // kv and batch use the members above
  RunningBatch batch;
  InstanceReport report;                  // current_report() adds the counts of kv and drafts
  int64_t started_us = -1;                // when a rollout came last while no other used it; -1: none came
  int32_t steps_since_report = 0, steps_since_live_report = 0;
  int64_t reported_us = 0;      // when the last report went out
  int64_t all_reported_us = 0;  // when the last one that told of each chunk did
  bool draining = false;                  // every chunk gives way
  std::vector<ChunkId> grown;             // chunks with keep_kv = false that needed another block since the last report
  ChunkSinks sinks;                       // of the rollouts that use this, until they drop their chunks
  struct Update {
    enum class Phase : uint8_t { kStaging, kStaged, kSwitching };
    UpdateInstance asked;
    Phase phase = Phase::kStaging;
  };
  std::optional<Update> update;           // of the weights, until it is answered
  std::shared_ptr<const SamplingParams> last_sampling;  // of the last chunk; most chunks have equal ones
};

}  // namespace seer
