#include "gpu/cpu/thread_pool.h"

#include <doctest/doctest.h>

#include <atomic>
#include <numeric>
#include <vector>

namespace seer {
namespace {

TEST_CASE("thread pool: every task of every job runs exactly once, with more threads than cores too") {
  for (int threads : {1, 2, 3, 8}) {
    CAPTURE(threads);
    ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
    for (int job = 0; job < 2000; ++job) {
      const int tasks = job % 17;
      std::vector<int> runs(17);  // not atomic: each task has its own
      std::atomic<int> bad_threads{0};
      pool.run(tasks, [&](int32_t task, int32_t thread) {
        ++runs[task];
        if (thread < 0 || thread >= threads) ++bad_threads;
      });
      REQUIRE(bad_threads == 0);
      for (int task = 0; task < 17; ++task) REQUIRE(runs[task] == (task < tasks ? 1 : 0));
    }
  }
}

TEST_CASE("thread pool: ranges cover the whole without overlap") {
  ThreadPool pool(3);
  for (int size : {0, 1, 2, 7, 100, 1001}) {
    for (int grain : {1, 3, 64, 5000}) {
      std::vector<int> covered(size);
      pool.run_ranges(size, grain, [&](int32_t begin, int32_t end, int32_t) {
        for (int32_t i = begin; i < end; ++i) ++covered[i];
      });
      CHECK(std::accumulate(covered.begin(), covered.end(), 0) == size);
      for (int c : covered) CHECK(c == 1);
    }
  }
}

}  // namespace
}  // namespace seer
