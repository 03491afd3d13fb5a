// RunningBatch: which sequences of an instance compute next, and with which rows. It plans a step, orders it from the engine,
// and gives the results to the sequences. Part of instance_actor, which decides who is admitted, gives way or has ended. It has
// no actors and no clock. Single owner, not thread-safe.
//
// A sequence that computes has a *slot* of the engine's running batch (StepRun). While it does the same in each step it stays
// there and is not planned again; an order says only what changes. A sequence leaves its slot and is planned again when its
// chunk ends, a prompt is prefilled, a new draft is due, or blocks are short.
//
// An engine with steps_max > 1 (a simulated one) does many steps per order. Gained tokens are then applied when somebody looks
// at the sequence, as if the steps were single. Otherwise they are applied after each step, and while steps repeat, the next
// one is in the engine's queue before the last one ends.
//
// Always true:
//  (1) a sequence is in a slot or among the unslotted ones, never both, until remove();
//  (2) at most `step_depth` orders are in the engine; nothing is planned until all of them have ended;
//  (3) a block that a step writes has that step's sequence as its only user;
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
  /// Called when a sequence has `rows` more tokens with KV. `sampled`: the tokens sampled at the last of these rows; may be
  /// empty. `kept`: of each sampled token, or empty. The first `passed` of them are known not to end the response. May call remove().
  using OnGain =
      std::function<void(Sequence& s, int64_t rows, std::span<const SampledToken> sampled, std::span<const KeptList> kept, size_t passed)>;

  /// The references must outlive it. `steps`: the engine's. `step_depth`: see InstanceConfig. `drafts`: null without drafts.
  RunningBatch(StepPlannerConfig planner, int32_t step_depth, const EngineInfo& info, DeviceBlocks& devices,
               const SequenceTable& all, EngineQueue& engine, StepRun& steps, SequenceDrafts* drafts, OnGain on_gain);

  // -- members

  void add(Sequence& s);
  void remove(Sequence& s);
  /// Like remove(), but allowed while its steps run; their results are ignored.
  void drop(Sequence& s);
  /// The plan is out of date: a sequence has started to run, or all must leave.
  void note_change() { is_stale_ = true; }

  // -- plan

  /// Plans the next step. Sequences in slots go on; the others get the room that is left. REQUIRES: !is_ordered().
  void plan();
  bool is_idle() const { return plan_.sequences.empty() && slot_rows_ == 0; }
  bool blocks_short() const { return blocks_short_; }  // some sequence got no rows because blocks were short
  bool is_parking() const { return is_parking_; }      // some sequence was parking at the last plan
  bool is_importing() const { return is_importing_; }
  int64_t running_count() const { return running_count_; }
  /// The first of those planned without a slot; null: there was none.
  Sequence* first_running() const { return running_.empty() ? nullptr : running_[0]; }
  /// All running sequences: those in slots, those planned and those that wait for their group's prompt.
  std::vector<Sequence*> all_running() const;
  /// Sequences that must give way so that the others get the blocks they lack.
  std::vector<Sequence*> pick_victims();
  /// Takes the victims out of the planned step and applies what they gained so far.
  void take_out(std::span<Sequence* const> victims);

  // -- order

  /// Orders what was planned, if anything, for at most `steps_max` steps. `arrival_fits`: there is room for a waiting arrival.
  void order(int32_t steps_max, bool arrival_fits);
  bool is_ordered() const { return orders_ > 0; }
  /// Orders more steps while a plan would only repeat the last one.
  void order_ahead();
  /// Makes the step that runs the last of its order.
  void split();
  /// Splits if the plan is out of date or others took blocks that the later steps need.
  void split_if_stale();

  // -- results

  /// Takes the result of an order that has ended. Calls on_gain() for each sequence that ended with it or must be current.
  void take(StepResult& result);
  /// Applies what sequences in slots gained in the steps that have ended. REQUIRES: !is_ordered(), or orders are of single
  /// steps.
  void take_gains() { take_gains(steps_done()); }
  /// Takes over what steps that still run have done so far. Returns the figures of the ended steps that were not returned before, if any.
  std::optional<StepResult> take_steps_over();
  /// Gives the sequences the blocks that the ended steps and the running one write to. Call it before looking at free blocks
  /// while steps run.
  void settle_blocks();

 private:
  struct Slot {
    Sequence* sequence = nullptr;  // null: free, or its chunk is gone
    int32_t rows = 0;              // 0: free
    int32_t sample_rows = 0;       // the last of these
    uint64_t arrival = 0;          // copied from the sequence: reading that would miss the caches
    uint64_t yield_rank = 0;       // likewise
    bool grows = false;            // it is in growing_
  };

  void prefetch_members() const;
  void plan_beside_slots();
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
  void apply_gains(Slot member);
  void count_drafts(const Sequence& s);
  void note_growth(int32_t slot);
  void take_growing(int64_t steps);
  std::vector<int32_t> growing_to_report(const std::vector<int32_t>& ended, int64_t last);
  void leave(Sequence& s);
  void free_slot(int32_t slot);
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

  std::vector<Sequence*> unslotted_;     // by arrival
  uint64_t next_step_ = 1;
  int32_t orders_ = 0;                   // open

  // The last plan.
  StepPlan plan_;
  std::vector<RunningSequence> rows_;    // rows_[i] describes running_[i]
  std::vector<Sequence*> running_;       // without those in slots
  int64_t running_count_ = 0;            // with them
  std::vector<GroupId> prefilling_;      // groups whose prompt one of them computes
  bool all_in_ = true;                   // every running sequence got rows
  bool blocks_short_ = false;            // while true, no new sequence takes blocks
  bool gave_way_ = false;                // some sequence gave way
  bool is_parking_ = false, is_importing_ = false;
  bool is_stale_ = false;                // the plan is out of date for the steps after the running one
  bool has_changed_ = true;              // some sequence joined or left since the last step ended

  // Slots.
  std::vector<Slot> slots_;
  std::vector<int32_t> free_slots_;
  int64_t slot_rows_ = 0;                // of one step
  std::vector<int32_t> block_needs_;     // slots that need a block each for the next order
  bool some_dropped_ = false;            // some slots are of chunks that are gone
  std::vector<int32_t> growing_;         // slots with keep_kv = false whose growth may be unreported, see note_growth()
  int64_t blocks_free_ = 0;              // blocks that the running steps may still take
  SequenceStep joining_;                 // scratch of join()
  GainedTokens gained_;                  // scratch of apply_gains()
};

}  // namespace seer
