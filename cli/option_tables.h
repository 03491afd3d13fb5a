// The options of each command: names, the fields they set, help and allowed values, in the order of --help. A new option is
// one line here.
// Used by config.cpp only. Pure.
#pragma once
#include <vector>

#include "cli/config.h"
#include "cli/option.h"

namespace seer {

/// Every option but --help, --config and --print-config. They set the fields of `options`, which must outlive them.
std::vector<OptionGroup> option_groups(RolloutOptions& options);
std::vector<OptionGroup> option_groups(ServeOptions& options);
std::vector<OptionGroup> option_groups(NodeOptions& options);
std::vector<OptionGroup> option_groups(StatusOptions& options);
std::vector<OptionGroup> option_groups(DrainOptions& options);
std::vector<OptionGroup> option_groups(ScoreOptions& options);
std::vector<OptionGroup> option_groups(ProfileOptions& options);
std::vector<OptionGroup> option_groups(SimulateOptions& options);
inline std::vector<OptionGroup> option_groups(DoctorOptions&) { return {}; }

}  // namespace seer
