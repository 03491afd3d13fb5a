// RunningBatch: which sequences of an instance compute next, and with which rows: it plans a step, orders it from the engine,
// and says what the result gives to whom. Part of instance_actor, which decides who comes, who gives way and who is over; no
// actors and no clock in here. Single owner, not thread-safe.
//
// A sequence that computes has a *slot* of the engine's running batch (StepRun). While it does the same in each step it goes
// on there without being planned again; an order says only what changes. A sequence that cannot go on so (its chunk ends, a
// prompt is prefilled, a new draft is to be made, blocks are short) leaves its slot and is planned like others.
//
// An engine with steps_max > 1, as simulated ones, does many steps per order. Then what sequences gain is taken when somebody
// looks at it, as if steps were single. Otherwise it is taken after each step, and while steps are alike the next one is in
// the engine's queue before the last one is over.
//
// Always true:
//  (1) a sequence is in a slot or among the unslotted ones, never both, until remove();
//  (2) at most one order is in the engine, or `step_depth`; nothing is planned until all are over;
//  (3) a block that is written by a step has that sequence as its only user;
//  (4) slot_rows_ is the sum of the rows of all slots.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "actors/instance/drafting.h"
#include "actors/instance/engine_queue.h"
#include "actors/instance/sequence.h"
#include "gpu/device_blocks.h"
#include "gpu/engine.h"
#include "gpu/step_planner.h"

namespace seer {

class RunningBatch {
 public:
  /// A sequence has `rows` more tokens with KV; what was sampled at the last of them, if anything, continues it. The first
  /// `passed` of `sampled` are known not to end the response. May call remove().
  using OnGain =
      std::function<void(Sequence& s, int64_t rows, std::span<const SampledToken> sampled, size_t passed)>;

  /// All of these must outlive it. `steps`: of the engine. `step_depth`: see InstanceConfig. `drafts`: null without drafts.
  RunningBatch(StepPlannerConfig planner, int32_t step_depth, const EngineInfo& info, DeviceBlocks& devices,
               const SequenceTable& all, EngineQueue& engine, StepRun& steps, SequenceDrafts* drafts, OnGain on_gain);

  // -- who is here

  void add(Sequence& s);
  void remove(Sequence& s);
  /// Likewise, at any moment: what runs of it ends by itself, for nobody.
  void drop(Sequence& s);
  /// A sequence has come to run, or all are to leave: steps that follow the one in the engine would be planned otherwise by now.
  void note_change() { is_stale_ = true; }

  // -- plan

  /// Plans the next step. Sequences in slots go on; the others get what room is left. REQUIRES: !is_ordered().
  void plan();
  bool is_idle() const { return plan_.sequences.empty() && slot_rows_ == 0; }  // nothing was planned, nobody goes on
  bool blocks_short() const { return blocks_short_; }  // somebody got no rows for want of blocks
  bool is_parking() const { return is_parking_; }      // some sequence was, at the last plan
  bool is_importing() const { return is_importing_; }
  int64_t running_count() const { return running_count_; }
  /// Of those that were planned without a slot; null: there was none.
  Sequence* first_running() const { return running_.empty() ? nullptr : running_[0]; }
  /// All that run: those in slots too.
  std::vector<Sequence*> planned() const;
  /// Sequences that must give way so that the others get the blocks that they lack.
  std::vector<Sequence*> pick_victims();
  /// They take no part in the step that was planned. What they gained is taken.
  void take_out(std::span<Sequence* const> victims);

  // -- order

  /// Orders what was planned, if anything: at most `steps_max` steps, while nothing changes. `arrival_fits`:
  /// a chunk waits that has room by now.
  void order(int32_t steps_max, bool arrival_fits);
  bool is_ordered() const { return orders_ > 0; }
  /// Orders one more step where a plan would only repeat the last one.
  void order_ahead();
  /// The step that runs becomes the last of its order.
  void split();
  /// Does so if the steps after it would be planned otherwise, or lack blocks that others took.
  void split_if_stale();

  // -- results

