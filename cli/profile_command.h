// `seer profile`: measures steps of the engine over a grid of shapes, fits a cost model to them and writes both to a
// file (gpu/step_profile.h). Used by seer.cpp.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/config.h"
#include "gpu/step_profile.h"
#include "gpu/step_runner.h"
#include "protocols/result.h"

namespace seer {

/// A step of the grid.
struct GridPoint {
  std::string kind;  // decode | verify | prefill | mixed
  std::vector<SequenceShape> sequences;
};
/// Decode and verify steps over (sequences, context, rows per sequence), prefill steps over (start, rows), and decode
/// with a prefill piece in one step. No position at or above context_tokens_max. Pure; never empty.
std::vector<GridPoint> profile_grid(const ProfileOptions& options, int64_t context_tokens_max);

/// The table of errors and costs that ends the command.
std::string profile_table(const StepProfile& profile);

/// Errors: those of loading a model and making an engine; kInvalidArgument if kv_bytes has no room for any step;
/// kCancelled if `stop` is set (by Ctrl-C): then no file is written.
Status profile_command(const ProfileOptions& options, const std::atomic<bool>& stop);

}  // namespace seer
