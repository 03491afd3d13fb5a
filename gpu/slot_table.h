// SlotTable: the running batch of an engine (StepRun in engine.h) as far as it is the same for every engine that does one step per
// order: which sequence is in which slot, what it feeds next, its block table, and where it ends. Used by SlotEngine, which turns
// an order into rows for an engine without slots, and by CudaEngine, which tells its device what changed.
//
// Always true:
//  (1) a sequence that continues feeds the token sampled last, at the position after the one that it fed;
//  (2) next(slot) describes its rows after the newest order.
// Single owner, not thread-safe.
#pragma once
#include <deque>
#include <vector>

#include "gpu/engine.h"

namespace seer {

class SlotTable : public StepRun {
 public:
  /// `info` outlives this.
  explicit SlotTable(const EngineInfo& info) : info_(info) {}

  /// An order: the slots that take part in the next step; rows of the same kind together. Their rows are next(slot) until
  /// advance() is called. REQUIRES: fewer than info.orders_max are open.
  const std::vector<int32_t>& begin_order();
  const SequenceStep& next(int32_t slot) const { return slots_[static_cast<size_t>(slot)].next; }
  /// Whether the sequence goes on after the newest order unless a token ends it.
  bool goes_on(int32_t slot) const { return goes_on(slots_[static_cast<size_t>(slot)]); }
  /// Moves the sequences of the newest order that go on to their next rows.
  void advance();
  /// Takes the tokens of the oldest open order, by its slots; `result` gets the slots that ended.
  void end_order(const std::vector<std::vector<SampledToken>>& sampled, StepResult& result);
  /// The oldest open order failed.
  void drop_order() { open_.pop_front(); }

  void join(int32_t slot, const SequenceStep& step, const std::optional<StepsLimit>& limit) override;
  void grant(int32_t slot, DeviceBlockId block) override;
  void leave(int32_t slot) override;
  void take(int32_t slot, int64_t steps, GainedTokens& gained) override;
  std::vector<int32_t> take_block_needs(int64_t steps) override;
  bool all_go_on() const override;
  int64_t step_running() const override { return 0; }
  void split() override {}  // an order is one step
  std::optional<StepResult> take_steps_over() override { return std::nullopt; }

 private:
  struct Slot {
    bool is_used = false;
    std::optional<StepsLimit> limit;
    SequenceStep next;
    int64_t orders = 0;          // since it joined
    int32_t open = 0;            // of them, those without a result yet
    bool has_ended = false;
    GainedTokens untaken;
  };

  Slot& at(int32_t slot) { return slots_[static_cast<size_t>(slot)]; }
  void take_token(Slot& slot);
  static bool goes_on(const Slot& slot);
  bool ends_with(const Slot& slot, int32_t token) const;

  const EngineInfo& info_;
  std::vector<Slot> slots_;
  std::deque<std::vector<int32_t>> open_;  // per order without a result, its slots
  std::vector<int32_t> needs_;             // slots that lack a block after the newest order, not yet reported
};

}  // namespace seer
