// LengthOutlook: how many tokens each unfinished request could still need, from the lengths and ages of all requests of
// the iteration. Owned by SeerPlusScheduler. Pure and deterministic on one machine; exp and log differ between machines
// in the last bits, so decisions made from it may differ too. Single owner.
//
// "Could still need" is the upper quantile of a request's remaining length at the level 1 - kExceed / unfinished
// requests, so that hardly any of thousands turns out longer.
//
// The gate: lengths that the model cannot explain (responses that run to the limit) raise the probability of outliers,
// and soon every request could need all that its limit leaves. The order by could_need_tokens() is then exactly least
// generated first, as at the start. So the model is trusted only if earlier iterations showed it right
// (`unexplained_before`). In a simulated iteration of Qwen2-VL-72B, trusting it at once saved 14 % of the tail and
// nothing of the total; with 0.2 % of runaway responses it cost 9 % of the total, with 1 % 7 %.
//
// Work is bounded: an event updates the posterior of its group and visits one group of the sweep. A sweep visits all
// groups in turn, one per event. It begins when another 1 % of the requests has finished and makes two rounds (two EM
// steps). Each round ends with a new fit of the model and of the share of unexplained lengths.
//
// Results may be stale within bounds: ages are counted again when they have grown by 1/kAgeStep, and the model by which
// a request was last judged is at most one round old.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "actors/policy/schedule/length_posterior.h"
#include "actors/policy/schedule/request_buffer.h"

namespace seer {

inline constexpr double kExceed = 0.1;   // unfinished requests, in all, that may need more than could_need_tokens()
inline constexpr int64_t kAgeStep = 16;  // an age is counted again when it has grown by 1/kAgeStep
inline constexpr double kUnexplainedPrior = 0.01;  // share of unexplained requests assumed before any was seen

class LengthOutlook {
 public:
  /// `unexplained_before`: share, in [0, 1], of the requests of earlier iterations whose lengths were not explained; 1
  /// if there were none, which keeps the gate closed.
  explicit LengthOutlook(double unexplained_before) : unexplained_before_(unexplained_before) {}

  /// REQUIRES: the group is new, and none of its requests has run.
  void add_group(const GroupState& group);
  /// A chunk of the request ended. Returns whether the other members should be judged again. REQUIRES: it is in `group`.
  bool observe(const GroupState& group, const RequestState& request);
  /// Output tokens that the request could still need, at least 1. `unfinished`: how many requests of the iteration are
  /// unfinished, with this one.
  int64_t could_need_tokens(const GroupState& group, const RequestState& request, int64_t unfinished);
  /// Makes one step of the sweep. Returns the group it visited, whose members should be judged again; nullptr: no sweep
  /// is due. REQUIRES: the same buffer every time, with the groups added.
  const GroupState* sweep(const RequestBuffer& buffer);

  /// The model explained earlier iterations, so that the lengths of some members tell those of the others.
  bool predicts() const { return unexplained_before_ < kUnexplainedPrior; }
  bool any_finished(GroupId group) const { return groups_.at(group).any_finished; }
  const LengthModel& model() const { return model_; }
  /// Share of the requests whose length the model does not explain, as far as this iteration shows; pessimistic.
  double unexplained_share() const { return unexplained_share_; }

 private:
  struct Seen {
    LengthPosterior posterior;
    uint64_t model_version = 0;  // of the posterior's model
    bool any_finished = false;
    std::vector<int64_t> counted_tokens;  // by sample: age last counted while unfinished; 0: not counted
  };
  void make_current(const GroupState& group, Seen& seen) const;
  void visit(const GroupState& group);
  void end_round();

  double unexplained_before_;
  std::unordered_map<GroupId, Seen> groups_;  // only looked up
  LengthModel prior_, model_;
  double log_limit_sum_ = 0;
  int64_t requests_ = 0;
  uint64_t model_version_ = 0;
  bool fitted_ = false;
  double unexplained_share_ = kUnexplainedPrior;
  // The sweep:
  int rounds_left_ = 0;
  size_t next_group_ = 0;
  int64_t finished_at_start_ = 0;
  LengthMoments moments_;
  double tested_ = 0, unexplained_ = 0;
};

}  // namespace seer
