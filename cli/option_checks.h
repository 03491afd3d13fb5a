// What must hold between the options of a command, beyond the values that each option allows by itself.
// Used by config.cpp only. Asks the file system whether folders are there, and the resolver for the host of --listen; reads no file.
#pragma once
#include "cli/config.h"
#include "protocols/result.h"

namespace seer {

/// Errors: one sentence that names the options.
Status check_together(const RolloutOptions& options);
Status check_together(const ServeOptions& options);
Status check_together(const NodeOptions& options);
Status check_together(const StatusOptions& options);
Status check_together(const DrainOptions& options);
Status check_together(const ScoreOptions& options);
Status check_together(const ProfileOptions& options);
Status check_together(const SimulateOptions& options);
inline Status check_together(const DoctorOptions&) { return {}; }

}  // namespace seer
