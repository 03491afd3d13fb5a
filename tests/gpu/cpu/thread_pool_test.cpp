#include "gpu/cpu/thread_pool.h"

#include <doctest/doctest.h>

#include <atomic>
#include <mutex>
#include <numeric>
#include <thread>
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

TEST_CASE("thread pool: a thread takes ranges that follow each other, and then those of a thread that is late") {
  ThreadPool pool(2);
  std::mutex mutex;
  std::vector<int32_t> by_thread[2];  // which ranges, in order
  const auto all_but_one_done = [&] {
    const std::lock_guard lock(mutex);
    return by_thread[0].size() + by_thread[1].size() == 7;
  };
  for (int round = 0; round < 200; ++round) {
    for (auto& ranges : by_thread) ranges.clear();
    std::atomic<int32_t> first{-1}, late{-1};  // the threads that took the ranges 0 and 4
    pool.run_ranges(8, 1, [&](int32_t begin, int32_t, int32_t thread) {
      if (begin == 0) first = thread;
      if (begin == 4) late = thread;
      while (begin == 4 && first != thread && !all_but_one_done()) std::this_thread::yield();
      const std::lock_guard lock(mutex);
      by_thread[thread].push_back(begin);
    });
    const std::vector<int32_t>& ranges = by_thread[first];
    REQUIRE(ranges.size() >= 4);
    CHECK(std::vector(ranges.begin(), ranges.begin() + 4) == std::vector<int32_t>{0, 1, 2, 3});
    if (late != first) CHECK(ranges.size() == 7);
    if (late == first) CHECK(ranges[4] == 4);
  }
}

}  // namespace
}  // namespace seer
