// StepTimeFit: how measured times of steps differ from those of a cost model, by two factors: one for a step without drafts, one for what
// drafts add to it. The second is fitted to differences between steps that follow one another closely, because batches and the load of
// the machine change with time. Part of DraftBudget. Single owner, not thread-safe.
#pragma once

namespace seer {

class StepTimeFit {
 public:
  /// A step took `measured_ns`. By the model: `plain_ns` without drafts, `drafts_ns` more with its drafts.
  void add(double plain_ns, double drafts_ns, double measured_ns);
  /// What was added since the last call takes effect, if there were two steps.
  void fit();
  /// The model's times, corrected.
  double predict_ns(double plain_ns, double drafts_ns) const { return base_factor_ * plain_ns + drafts_factor_ * drafts_ns; }

 private:
  /// Sums over steps. x: time that drafts add by the model, y: time measured, both over that of the step without drafts.
  struct Steps {
    double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  };
  Steps recent_;  // since the last fit()
  Steps steps_;   // before that; xx and xy are sums over deviations from the mean of the steps of their fit()
  double base_factor_ = 1, drafts_factor_ = 1;
};

}  // namespace seer
