// What steps of an engine cost, measured in a few seconds before a rollout drafts: enough for the draft budget, which asks
// how much dearer a step gets with more rows. `seer profile` measures more and better. Used by `seer rollout`.
#pragma once
#include <functional>

#include "gpu/cpu_engine.h"
#include "protocols/result.h"
#include "protocols/step_cost.h"

namespace seer {

/// Takes an engine of its own, with little KV, for as long as it measures. Errors: as make_cpu_engine().
Result<StepCost> calibrate_step_cost(const std::shared_ptr<const Model>& model, CpuEngineConfig config);

}  // namespace seer
