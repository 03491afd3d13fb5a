// The manual page seer(1) as roff, made from the option tables.
// Used by config.cpp only (`seer man`). Pure.
#pragma once
#include <string>

#include "cli/arguments.h"

namespace seer {

std::string man_page(const ProgramSpec& program);

}  // namespace seer