  /// An order is over. on_gain() is called for each sequence that ended with it, or that somebody looks at.
  void take(StepResult& result);
  /// What sequences in slots have gained in the steps that are over takes effect. REQUIRES: !is_ordered(), or orders are of
  /// single steps.
  void take_gains() { take_gains(steps_done()); }
  /// Likewise while steps run. Returns the figures of the steps that are over, if any were not given.
  std::optional<StepResult> take_steps_over();
  /// Before room is looked at while steps run: the sequences get the blocks that the steps which are over, and the one that
  /// runs, write to.
  void settle_blocks();

 private:
  struct Slot {
    Sequence* sequence = nullptr;  // null: free, or its chunk is gone
    int32_t rows = 0;              // 0: free
    int32_t sample_rows = 0;       // the last of these
    ChunkId chunk = {};            // of the sequence, which is not read for it: it is far away
    uint64_t yield_rank = 0;       // likewise
    bool grows = false;            // it is in growing_
  };

  void prefetch_members() const;
  void gather_running();
  bool waits_for_prompt(Sequence& s);
  bool make_room_in_slots();
  void fill(SequenceStep& step, Sequence& s, const PlannedRows& rows);
  void take_blocks(Sequence& s, int64_t tokens);
  void add_unslotted(Sequence& s);

  void join(const PlannedRows& rows);
  void submit_order(int32_t steps);
  bool repeats() const;
  void time_order();
  std::optional<StepsLimit> limit_of(const Sequence& s, const PlannedRows& rows) const;
  int32_t steps_at_once(int32_t steps_max, bool arrival_fits) const;
  int64_t end_slots(std::vector<int32_t> ended);
  std::vector<int32_t> slots_to_take(const std::vector<int32_t>& ended, int64_t last);
  Slot& at(int32_t slot) { return slots_[static_cast<size_t>(slot)]; }
  void take_gains(int64_t steps);
  void take_gains(int32_t slot, int64_t steps);
  void apply_gains(const Slot& at);
  void count_drafts(const Sequence& s);
  void take_growing(int64_t steps);
  void note_growth(int32_t slot);
  void leave(Sequence& s);
  void leave_with_gains(Sequence& s);
  void leave_all();
  void leave_dropped();
  void take_needed_blocks(int64_t steps);
  void note_block_needs(int64_t steps);
  void take_block(int32_t slot);
  /// REQUIRES: the newest order is over, or orders are of single steps.
  int64_t steps_done() const { return steps_.step_running() + 1; }
  bool is_single_step() const { return info_.steps_max == 1; }

  const StepPlannerConfig planner_;
  const int32_t step_depth_;
  const EngineInfo& info_;
  DeviceBlocks& devices_;
  const SequenceTable& all_;
  EngineQueue& engine_;
  StepRun& steps_;
  SequenceDrafts* const drafts_;
  const OnGain on_gain_;

  std::vector<Sequence*> unslotted_;     // by chunk id
  uint64_t next_step_ = 1;
  int32_t orders_ = 0;                   // open

  // The last plan.
  StepPlan plan_;
  std::vector<RunningSequence> rows_;    // rows_[i] tells of running_[i]
  std::vector<Sequence*> running_;       // without those in slots
  int64_t running_count_ = 0;            // with them
  std::vector<GroupId> prefilling_;      // groups whose prompt one of them computes
  bool all_in_ = true;                   // every running sequence got rows
  bool blocks_short_ = false;            // until that is over nobody new takes blocks
  bool gave_way_ = false;                // some gave way
  bool is_parking_ = false, is_importing_ = false;
  bool is_stale_ = false;                // the steps after the one that runs would be planned otherwise by now
  bool has_changed_ = true;              // somebody joined or left since a step was over last

  // Slots.
  std::vector<Slot> slots_;
  std::vector<int32_t> free_slots_;
  int64_t slot_rows_ = 0;                // of one step
  std::vector<int32_t> block_needs_;     // slots that need a block each for the next order
  bool some_dropped_ = false;            // some slots are of chunks that are gone
  std::vector<int32_t> growing_;         // slots without KV to keep that may have to report growth, see note_growth()
  int64_t blocks_free_ = 0;              // that the running steps may still take
  SequenceStep joining_;                 // scratch of join()
  GainedTokens gained_;                  // scratch of apply_gains()
};

}  // namespace seer
