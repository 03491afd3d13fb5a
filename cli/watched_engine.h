// WatchedEngine: an engine that records at each step how many sequences run and how much of its KV they use. Work and results pass
// through unchanged; an engine without a running batch gets one (SlotEngine).
// Used by rollout_machines for the timelines of `--html`; a restarted engine continues the timeline of the old one.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cli/timeline.h"
#include "gpu/engine.h"

namespace seer {

/// The load of one instance since the rollout's first step. Thread-safe: written by its engine's owner, taken at the end.
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
  using BlockTables = std::map<int32_t, std::vector<DeviceBlockId>>;  // by slot
  void step_begins(const BlockTables& running, int32_t device_blocks);
  void step_ends();
  InstanceTimeline take(double end_s);

 private:
  void close(double now_s);

  std::shared_ptr<Clock> clock_;
  std::mutex mutex_;
  TimelineRecorder recorder_;
  LoadSample open_;         // since the newest step began
  int64_t open_steps_ = 0;  // submitted, with results not taken yet
};

std::shared_ptr<Engine> watch_engine(std::shared_ptr<Engine> engine, std::shared_ptr<LoadHistory> history);

}  // namespace seer
