// What keeps a simulated run from its lower bound: the proof of the bound (sim_class_bound.h), taken as an account. Valid prices add up to
// 1 over all instances and responses, so the total time is what all their time costs:
//
//   total =   machine * idle time of the instances
//           + waiting * time of the responses in no batch
//           + for each step, its time * (machine + waiting of each row)
//
// What all rows are worth is the bound. So total - bound is what idle instances and responses outside batches cost, and what steps
// cost more than their rows are worth: for a prefill, for a batch that no rows of its number and KV would pay for, or because other
// rows would pay for it. Used by `seer simulate`. Pure.
#pragma once
#include "cli/sim/sim_class_bound.h"
#include "cli/sim/sim_report.h"

namespace seer {

/// Divides the time of a run without drafts. All unknown if it recorded no responses or steps. A response waits from the start of the run to its own
/// end; the time after that is `early`.
SimGap gap_of(const SimRun& run, const TimePrices& prices, const ClusterModel& cluster);

}  // namespace seer
