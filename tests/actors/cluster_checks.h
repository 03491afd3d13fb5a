// Turns the faults that SimCluster finds into failures of a test.
#pragma once
#include <doctest/doctest.h>

#include "actors/sim/sim_cluster.h"

namespace seer {

inline void check_ok(const Status& status) {
  CHECK_MESSAGE(status.ok(), (status.ok() ? "" : status.error().detail));
}
inline void check_exact(const SimCluster& cluster) { check_ok(cluster.exact()); }
inline void check_drained(SimCluster& cluster) { check_ok(cluster.drained()); }

}  // namespace seer
