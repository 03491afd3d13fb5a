#include "actors/policy/draft/step_time_fit.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace seer {
namespace {

constexpr double kStepsMemory = 1024;  // a step counts 1/e after this many more steps
constexpr double kPriorSpread = 4;     // the cost model weighs as much as steps with this sum of squares
constexpr double kFactorMax = 1.5;     // bound on the fitted factor: measured times say little on a busy machine
constexpr double kBaseLeast = 0.25;    // bound on the other factor, likewise, if drafts are most of the time
constexpr double kOutlier = 2;         // a step this many times longer than expected was delayed by something else

}  // namespace

void StepTimeFit::add(double plain_ns, double drafts_ns, double measured_ns) {
  if (plain_ns <= 0) return;
  const double x = drafts_ns / plain_ns;
  const double y = std::min(measured_ns / plain_ns, kOutlier * (base_factor_ + drafts_factor_ * x));
  recent_.n += 1;
  recent_.x += x;
  recent_.y += y;
  recent_.xx += x * x;
  recent_.xy += x * y;
}

/// Fits y = base + drafts * x. Until steps differ in x, both factors are equal.
void StepTimeFit::fit() {
  if (recent_.n < 2) return;
  const Steps recent = std::exchange(recent_, {});
  const double kept = std::exp(-recent.n / kStepsMemory);
  steps_.n = kept * steps_.n + recent.n;
  steps_.x = kept * steps_.x + recent.x;
  steps_.y = kept * steps_.y + recent.y;
  steps_.xx = kept * steps_.xx + recent.xx - recent.x * recent.x / recent.n;
  steps_.xy = kept * steps_.xy + recent.xy - recent.x * recent.y / recent.n;
  const double both = steps_.y / (steps_.n + steps_.x);
  const double slope = (steps_.xy + kPriorSpread * both) / (steps_.xx + kPriorSpread);
  drafts_factor_ = std::clamp(slope, both / kFactorMax, both * kFactorMax);
  if (steps_.x > 0) drafts_factor_ = std::min(drafts_factor_, (steps_.y - kBaseLeast * both * steps_.n) / steps_.x);
  base_factor_ = (steps_.y - drafts_factor_ * steps_.x) / steps_.n;
}

}  // namespace seer
