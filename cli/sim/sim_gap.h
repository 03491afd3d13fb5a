// What keeps a simulated run from its lower bound: the proof of the bound (sim_class_bound.h), taken as an account. With valid prices,
//
//   total = total * (machine * instances + sum over responses of waiting) =   machine * idle time of all instances
//                                                                          + waiting * time of each response in no batch
//                                                                          + machine * time of each step, and waiting * it for each row.
//
// What all rows are worth is the bound. So total - bound is what idle instances and responses outside batches cost, and what steps
// cost more than their rows are worth: for a prefill, for a batch that no rows of its number and KV would pay for, or because other
// rows would pay for it. Used by `seer simulate`. Pure.
#pragma once
#include "cli/sim/sim_class_bound.h"
#include "cli/sim/sim_report.h"

namespace seer {

/// All unknown if the run recorded no responses or steps. A response waits from the start of the run to its own end; the time after
/// that is `early`.
SimGap gap_of(const SimRun& run, const TimePrices& prices, const ClusterModel& cluster);

}  // namespace seer
