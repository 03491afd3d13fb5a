#include "protocols/cpu_time.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

using namespace seer;

TEST_CASE("cpu time: a thread's grows while it works, not while it sleeps or another one works") {
  const auto work = [] {
    for (const int64_t end_ns = thread_cpu_ns() + 20'000'000; thread_cpu_ns() < end_ns;) {
    }
  };
  const int64_t before = thread_cpu_ns(), all_before = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
  std::thread(work).join();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(thread_cpu_ns() - before < 10'000'000);
  CHECK(cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - all_before >= 20'000'000);
  work();
  CHECK(thread_cpu_ns() - before >= 20'000'000);
}
