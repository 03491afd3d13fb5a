// instance_actor: one engine with its KV cache. Runs chunks: finds the KV of their prefix (device, pool, or prefill),
// batches their rows into steps, reports tokens, and moves KV to the pool behind the steps.
//
// A chunk's life: opening (asking the pool) -> importing (pool -> device) -> running -> parking (device -> pool, when it
// ends unfinished) -> ChunkDone. Only running chunks take part in steps. At most one step is in the engine; copies queue
// behind it, so that a block may be given away as soon as its last reader was submitted. What the engine's own queue has no
// place for waits here, in the same order.
//
// Always true:
//  (1) every RunChunk is answered by exactly one ChunkDone, unless DropChunks came first;
//  (2) all tokens of a chunk are reported, in order, the last of them with its ChunkDone;
//  (3) a block that is written by a step has that sequence as its only user.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/instance/draft_sync.h"
#include "actors/policy/draft/draft_budget.h"
#include "actors/policy/draft/drafter.h"
#include "gpu/device_blocks.h"
#include "gpu/engine.h"
#include "gpu/step_planner.h"
#include "gpu/stop_rule.h"
#include "gpu/text/tokenizer.h"
#include "protocols/actors.h"
#include "protocols/token_log.h"
#include "storage/host_arena.h"

namespace seer {

struct InstanceConfig {
  InstanceId id;
  StepPlannerConfig planner;
  int32_t rows_max = 256;     // running chunks at most; more are rejected
  /// A chunk with KV in the pool waits until the running ones would keep room for so many more tokens each; otherwise it,
  /// or another, gives way soon after. The scheduler charges as much, but by what it heard last: without this, simulated
  /// `seer+` on Qwen2-VL-72B yields 2.2 times as often and moves 1.4 times as many chunks, for 0.1 to 0.2 % less time (on
  /// Kimi-K2 0.3 %).
  int32_t headroom_tokens = 32;
  int32_t offer_blocks = 8;   // full blocks of a running chunk go to the pool so many at a time or more
  int32_t report_steps = 32;  // tokens are reported every so many steps: the bound on the token log's lag
};

/// Speculative decoding of an instance; none without a drafter.
struct Drafting {
  std::shared_ptr<Drafter> drafter;  // this instance is its only user
  DraftBudgetConfig budget;
  DraftBudget::StepNs step_ns;       // what a step of the engine takes
  DraftSyncConfig sync = {};
  /// Tells how long drafts take to make. With it, times of steps and drafts correct the budget's; without, as in
  /// simulation, they are what step_ns and the budget say.
  std::function<int64_t()> clock_ns = {};
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

  static constexpr int32_t kNoPlace = -1;
  enum class Phase : uint8_t { kOpening, kImporting, kRunning, kParking };
  /// What every step reads stands together, before `spec`: with many instances in one process it comes from afar each time.
  struct Sequence {
    TokenLog log;
    int64_t end_tokens = 0;                // log.size() when the chunk is full
    int64_t reported_tokens = 0;           // log.size() when it was reported last
    int64_t kv_tokens = 0;                 // tokens whose KV is in `table`
    std::vector<DeviceBlockId> table;
    std::vector<BlockRef> chain;           // full blocks of the first kv_tokens, named on the device
    size_t offered_blocks = 0;             // of the chain: offered to the pool
    size_t pooled_blocks = 0;              // of the chain, from the start: the pool is known to keep them for the request
    uint64_t seed = 0;                     // as in `spec`
    std::shared_ptr<const SamplingParams> sampling;
    int64_t draft_allowed = 0;             // tokens that its draft might have; 0: none was asked for
    Phase phase = Phase::kRunning;
    int32_t place = kNoPlace;              // in the step run, while it does the same in each step
    ChunkEnd end = ChunkEnd::kFinished;    // set when parking
    DraftShape draft_shape = DraftShape::kPath, scout_shape = DraftShape::kPath;
    bool is_scout = false;                 // see DraftBudget
    bool keep_kv = true;                   // as in `spec`
    bool writes = false;                   // has been in a step: a partial block at the end of `table` is its own
    int32_t parking_ops = 0;               // reservations and exports still open while parking
    std::vector<float> unreported_logprobs;
    StopRule stop;
    RunChunk spec;                         // without its log
    std::vector<BlockRef> names;           // of blocks of the tokens that it came with, until they are in `chain`
    Draft draft;                           // proposed behind the log, for the step that is planned or runs
    ChunkDone done;                        // figures gathered for the answer

