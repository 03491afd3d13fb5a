// WatchedEngine: an engine that notes, at each step, how many sequences it has and how much of its KV they use. It changes
// nothing: work and results pass through.
// Used by local_rollout for the timelines of `--html`; a restarted engine goes on in the timeline of the one before.
#pragma once
#include <chrono>
#include <memory>
#include <mutex>

#include "cli/timeline.h"
#include "gpu/engine.h"

namespace seer {

/// What one instance did since the rollout's first step. Thread-safe: written by its engine's owner, taken at the end.
class LoadHistory {
 public:
  /// The clock of all instances of a rollout; it starts with the first step of any of them.
  class Clock {
   public:
    double seconds();

   private:
    std::mutex mutex_;
    std::chrono::steady_clock::time_point start_;
    bool has_started_ = false;
  };

  explicit LoadHistory(std::shared_ptr<Clock> clock) : clock_(std::move(clock)) {}
  void step_begins(const StepBatch& step, int32_t device_blocks);
  void step_ends();
  InstanceTimeline take(double end_s);

 private:
  void close(double now_s);

  std::shared_ptr<Clock> clock_;
  std::mutex mutex_;
  TimelineRecorder recorder_;
  LoadSample open_;         // since the newest step began
  int64_t open_steps_ = 0;  // submitted, their results not taken
};

std::shared_ptr<Engine> watch_engine(std::shared_ptr<Engine> engine, std::shared_ptr<LoadHistory> history);

}  // namespace seer
