// Finds options that were given but have no effect together with the others, to warn the user.
// Used by config.cpp only. Pure.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "cli/config.h"

namespace seer {

/// A sentence for each. `given`: names of the options that were given.
/// REQUIRES: the options went through check_together().
std::vector<std::string> ineffective_options(const RolloutOptions& options, const std::set<std::string>& given);
std::vector<std::string> ineffective_options(const ServeOptions& options, const std::set<std::string>& given);
std::vector<std::string> ineffective_options(const NodeOptions& options, const std::set<std::string>& given);
std::vector<std::string> ineffective_options(const SimulateOptions& options, const std::set<std::string>& given);
inline std::vector<std::string> ineffective_options(const ScoreOptions&, const std::set<std::string>&) { return {}; }
inline std::vector<std::string> ineffective_options(const ProfileOptions&, const std::set<std::string>&) { return {}; }
inline std::vector<std::string> ineffective_options(const StatusOptions&, const std::set<std::string>&) { return {}; }
inline std::vector<std::string> ineffective_options(const DrainOptions&, const std::set<std::string>&) { return {}; }
inline std::vector<std::string> ineffective_options(const DoctorOptions&, const std::set<std::string>&) { return {}; }

}  // namespace seer
