// The time on the actors' clock, for code that is no actor.
#pragma once
#include <chrono>
#include <cstdint>

namespace seer {

inline int64_t steady_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace seer
