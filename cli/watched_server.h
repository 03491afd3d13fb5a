// WatchedServer: a server, with a StepLog that learns from the times at which its tokens come (LearnedSteps). The caller cannot tell.
#pragma once
#include <memory>
#include <mutex>

#include "cli/learned_steps.h"
#include "cli/steady_time.h"
#include "served/engine_server.h"

namespace seer {

/// LearnedSteps of one server, with the clock. Thread-safe.
class StepLog {
 public:
  /// Calls change(steps, now_us).
  template <class Change>
  void change(Change&& change) {
    const std::lock_guard lock(mutex_);
    change(steps_, steady_us());
  }
  LearnedSteps learned() const {
    const std::lock_guard lock(mutex_);
    return steps_;
  }

 private:
  mutable std::mutex mutex_;
  LearnedSteps steps_;
};

std::shared_ptr<EngineServer> watch_server(std::shared_ptr<EngineServer> server, std::shared_ptr<StepLog> log);

}  // namespace seer
