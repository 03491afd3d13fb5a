// Workers and Outbox: how slow work leaves its owner, and how results come back to it.
//
//   owner --put()--> Workers (queue, threads) --run(work)--> Outbox::put() --wake--> owner --Outbox::take()
//
// An owner that is an actor gives the Outbox a `wake` that sends it a message; it takes the results when that arrives.
// Completions given as callbacks (ColdStore, KvTransport) follow the same rule: they run on a worker's thread, and all
// they may do is put something into the Outbox of whoever asked.
//
// Both are thread-safe. Workers is declared last in its owner, so that its threads end before anything they use is destroyed.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "protocols/check.h"

namespace seer {

/// Items that any thread hands to one owner, in the order in which they were put.
template <class T>
class Outbox {
 public:
  Outbox() = default;
  explicit Outbox(std::function<void()> wake) : wake_(std::move(wake)) {}
  /// Called after each put(), on the thread that put. It may only tell the owner to take(), or let it do so on that thread.
  /// REQUIRES: nothing was put yet.
  void set_wake(std::function<void()> wake) {
    SEER_CHECK(!wake_);
    wake_ = std::move(wake);
  }

  void put(T item) {
    {
      const std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
    }
    if (wake_) wake_();
  }
  /// Takes all that was put. Called by the owner.
  std::vector<T> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(items_, {});
  }

 private:
  std::function<void()> wake_;
  std::mutex mutex_;  // guards items_
  std::vector<T> items_;
};

struct WorkersConfig {
  int32_t threads = 1;
  int32_t background_max = 1;           // threads that may do background work at the same time
  std::function<void()> on_start = {};  // runs first on each thread; may be empty
};

/// Threads that start pieces of work in the order in which they were put. Background work starts only when no other work is
/// queued, so it delays that by no more than the pieces already running.
template <class Work>
class Workers {
 public:
  /// `run` is called for each piece, from several threads at once if there are several.
  Workers(WorkersConfig config, std::function<void(Work&)> run) : config_(std::move(config)), run_(std::move(run)) {
    SEER_CHECK(config_.threads > 0, config_.threads);
    SEER_CHECK(config_.background_max > 0, config_.background_max);
    for (int32_t i = 0; i < config_.threads; ++i)
      threads_.emplace_back([this] {
        if (config_.on_start) config_.on_start();
        work();
      });
  }
  /// Drops the pieces that have not begun: see stop().
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void put(Work work) { add(queue_, std::move(work)); }
  void put_background(Work work) { add(background_, std::move(work)); }

  /// Waits for the running pieces and ends the threads. Returns the pieces that have not begun, in order, so that the owner can
  /// answer each. A piece put later never runs.
  std::vector<Work> stop() { return end(State::kStopping); }
  /// Runs all pieces, those that they put included, then ends the threads.
  void finish() { end(State::kFinishing); }

 private:
  enum class State : uint8_t { kRunning, kFinishing, kStopping };

  void add(std::deque<Work>& queue, Work work) {
    {
      const std::lock_guard lock(mutex_);
      queue.push_back(std::move(work));
    }
    wake_.notify_one();
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return state_ != State::kRunning || !queue_.empty() || may_begin_background(); });
      if (state_ == State::kStopping) return;
      const bool background = queue_.empty();
      // When finishing: the threads already doing background work take the rest of it.
      if (background && !may_begin_background()) return;
      std::deque<Work>& queue = background ? background_ : queue_;
      Work piece = std::move(queue.front());
      queue.pop_front();
      in_background_ += background ? 1 : 0;
      lock.unlock();
      run_piece(std::move(piece));
      lock.lock();
      in_background_ -= background ? 1 : 0;
      if (background && !background_.empty()) wake_.notify_one();
    }
  }
  void run_piece(Work piece) { run_(piece); }  // destroys the piece before the lock is taken again
  bool may_begin_background() const { return !background_.empty() && in_background_ < config_.background_max; }

  std::vector<Work> end(State how) {
    {
      const std::lock_guard lock(mutex_);
      if (state_ == State::kRunning) state_ = how;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    const std::lock_guard lock(mutex_);  // others may still put
    std::vector<Work> rest;
    for (std::deque<Work>* queue : {&queue_, &background_}) {
      for (Work& piece : *queue) rest.push_back(std::move(piece));
      queue->clear();
    }
    return rest;
  }

  const WorkersConfig config_;
  const std::function<void(Work&)> run_;
  std::mutex mutex_;  // guards all below but threads_; not held while work runs
  std::condition_variable wake_;
  std::deque<Work> queue_, background_;
  int32_t in_background_ = 0;
  State state_ = State::kRunning;
  std::vector<std::thread> threads_;  // last: joined before anything they use is destroyed
};

}  // namespace seer
