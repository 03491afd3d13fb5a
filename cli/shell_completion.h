// Shell completions of seer's commands, options and their values, made from the option tables.
// Used by config.cpp only (`seer completion SHELL`). Pure.
#pragma once
#include <string>
#include <vector>

#include "cli/arguments.h"

namespace seer {

/// bash, zsh, fish.
std::vector<std::string> completion_shells();
/// REQUIRES: shell is one of completion_shells().
std::string shell_completion(const ProgramSpec& program, const std::string& shell);

}  // namespace seer
