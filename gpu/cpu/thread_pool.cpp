#include "gpu/cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "gpu/cpu/denormals.h"
#include "protocols/check.h"

namespace seer {
namespace {

constexpr int kSpins = 2000;  // about 10 us of pauses before a thread sleeps

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits until the value differs from `old`: a short spin, then a futex.
template <class T>
T wait_change(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    const T now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    pause_cpu();
  }
  for (;;) {
    value.wait(old, std::memory_order_acquire);
    const T now = value.load(std::memory_order_acquire);
    if (now != old) return now;
  }
}

}  // namespace

std::vector<int32_t> usable_cores() {
  cpu_set_t set;
  std::vector<int32_t> cores;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int32_t core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

void pin_thread(int32_t core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  (void)::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
}

ThreadPool::ThreadPool(int32_t threads, const std::vector<int32_t>& cores) {
  SEER_CHECK(threads >= 1, threads);
  next_range_ = std::vector<NextRange>(static_cast<size_t>(threads));
  SEER_CHECK(cores.empty() || std::ssize(cores) == threads, cores.size(), threads);
  for (int32_t i = 1; i < threads; ++i)
    workers_.emplace_back([this, i, core = cores.empty() ? -1 : cores[static_cast<size_t>(i)]] {
      if (core >= 0) pin_thread(core);
      work(i);
    });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_release);
  published_.fetch_add(1, std::memory_order_release);
  published_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(int32_t tasks, TaskFn fn, void* context) {
  if (tasks <= 0) return;
  const FlushDenormals flush;
  if (tasks == 1 || workers_.empty()) {
    for (int32_t task = 0; task < tasks; ++task) fn(context, task, 0);
    return;
  }
  const uint32_t generation = published_.load(std::memory_order_relaxed) + 1;
  // The claim is closed here (see the end), so no worker can take a task while these change.
  fn_.store(fn, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  tasks_.store(tasks, std::memory_order_release);
  done_.store(0, std::memory_order_relaxed);
  claim_.store(static_cast<uint64_t>(generation) << 32, std::memory_order_release);
  published_.store(generation, std::memory_order_release);
  published_.notify_all();

  run_tasks(generation, 0);
  for (int32_t done = done_.load(std::memory_order_acquire); done != tasks;) done = wait_change(done_, done);
  claim_.store(static_cast<uint64_t>(generation) << 32 | kClosed, std::memory_order_release);
}

void ThreadPool::run_tasks(uint32_t generation, int32_t thread) {
  for (;;) {
    uint64_t claim = claim_.load(std::memory_order_acquire);
    const TaskFn fn = fn_.load(std::memory_order_acquire);
    void* context = context_.load(std::memory_order_acquire);
    const int32_t tasks = tasks_.load(std::memory_order_acquire);
    const auto next = static_cast<uint32_t>(claim);
    if (static_cast<uint32_t>(claim >> 32) != generation || next >= static_cast<uint32_t>(tasks)) return;
    if (!claim_.compare_exchange_weak(claim, claim + 1, std::memory_order_acq_rel)) continue;
    fn(context, static_cast<int32_t>(next), thread);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == tasks) done_.notify_all();
  }
}

void ThreadPool::work(int32_t thread) {
  const FlushDenormals flush;
  uint32_t seen = 0;
  for (;;) {
    seen = wait_change(published_, seen);
    if (stop_.load(std::memory_order_acquire)) return;
    run_tasks(seen, thread);
  }
}

int64_t ThreadPool::workers_cpu_us() const {
  int64_t us = 0;
  for (const std::thread& worker : workers_) {
    clockid_t clock;
    timespec t{};
    if (::pthread_getcpuclockid(const_cast<std::thread&>(worker).native_handle(), &clock) == 0 &&
        ::clock_gettime(clock, &t) == 0)
      us += int64_t{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000;
  }
  return us;
}

}  // namespace seer
