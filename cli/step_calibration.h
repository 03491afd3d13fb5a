// Measures steps of an engine at the start of a rollout. With drafting it takes up to a few seconds: the draft budget needs to know
// how much more a step costs with more rows. For `--policy auto` a few steps are enough, to learn the cost of a fuller batch.
// `seer profile` measures more, and more precisely. Used by `seer rollout`.
#pragma once
#include <functional>
#include <limits>
#include <vector>

#include "cli/engine_source.h"
#include "gpu/step_runner.h"
#include "protocols/result.h"
#include "protocols/step_cost.h"

namespace seer {

/// Fits a cost model to steps of a temporary engine with little KV: ten of one sequence, and as many of several, small ones first,
/// as take about three seconds. Larger ones are extrapolated. Errors: those of EngineSource::make.
Result<StepCost> calibrate_step_cost(const EngineSource& source);

/// Microseconds of each step on one of `engines` temporary engines, while the others run the same step. Visits all steps in turns,
/// a few times, and keeps the least time of each, because other programs can only add time. A visit runs its step until the caches
/// hold what they would in a rollout. If an engine has one thread, it measures that thread's CPU time, which stops while the thread
/// has no core. Each step is visited at least once, 3 times within 2 s, and more often only within 0.3 s. Steps that come after
/// `first_us_max` of the first visits are left out: their time is infinite. Each engine has KV for the largest step. Errors: those
/// of EngineSource::make.
Result<std::vector<double>> measure_steps_us(const EngineSource& source, int64_t engines, const std::vector<StepSequences>& steps,
                                             double first_us_max = std::numeric_limits<double>::infinity());

}  // namespace seer