    DraftBudget::Class draft_class() const {
      return spec.request.sample == 0 ? DraftBudget::kHigh : DraftBudget::kLow;  // the probe of its group
    }
    ChunkTokens take_unreported() {
      const int64_t first = std::exchange(reported_tokens, log.size());
      return {spec.chunk, first - log.prompt_tokens(), log.tokens(first, log.size()),
              std::exchange(unreported_logprobs, {})};
    }
    /// By a stop string or token. Otherwise it ends where its limit or one of the engine's eos_ids does it.
    bool may_stop_anywhere() const { return !sampling->stop.empty() || !sampling->stop_token_ids.empty(); }
    int64_t tokens_left() const { return std::min(end_tokens - log.size(), stop.tokens_left()); }
    DraftText text() const { return {spec.request, log}; }
  };

  struct StepMember {
    Sequence* sequence = nullptr;  // null: its chunk is gone
    int32_t rows = 0;
    int32_t sample_rows = 0;       // the last of these
    ChunkId chunk = {};            // of the sequence, which is not read for it: it is far away
    uint64_t yield_rank = 0;       // likewise
    bool grows = false;            // it is in `growing`
  };

  // -- messages
  void on_run_chunk(RunChunk chunk);
  void on_opened(const KvOpened& opened);
  void on_reserved(const KvReserved& reserved);
  void on_work_ready();
  void drop_chunks();

  // -- engine results
  void on_step(StepResult& result);
  void on_single_step(StepResult& result);
  void take_figures(const StepResult& result);
  void on_export(const CopyResult& result);
  void on_import(const CopyResult& result);

  // -- steps
  void fetch_members() const;
  void submit(EngineWork work);
  void feed_engine();
  void find_kv(ChunkId id, Sequence& sequence);
  void import(ChunkId id, Sequence& sequence, const KvOpened& opened, std::vector<BlockRef> wanted);
  void run(Sequence& sequence);
  bool admit_arrivals();
  bool first_arrival_fits() const;
  bool fits_beside_running(int32_t blocks) const;
  bool prefill_last_arrival();
  void pump();
  void choose_drafts();
  bool propose_draft(Sequence& sequence);
  void send_scouts(int64_t decoding);
  void timed(const std::function<int64_t()>& drafting);
  void start_step();
  void start_steps();
  bool plan(StepPlan& plan);
  void gather_running();
  void add_unplaced(Sequence& sequence);
  std::vector<Sequence*> pick_victims(int32_t blocks);
  bool waits_for_prompt(Sequence& sequence);
  std::span<const BlockRef> names_of(Sequence& sequence, int64_t blocks) const;
  void extend_names(const Sequence& sequence, std::vector<BlockRef>& chain, int64_t tokens) const;

  // -- many steps at once (instance_steps.cpp)
  void end_at_places(std::vector<int32_t> ended);
  void take_steps_over();
  void feed(int32_t place, int64_t steps);
  void feed(const StepMember& at);
  void feed_all(int64_t steps);
  void note_growth(int32_t place);
  void feed_growing(int64_t steps);
  void leave(Sequence& sequence);
  void leave_fed(Sequence& sequence);
  void leave_all();
  void leave_dropped();
  bool make_room_at_places(const StepPlan& plan);
  std::optional<StepsLimit> limit_of(const Sequence& sequence, const PlannedRows& rows) const;
  int32_t steps_at_once() const;
  void settle_blocks();
  void take_needed_blocks(int64_t steps);
  void take_block(int32_t place);
  void split_steps();
  int64_t steps_done() const { return step_run == nullptr ? 0 : step_run->step_running() + 1; }  // REQUIRES: none runs

  void take_blocks(Sequence& sequence, int64_t tokens);
  void fill(SequenceStep& step, Sequence& sequence, const PlannedRows& rows);
  std::span<const int32_t> rows_that_stand(const Sequence& sequence, std::span<const SampledToken> sampled);
  std::span<const int32_t> first_rows(int64_t count);
  void verified(const Sequence& sequence, std::span<const int32_t> rows);
  void verified_paths(const Sequence& sequence, std::span<const int32_t> gained);
  void count_drafts(const Sequence& sequence, const DraftCounts& counts);
  void note_times(int64_t step_us, int64_t tokens);
  void note_drafts();
  std::vector<GroupId> show_texts();
  void sync_drafts();
  void fed(Sequence& sequence, int64_t rows, std::span<const SampledToken> sampled);
  void name_filled_blocks(Sequence& sequence);
  void offer_filled_blocks(ChunkId id, Sequence& sequence);

  // -- ends of chunks
  void give_way(ChunkId id);
  void park(ChunkId id, ChunkEnd end);
  void parking_progressed(ChunkId id);
  void finish(ChunkId id, const Finish& end);
  void fail_request(ChunkId id);
  void forget_response(const Sequence& s);
  void answer(ChunkId id, ChunkEnd end);
  void report_tokens();
  void report_growth();

