// ThreadPool: splits one loop at a time over the calling thread and a few workers. Used by the CPU engine, many times
// per step: a worker that waits spins for a few microseconds, then sleeps on a futex, so that idle engines cost nothing
// and more threads than cores only lose time. Tasks are handed out one by one: a worker that the system has not
// scheduled delays nobody.
//
// run() is called by one thread at a time. Every thread flushes denormals (denormals.h) while it runs tasks.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace seer {

/// The cores that this process may use, ascending.
std::vector<int32_t> usable_cores();
/// Pins the calling thread to a core. Does nothing if the core is gone: pinning affects speed only.
void pin_thread(int32_t core);

class ThreadPool {
 public:
  /// `threads` threads compute, the caller of run() included. With `cores` (ids of the system), worker i is pinned to
  /// cores[i]; the caller pins itself to cores[0] (pin_thread). REQUIRES: threads >= 1; cores is empty or has `threads`
  /// entries.
  explicit ThreadPool(int32_t threads, const std::vector<int32_t>& cores = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int32_t threads() const { return static_cast<int32_t>(workers_.size()) + 1; }

  /// Calls fn(task, thread) for every task in [0, tasks), thread in [0, threads()), and returns when all are done.
  template <class Fn>
  void run(int32_t tasks, Fn&& fn) {
    using Callable = std::remove_reference_t<Fn>;
    run_erased(
        tasks, [](void* f, int32_t task, int32_t thread) { (*static_cast<Callable*>(f))(task, thread); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }
  /// Splits [0, size) into ranges of at least `grain` and calls fn(begin, end, thread) for each. A thread takes ranges that
  /// follow each other, so that what it prefetches past the end of one is for itself; then those that others have not begun.
  template <class Fn>
  void run_ranges(int32_t size, int32_t grain, Fn&& fn) {
    if (size <= 0) return;
    const int32_t wanted = threads() == 1 ? 1 : threads() * 4;
    const int32_t ranges = std::max(1, std::min(wanted, size / std::max(1, grain))), runs = std::min(threads(), ranges);
    const auto first_of = [&](int32_t r) { return static_cast<int32_t>(int64_t{ranges} * r / runs); };
    const auto begin_of = [&](int32_t range) { return static_cast<int32_t>(int64_t{size} * range / ranges); };
    for (int32_t r = 0; r < runs; ++r) next_range_[static_cast<size_t>(r)].value.store(first_of(r), std::memory_order_relaxed);
    run(runs, [&](int32_t own, int32_t thread) {
      for (int32_t i = 0; i < runs; ++i) {
        const int32_t r = (own + i) % runs, end = first_of(r + 1);
        std::atomic<int32_t>& next = next_range_[static_cast<size_t>(r)].value;
        for (int32_t range; (range = next.fetch_add(1, std::memory_order_relaxed)) < end;)
          fn(begin_of(range), begin_of(range + 1), thread);
      }
    });
  }

  /// CPU time of the workers so far, in microseconds.
  int64_t workers_cpu_us() const;

 private:
  using TaskFn = void (*)(void* context, int32_t task, int32_t thread);
  void run_erased(int32_t tasks, TaskFn fn, void* context);
  void work(int32_t thread);
  // Takes and runs tasks of the job `generation` until none is left.
  void run_tasks(uint32_t generation, int32_t thread);

  // The next task to take: generation of the job << 32 | task. A worker reads the job's fields, then takes a task by
  // compare-and-swap; success proves that the fields belong to this generation. Between jobs the low half is kClosed, so
  // that no task can be taken while the fields change.
  static constexpr uint32_t kClosed = 0xffffffffu;
  std::atomic<uint64_t> claim_{kClosed};
  std::atomic<int32_t> tasks_{0};
  std::atomic<TaskFn> fn_{nullptr};
  std::atomic<void*> context_{nullptr};

  struct alignas(64) NextRange {
    std::atomic<int32_t> value{0};
  };
  std::vector<NextRange> next_range_;  // of each thread's ranges the first that nobody has taken

  std::atomic<int32_t> done_{0};        // tasks of the current job that have ended
  std::atomic<uint32_t> published_{0};  // generation of the newest job; workers sleep on it
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;  // last: they use all of the above
};

}  // namespace seer
