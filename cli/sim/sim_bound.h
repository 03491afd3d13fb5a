// A time that no schedule of an iteration can beat, so that each simulated policy is also a distance from the possible.
// Pure; thread-safe where ClusterModel::step_ns is.
#pragma once
#include "cli/sim/sim_rollout.h"

namespace seer {

/// Seconds; the longer of two bounds, without prefills and drafts:
///  - the longest request, each of its steps alone on an instance;
///  - all steps of all instances together, as few and cheap as can feed all rows, read all KV, and have in memory what
///    the rows in them hold of their own. Prompts count once per group, and what begins like an earlier response not
///    at all.
/// The second is a linear program over what may be in a step: its best prices for a row, a token of KV read and a token
/// of KV held (see PriceList in sim_bound.cpp), so that it holds for any mix of short and long contexts in a batch.
/// REQUIRES: step_ns() does not fall when a step has more sequences or more KV.
double lower_bound_s(const ClusterModel& cluster, const SimWork& work);

}  // namespace seer
