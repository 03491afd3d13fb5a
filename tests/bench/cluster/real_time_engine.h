// RealTimeEngine: a SimEngine on the wall clock, so that processes of a real cluster run without a model. Its steps take real time,
// on a timer thread that the engines of a process share. Used by bench_schedule.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "bench/cluster/machine_process.h"
#include "gpu/sim/sim_engine.h"

namespace seer {

/// Runs functions at their times, on one thread.
class Timer {
 public:
  Timer() : thread_([this](const std::stop_token& stop) { run(stop); }) {}

  void after(int64_t delay_ns, std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      due_.emplace(monotonic_ns() + delay_ns, std::move(work));
    }
    changed_.notify_one();
  }

 private:
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      const int64_t now = monotonic_ns();
      if (due_.empty() || due_.begin()->first > now) {
        const int64_t first = due_.empty() ? now + 1'000'000'000 : due_.begin()->first;
        const auto comes_sooner = [&] { return !due_.empty() && due_.begin()->first < first; };
        changed_.wait_for(lock, stop, std::chrono::nanoseconds(first - now), comes_sooner);
      } else {
        const auto work = due_.extract(due_.begin());
        lock.unlock();
        work.mapped()();
        lock.lock();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::multimap<int64_t, std::function<void()>> due_;
  std::jthread thread_;  // last: it uses those above
};

/// When chunks end on an engine, and when the next ones come to its instance. Told by the engine and by the relay before the
/// instance; thread-safe.
class ChunkTimes {
 public:
  /// In nanoseconds, of a chunk that came: since its slot's last step, and since the instance said that the slot is free.
  struct Sample {
    int64_t at = 0, idle = 0, delay = 0;
  };

  /// A chunk of the request with this seed ends once its token log holds end_tokens.
  void chunk_came(uint64_t seed, int64_t end_tokens) {
    const std::lock_guard lock(mutex_);
    end_tokens_[seed] = end_tokens;
    if (ended_.empty() || told_.empty()) return;  // a slot that was never used
    const int64_t now = monotonic_ns();
    samples_.push_back({now, now - ended_.front(), now - told_.front()});
    ended_.pop_front();
    told_.pop_front();
  }
  /// Whether the chunk ends with the step that gives the token at this place; asked once.
  bool ends_at(uint64_t seed, int64_t tokens) {
    const std::lock_guard lock(mutex_);
    const auto end = end_tokens_.find(seed);
    if (end == end_tokens_.end() || tokens < end->second) return false;
    end_tokens_.erase(end);
    return true;
  }
  void steps_ended(int64_t chunks) {
    const std::lock_guard lock(mutex_);
    ended_.insert(ended_.end(), static_cast<size_t>(chunks), monotonic_ns());
  }
  /// ChunkDone leaves the instance.
  void end_told() {
    const std::lock_guard lock(mutex_);
    told_.push_back(monotonic_ns());
  }
  std::vector<Sample> samples() const {
    const std::lock_guard lock(mutex_);
    return samples_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, int64_t> end_tokens_;  // by seed
  std::deque<int64_t> ended_, told_;        // of slots that are free, first to last
  std::vector<Sample> samples_;
};

class RealTimeEngine final : public Engine {
 public:
  /// REQUIRES: the timer outlives it.
  RealTimeEngine(const SimEngineConfig& config, SimEngine::Oracle oracle, Timer& timer, std::shared_ptr<ChunkTimes> times)
      : times_(std::move(times)),
        engine_(config, std::move(oracle), [this, &timer](int64_t delay_ns, std::function<void()> work) {
          timer.after(delay_ns, [work = std::move(work), mutex = mutex_] {
            const std::lock_guard lock(*mutex);
            work();
          });
        }) {}
  ~RealTimeEngine() override { const std::lock_guard lock(*mutex_); }

  const EngineInfo& info() const override { return engine_.info(); }
  void set_notify(std::function<void()> notify) override {
    engine_.set_notify([this, notify = std::move(notify)] {
      times_->steps_ended(chunk_ends_.front());
      chunk_ends_.pop_front();
      notify();
    });
  }
  void submit(EngineWork work) override {
    const std::lock_guard lock(*mutex_);
    int64_t ends = 0;
    if (const auto* const step = std::get_if<StepBatch>(&work))
      for (const SequenceStep& s : step->sequences)
        ends += s.sample_rows > 0 && times_->ends_at(s.seed, s.start + std::ssize(s.tokens) + 1) ? 1 : 0;
    chunk_ends_.push_back(ends);
    engine_.submit(std::move(work));
  }
  std::vector<EngineResult> take_results() override {
    const std::lock_guard lock(*mutex_);
    return engine_.take_results();
  }

 private:
  const std::shared_ptr<std::recursive_mutex> mutex_ = std::make_shared<std::recursive_mutex>();  // shared with timers that fire after the end; work that ends may run the actor at once, which calls back
  const std::shared_ptr<ChunkTimes> times_;
  std::deque<int64_t> chunk_ends_;  // of the work in the queue: chunks that end with it
  SimEngine engine_;
};

}  // namespace seer
