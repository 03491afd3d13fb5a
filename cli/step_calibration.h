// What steps of an engine cost, measured at the start of a rollout: a few seconds where it drafts, enough for the draft budget,
// which asks how much dearer a step gets with more rows; a few steps for `--policy auto`, which asks what a fuller batch costs.
// `seer profile` measures more and better. Used by `seer rollout`.
#pragma once
#include <functional>
#include <vector>

#include "gpu/cpu/cpu_engine.h"
#include "gpu/step_runner.h"
#include "protocols/result.h"
#include "protocols/step_cost.h"

namespace seer {

/// Takes an engine of its own, with little KV, for as long as it measures. Errors: as make_cpu_engine().
Result<StepCost> calibrate_step_cost(const std::shared_ptr<const Model>& model, CpuEngineConfig config);

/// Microseconds of each of these steps on one of `engines` engines that all do it, between steps like it: the least of a few visits in turns, since other
/// programs on the machine can only add to it. Of an engine with one thread it is that thread's CPU time, which runs only while
/// the thread has a core. Three visits each where they take less than 2 s together, more only while they take less than 50 ms.
/// Engines of its own, each with the KV that the largest step needs. Errors: as make_cpu_engine().
Result<std::vector<double>> measure_steps_us(const std::shared_ptr<const Model>& model, CpuEngineConfig config, int64_t engines,
                                             const std::vector<StepSequences>& steps);

}  // namespace seer
