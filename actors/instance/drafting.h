// SequenceDrafts: the drafts of the sequences of one instance: which sequences get drafts and how long (DraftBudget), how much
// was accepted, what is shared with other instances (DraftSync), and the figures. Part of an instance_actor that has a drafter.
// Single owner, not thread-safe.
//
// A choice (how long drafts are, who is a scout) holds until renew_choice(), which is called when tokens are reported. A draft
// holds for one step; it is in Sequence::draft.
//
// While the choice is not to draft, each choice makes one trial per sequence: a draft that is not verified. The tokens that come
// until a later choice tell how much of it would have been accepted, exactly, and the budget learns that as from a verify. So
// drafting begins soon after it would pay, and trials cost no step anything. Only with a clock: simulated tokens tell nothing.
//
// Always true:
//  (1) a draft leaves room for the token sampled after it: it is shorter than tokens_left();
//  (2) every draft that was verified is counted once, in the report and in its history.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "actors/instance/draft_sync.h"
#include "actors/instance/sequence.h"
#include "actors/policy/draft/draft_budget.h"
#include "actors/policy/draft/drafter.h"
#include "gpu/step_planner.h"

namespace seer {

/// Speculative decoding of an instance; none without a drafter.
struct Drafting {
  std::shared_ptr<Drafter> drafter;  // this instance is its only user
  DraftBudgetConfig budget;
  DraftBudget::StepNs step_ns;       // what a step of the engine takes
  DraftSyncConfig sync = {};
  /// Times the making of drafts. With a clock, measured times of steps and drafts correct the budget; without one (in
  /// simulation) the budget keeps its own estimates.
  std::function<int64_t()> clock_ns = {};
};

class SequenceDrafts {
 public:
  /// REQUIRES: there is a drafter.
  explicit SequenceDrafts(Drafting parts);

  // -- for a step

  bool choice_is_due() const { return choice_due_; }
  void renew_choice() { choice_due_ = true; }
  /// Proposes a draft for each sequence of `running` that decodes and writes its length to the same index of `rows`. `all`:
  /// every sequence of the instance, for choosing the scouts.
  void propose(std::span<Sequence* const> running, std::span<RunningSequence> rows, const SequenceTable& all);
  /// Notes the step that is ordered now; `decode` is its shape without drafts.
  void step_ordered(const StepShape& decode, const StepShape& step, bool only_decodes);
  /// Notes how long the engine was idle before the step that has just ended. `now_us`: when its result came.
  void step_came(int64_t now_us, int64_t step_us);
  /// Notes that this step has ended and how many tokens it gained.
  void step_took(int64_t step_us, int64_t tokens);

  // -- what the engine made of a draft

  /// Counts the accepted rows of a draft, which may be empty.
  void count(const Sequence& s, std::span<const int32_t> rows);
  /// Counts several steps of one order, which all had the same draft. `gained`: tokens per step.
  void count_paths(const Sequence& s, std::span<const int32_t> gained);

  // -- what others may draft from

  /// Shows the drafter what the requests that run here have written.
  void learn(const SequenceTable& all) { show_texts(all); }
  void learn(const Sequence& ended) { parts_.drafter->learn(ended.text()); }
  bool sync_is_due(int64_t now_us) const { return sync_.is_due(now_us); }
  /// Learns, then shares with the other instances what the groups that run here have written.
  void share(const SequenceTable& all, const DraftClient& me, int64_t now_us) { sync_.sync(show_texts(all), me, now_us); }
  void set_servers(const DraftServers& servers) { sync_.set_servers(servers); }
  void fetched(const CstFetched& answer, const DraftClient& me, int64_t now_us) { sync_.fetched(answer, me, now_us); }
  void chunk_came() { sync_.chunk_came(); }
  /// The group, or the rollout, is over.
  void forget(GroupId group) { parts_.drafter->forget(group); }
  void forget(RolloutId rollout);

  /// The history of the figures begins anew; their sums go on.
  void begin_history();
  /// Returns the figures, after it has added what was counted since the last call to their history, which began so long ago.
  const DraftFigures& figures_at(int64_t since_begin_us);

 private:
  void choose(std::span<Sequence* const> running, const SequenceTable& all);
  void send_scouts(std::span<Sequence* const> running, const SequenceTable& all, int64_t decoding);
  void begin_trials(std::span<Sequence* const> running);
  void judge_trial(Sequence& s);
  bool propose(Sequence& s);
  void draft(const Sequence& s, DraftShape shape, int64_t allowed, Draft& out);
  void count(const Sequence& s, const DraftCounts& counts);
  std::vector<GroupId> show_texts(const SequenceTable& all);

  /// Makes drafts by make(), which returns how many, and notes the time that it takes.
  template <class Make>
  int64_t timed(Make make);

  Drafting parts_;
  DraftBudget budget_;
  DraftSync sync_;
  DraftBudget::Choice choice_;
  bool choice_due_ = true;
  int64_t first_scout_ = 0;
  struct {
    bool only_decodes = false;  // the step prefills nothing
    StepShape decode, step;     // without drafts, and with them
    int64_t draft_ns = 0;       // spent making the drafts
  } timing_;                    // of the step that is planned or runs
  int64_t draft_ns_ = 0;        // spent making drafts since the start
  int64_t came_us_ = 0;         // when the last result came
  double waited_ns_ = 0;        // before the step that it is of; 0: for work
  DraftFigures figures_;
  DraftCounts uncounted_;       // not in the history of figures_ yet
};

}  // namespace seer
