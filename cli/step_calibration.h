// Measures what steps of an engine cost, at the start of a rollout. With drafting it takes a few seconds: the draft budget needs to
// know how much more a step costs with more rows. For `--policy auto` a few steps are enough, to learn what a fuller batch costs.
// `seer profile` measures more, and more precisely. Used by `seer rollout`.
#pragma once
#include <functional>
#include <vector>

#include "gpu/cpu/cpu_engine.h"
#include "gpu/step_runner.h"
#include "protocols/result.h"
#include "protocols/step_cost.h"

namespace seer {

/// Fits a cost model to steps of an engine made for this, with little KV. Errors: as make_cpu_engine().
Result<StepCost> calibrate_step_cost(const std::shared_ptr<const Model>& model, CpuEngineConfig config);

/// Microseconds of each step on one of `engines` engines, while the others run the same step. It visits all steps in turns, a few
/// times, and keeps the least time of each, since other programs can only add to it. If an engine has one thread, the time is that
/// thread's CPU time, which stops while the thread has no core. Each step is visited at least once, 3 times within 2 s, and more
/// often only within 50 ms. The engines are made for this, each with KV for the largest step. Errors: as make_cpu_engine().
Result<std::vector<double>> measure_steps_us(const std::shared_ptr<const Model>& model, CpuEngineConfig config, int64_t engines,
                                             const std::vector<StepSequences>& steps);

}  // namespace seer
