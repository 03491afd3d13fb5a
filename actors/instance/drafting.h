// SequenceDrafts: the drafts of the sequences of one instance. Which sequences get drafts and how long (DraftBudget), what of
// them was accepted, what is shared with other instances (DraftSync), and the figures of all that. Part of instance_actor,
// only where it has a drafter. Single owner, not thread-safe.
//
// A choice (how long drafts are, who is a scout) holds until renew_choice(): whenever tokens are reported. A draft holds for
// one step; it is in Sequence::draft.
//
// Always true:
//  (1) a draft is never longer than what may still come, less the token that is sampled after it;
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
  /// Tells how long drafts take to make. With it, times of steps and drafts correct the budget's; without, as in
  /// simulation, they are what step_ns and the budget say.
  std::function<int64_t()> clock_ns = {};
};

class SequenceDrafts {
 public:
  /// REQUIRES: there is a drafter.
  explicit SequenceDrafts(Drafting parts);

  // -- for a step

  bool choice_is_due() const { return choice_due_; }
  void renew_choice() { choice_due_ = true; }
  /// Proposes a draft for each sequence of `running` that decodes, and notes its length in `rows`, which tells of the same
  /// sequences. `all` of the instance, to say who is no scout.
  void propose(std::span<Sequence* const> running, std::span<RunningSequence> rows, const SequenceTable& all);
  /// The step that is ordered now; `decode` is its shape without drafts.
  void step_ordered(const StepShape& decode, const StepShape& step, bool only_decodes);
  /// Notes that this step has ended and how many tokens it gained.
  void step_took(int64_t step_us, int64_t tokens);

  // -- what the engine made of a draft

  /// These rows of its draft, perhaps an empty one, were accepted.
  void count(const Sequence& s, std::span<const int32_t> rows);
  /// The same for steps that were in the engine together, which had the same draft: what each gained.
  void count_paths(const Sequence& s, std::span<const int32_t> gained);

  // -- what others may draft from

  /// The drafter learns what the requests that run here have written.
  void learn(const SequenceTable& all) { show_texts(all); }
  void learn(const Sequence& ended) { parts_.drafter->learn(ended.text()); }
  bool sync_is_due(int64_t now_us) const { return sync_.is_due(now_us); }
  /// What the groups that run here have written, up to the step that ended, is shared with the other instances.
  void share(const SequenceTable& all, const DraftClient& me, int64_t now_us) { sync_.sync(show_texts(all), me, now_us); }
  void set_servers(const DraftServers& servers) { sync_.set_servers(servers); }
  void fetched(const CstFetched& answer, const DraftClient& me, int64_t now_us) { sync_.fetched(answer, me, now_us); }
  void chunk_came() { sync_.chunk_came(); }
  /// The rollout is over.
  void forget(RolloutId rollout);

  /// `since_start_us`: since the first chunk came. What was counted since the last call goes into the history at this time.
  const DraftFigures& figures_at(int64_t since_start_us);

 private:
  void choose(std::span<Sequence* const> running, const SequenceTable& all);
  void send_scouts(std::span<Sequence* const> running, const SequenceTable& all, int64_t decoding);
  bool propose(Sequence& s);
  void count(const Sequence& s, const DraftCounts& counts);
  std::vector<GroupId> show_texts(const SequenceTable& all);

  Drafting parts_;
  DraftBudget budget_;
  DraftSync sync_;
  DraftBudget::Choice choice_;
  bool choice_due_ = true;  // choice_ is to be made anew
  int64_t first_scout_ = 0;
  struct {
    bool only_decodes = false;  // or verifies
    StepShape decode, step;     // without its drafts, and with them
    int64_t draft_ns = 0;       // to make them
  } timing_;                    // of the step that is planned or runs
  int64_t draft_ns_ = 0;        // making drafts, since the start
  DraftFigures figures_;
  DraftCounts uncounted_;       // not in the history of figures_
};

}  // namespace seer
