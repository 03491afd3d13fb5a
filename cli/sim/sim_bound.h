// Lower bounds on the time of an iteration: no schedule is faster. They show how far a simulated policy is from the best possible.
// Pure; thread-safe if ClusterModel::step_ns is.
#pragma once
#include "cli/sim/sim_class_bound.h"
#include "cli/sim/sim_rollout.h"

namespace seer {

struct SimBounds {
  double work_s = 0;   // work_bound_s()
  double tight_s = 0;  // the larger one of it and class_bound(), in seconds too
  TimePrices prices;   // of class_bound(), also where it is the smaller one
};
SimBounds lower_bounds(const ClusterModel& cluster, const SimWork& work);

/// The longer of two bounds, both without prefills and drafts:
///  - the longest request, with each of its steps alone on an instance;
///  - the least time of steps that together feed all rows and read all KV, divided by the instances. The rows of a step must fit
///    in memory with the KV that they hold. A prompt's KV counts once per group, and KV that a response shares with an earlier
///    one does not count.
/// The second is a linear program over what a step may contain. It is solved by prices for a row, a token of KV read and a token
/// of KV held (see PriceList in sim_bound.cpp), so it holds for any mix of short and long contexts in a batch.
/// REQUIRES: step_ns() does not fall when a step has more sequences or more KV.
double work_bound_s(const ClusterModel& cluster, const SimWork& work);

}  // namespace seer
