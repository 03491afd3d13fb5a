// A sweep: the same workload and policies on several clusters, which differ in the keys that `--sweep` names. All combinations of
// their values are the points. Used by `seer simulate`. Pure.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/config.h"
#include "cli/sim/sim_report.h"
#include "cli/sim/workload.h"
#include "protocols/result.h"

namespace seer {

/// A key and its values, as given.
struct SweepAxis {
  std::string key;
  std::vector<std::string> values;
};

/// The keys that a sweep may have, for messages: "instances, tp, ...".
std::string sweep_keys();

/// Reads "instances=16,32", one axis each. Errors: kInvalidArgument (one sentence: an unknown key, a value that is not one, a key
/// or value given twice).
Result<std::vector<SweepAxis>> parse_sweep(std::span<const std::string> texts);

/// A point: one value of each axis, in the order of the axes. The last axis changes fastest.
using SweepPoint = std::vector<std::string>;
std::vector<SweepPoint> sweep_points(std::span<const SweepAxis> axes);
/// Its values with a space between them: the name of its workload in reports (sim_joint_table()).
std::string point_name(const SweepPoint& point);

/// Sets the point's values. `group-size` keeps the number of requests, so it divides them; `tp` keeps the number of instances, each of
/// which then has tp x dp GPUs. Errors: kInvalidArgument if the workload has no such figure (a trace, measured steps).
Status apply_point(std::span<const SweepAxis> axes, const SweepPoint& point, Workload& workload, SimulateOptions& options);

/// Estimates how long a simulated run takes on one core, from the KV blocks that its responses fill: each is a few events.
double run_estimate_s(const Workload& workload, const SimulateOptions& options, const std::string& policy);
/// How often each policy is simulated: once if the lengths are those of a trace, unless faults are drawn.
int64_t seeds_of(const Workload& workload, const SimulateOptions& options);
/// Errors: kInvalidArgument if the sweep has more than `options.sweep_runs_max` runs: one sentence, how many and what they would take.
Status check_runs(std::span<const SweepAxis> axes, const Workload& workload, const SimulateOptions& options);

/// A page with the table of all points, a bar for each total, and which point is fastest and which takes the fewest GPU hours.
std::string sweep_html(std::span<const SimFigures> figures, std::span<const SweepAxis> axes, const std::string& workload,
                       const std::string& made_by);

}  // namespace seer
