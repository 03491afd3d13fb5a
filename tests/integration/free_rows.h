// A profile of steps whose rows cost nothing, so that the budget drafts as much as allowed, whatever the machine.
#pragma once
#include <string>

namespace seer {

inline const std::string kFreeRows = SEER_SOURCE_DIR "/tests/integration/free_rows.json";

}  // namespace seer