  // -- pool
  int32_t reserve_from(ChunkId id, const Sequence& s, const std::vector<BlockRef>& blocks, size_t from, bool parking);
  void reserve(ChunkId id, KvReservation ask, size_t first_block);
  Sequence* find(ChunkId id);
  Sequence& at(ChunkId id);  // REQUIRES: it is here
  bool has_pool(const Sequence& s) const { return s.keep_kv && parts.kv_node; }
  size_t prompt_blocks(const Sequence& s) const { return static_cast<size_t>(s.log.prompt_tokens()) / info.block_tokens; }

  static constexpr ChunkId kNoChunk{0};
  struct OpenReserve {
    ChunkId chunk = kNoChunk;
    KvReservation ask;
    size_t first_block = 0;  // ask.blocks[0] is in the sequence's table[first_block]
  };
  struct OpenExport {
    ChunkId chunk;
    std::vector<uint64_t> tokens;
    bool parking = false;
  };
  struct OpenImport {
    ChunkId chunk;
    KvOpened opened;
    std::vector<BlockRef> blocks;  // the names of opened.blocks
  };
  struct Arrival {
    ChunkId chunk;
    int32_t blocks = 0;   // that the pool had for it
    bool asked = false;   // once more, as there was room
  };
  rt::self_ptr<InstanceActor> self;
  InstanceConfig config;
  InstanceParts parts;
  EngineInfo info;
  DeviceBlocks devices;
  std::vector<std::pair<ChunkId, std::unique_ptr<Sequence>>> sequences;  // by id
  std::vector<Sequence*> unplaced;        // those of `sequences` that are not at a place of the step run, by chunk id
  StepRun* const step_run;                // null: the engine does one step at a time
  std::vector<StepMember> in_step;        // members of the step in the engine; empty when there is none. In a step run: by
                                          // place, between its steps too
  std::vector<int32_t> free_places;       // in in_step
  int64_t rows_at_places = 0;             // of one step
  std::vector<int32_t> needy;             // places that need a block each for the next step; not while steps run
  bool places_dropped = false;            // some are of chunks that are gone
  std::vector<int32_t> growing;           // places without KV to keep that may have to report growth, see note_growth()
  bool all_in = true;                     // at the last plan, every running sequence got rows
  std::optional<DraftBudget> draft_budget;
  std::optional<DraftSync> draft_sync;    // with a drafter
  DraftBudget::Choice draft_choice;
  bool drafts_due = true;                 // draft_choice is to be made anew
  int64_t first_scout = 0;
  struct {
    bool only_decodes = false;            // or verifies
    StepShape decode, step;               // without its drafts, and with them
    int64_t draft_ns = 0;
  } timing;                               // of the step that is planned or runs
  bool step_open = false;
  bool steps_stale = false;               // the steps behind the one that runs would be planned otherwise by now
  bool blocks_short = false;              // at the last plan: until that is over nobody new takes blocks
  bool gave_way = false;                  // at the last plan, some
  struct {
    bool parking = false, importing = false;
  } phases;                               // at the last plan, some sequences are
  std::deque<EngineWork> waiting_work;    // at most one copy per open reservation or opening, and one step
  size_t engine_open = 0;                 // pieces of work in the engine
  uint64_t next_op = 1;
  std::map<uint64_t, OpenReserve> reserves;
  std::map<uint64_t, std::pair<ChunkId, std::vector<BlockRef>>> openings;
  std::deque<Arrival> arrivals;           // found in the pool, waiting for device blocks; at most rows_max
  std::map<uint64_t, OpenExport> exports;
  std::map<uint64_t, OpenImport> imports;
  InstanceReport report;
  int64_t started_us = -1;                // when the first chunk came
  int64_t draft_ns = 0;                   // making drafts
  DraftCounts unreported_drafts;          // not in the report's history
  int32_t steps_since_report = 0;
  std::vector<ChunkId> grown;             // without KV to keep: came to need another block since then
  ChunkSink sink;                         // of the rollout whose chunks run here
  std::shared_ptr<const SamplingParams> last_sampling;  // of the last chunk; most chunks share theirs
  StepPlan plan_memory;
  std::vector<RunningSequence> running_memory;
  std::vector<SequenceStep> spent_steps;  // of the last step: memory for the next
  std::vector<std::vector<SampledToken>> spent_samples;
  std::vector<Sequence*> running;         // at the last plan, without those at places; running_memory[i] tells of running[i]
  int64_t running_count = 0;              // and with them
  int64_t blocks_free = 0;                // many steps that run may still take so many
  SequenceStep joining;                   // scratch of start_steps()
  GainedTokens gained_memory;             // scratch of feed()
  std::vector<GroupId> prefilling;        // groups whose prompt one of them computes
  std::vector<int32_t> stood_memory, verified_tokens, verified_parents;  // scratch of rows_that_stand()
  std::vector<int32_t> row_numbers;       // 0, 1, ...
  std::vector<SampledToken> stood_tokens; // likewise of on_single_step()
};

}  // namespace seer
