// instance_actor: one engine with its KV cache. Runs chunks: finds the KV of their prefix (device, pool, or prefill),
// batches their rows into steps, reports tokens, and moves KV to the pool after the steps.
//
// The actor has the messages and the table of chunks, and decides who is admitted, gives way or is over. The rest is in
// three plain classes, each with its own state: KvMoves (KV between device and pool), SequenceDrafts (speculative decoding)
// and RunningBatch (what the next step computes). go_on() shows one step: admit, plan, order; on_work_ready() takes results.
//
// A chunk's life: opening -> importing -> running -> parking -> ChunkDone (ChunkPhase). At most one order of steps is in the
// engine, and copies queue after it.
//
// Always true:
//  (1) every RunChunk is answered by exactly one ChunkDone, unless DropChunks of its rollout came first;
//  (2) all tokens of a chunk are reported, in order, the last of them with its ChunkDone;
//  (3) the weights change only while there are no chunks, so that every token and KV block of a chunk is of one version.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

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
  int32_t rows_max = 256;     // chunks of a rollout at most; more are rejected
  /// A chunk with KV in the pool waits until the running ones would keep room for this many more tokens each; otherwise it,
  /// or another, gives way soon after. The scheduler charges as much, but by what it heard last: without this, simulated
  /// `seer+` on Qwen2-VL-72B yields 2.2 times as often and moves 1.4 times as many chunks, for 0.1 to 0.2 % less time (on
  /// Kimi-K2 0.3 %).
  int32_t headroom_tokens = 32;
  int32_t offer_blocks = 8;   // full blocks of a running chunk go to the pool when there are this many
  int32_t report_steps = 32;  // steps between two reports of tokens: the bound on the token log's lag
  int32_t step_depth = 2;     // steps in the engine's queue at most; an engine may take fewer
};

/// What an instance works with. Without a pool, `kv_node` is null and `arena` empty.
struct InstanceParts {
  std::shared_ptr<Engine> engine;               // this instance is its only user
  std::shared_ptr<const Tokenizer> tokenizer;   // may be null; needed for stop strings
  KvNodeHandle kv_node;
  std::shared_ptr<HostArena> arena;             // of kv_node's machine
  Drafting drafting;
};

struct InstanceActor {
  using handle = InstanceHandle;
  static constexpr const char* kActorName = "instance";

  InstanceActor(rt::self_ptr<InstanceActor> self_in, InstanceConfig config_in, InstanceParts parts_in);
  handle::behavior_type make_behavior();

  // -- messages
  void on_run_chunk(RunChunk chunk);
  void on_work_ready();
  void on_reserved(const KvReserved& reserved);
  void on_opened(const KvOpened& opened);
  void cancel_chunk(ChunkId id);
  void drop_chunks(RolloutId rollout);
  void yield_chunks();
  void on_down(const rt::down& message);
  void update_weights(const UpdateInstance& update);
  const InstanceReport& current_report();

  // -- a step: take results, then go on with what comes next
  bool take_results();
  void on_steps(StepResult& result);
  void on_copy(const CopyResult& result);
  void on_weights(const WeightResult& result);
  void switch_when_unused();
  void answer_update(std::string error);
  void on_gain(Sequence& s, int64_t rows, std::span<const SampledToken> sampled, size_t passed);
  void go_on();
  bool admit();
  bool plan();
  void give_all_way();
  void take_steps_over();
  void add_figures(const StepResult& result);

  // -- chunks
  ChunkDone unstarted(const RunChunk& chunk, ChunkEnd end) const;
  void run(Sequence& s);
  void give_way(Sequence& s);
  void park(Sequence& s, ChunkEnd end);
  void parking_progressed(Sequence& s);
  void finish(Sequence& s, const Finish& end);
  void fail_request(Sequence& s);
  void answer(ChunkId id, ChunkEnd end);
  void report_tokens();
  void report_growth();
  void tell_rollouts(std::vector<ChunkTokens> reported);
  void share_drafts();
  void tell_pool(KvMoves::ToPool message);

  rt::self_ptr<InstanceActor> self;
  InstanceConfig config;
  InstanceParts parts;
  EngineInfo info;  // as the engine's after its last result
  DeviceBlocks devices;
  EngineQueue engine;
  SequenceTable sequences;
  std::map<ChunkId, ChunkSink> reply_to;  // of `sequences`
  std::optional<SequenceDrafts> drafts;   // with a drafter
  KvMoves kv;                             // uses those above, like batch
  RunningBatch batch;
  InstanceReport report;                  // without what kv and drafts count: see current_report()
  int64_t started_us = -1;                // when the first chunk came
  int32_t steps_since_report = 0;
  bool draining = false;                  // no chunk stays
  std::vector<ChunkId> grown;             // without KV to keep: came to need another block since the last report
  std::map<RolloutId, ChunkSink> sinks;   // of the rollouts that have sent chunks and not dropped them
  struct Update {
    enum class Phase : uint8_t { kStaging, kStaged, kSwitching };
    UpdateInstance asked;
    Phase phase = Phase::kStaging;
  };
  std::optional<Update> update;           // of the weights, that is open
  std::shared_ptr<const SamplingParams> last_sampling;  // of the last chunk; most chunks share theirs
};

}  // namespace seer
