// How a policy of `seer simulate` drafts: the drafter (--drafter, or the usual one of the workload), how many of its tokens are
// accepted, and what it costs. Used by simulate_command. Pure except for reading the named file.
//
//   own    suffixes of the request's own text; at most twice --draft-max tokens
//   group  suffixes of all texts of the group; at most --draft-max
//   model  a draft model with its own passes, one per token; at most 3
//   mtp    one more layer of the model itself; 1
//
// Acceptance is the workload's if it is given there, else the paper's Table 2 (own, group); a file (--draft-acceptance) goes
// before both. A draft model runs on the GPUs of the instance, with the largest part of their tp that divides its heads. Its
// weights and KV are taken to fit in what the engine keeps free.
#pragma once
#include <optional>

#include "cli/config.h"
#include "cli/sim/sim_policy.h"
#include "cli/sim/sim_rollout.h"
#include "cli/sim/workload.h"
#include "protocols/result.h"

namespace seer {

/// Nothing if the policy does not draft. Errors: kInvalidArgument (nobody knows how much is accepted, or how long passes take),
/// kNotFound, kIo.
Result<std::optional<SimDrafting>> sim_drafting(const SimPolicy& policy, const SimulateOptions& options, const Workload& workload);

}  // namespace seer
