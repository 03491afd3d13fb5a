// CPU time of this thread or process. Used by whoever reports what its work cost.
#pragma once
#include <cstdint>
#include <ctime>

namespace seer {

/// `clock`: CLOCK_THREAD_CPUTIME_ID or CLOCK_PROCESS_CPUTIME_ID.
inline int64_t cpu_ns(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}
inline int64_t thread_cpu_ns() { return cpu_ns(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace seer
