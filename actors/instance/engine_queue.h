// EngineQueue: the work of an instance on its way to the engine. What the engine's own queue has no room for waits here, so that
// the engine gets all work in the order in which it was submitted. Part of instance_actor. Single owner, not thread-safe.
//
// Always true: at most info().queue_max pieces of work are in the engine, and none waits while there is room.
#pragma once
#include <deque>
#include <utility>
#include <variant>
#include <vector>

#include "gpu/engine.h"

namespace seer {

class EngineQueue {
 public:
  explicit EngineQueue(Engine& engine) : engine_(engine) {}

  void submit(EngineWork work) {
    waiting_.push_back(std::move(work));
    feed();
  }
  /// Results that are ready; result_handled() is to be called for each, then feed().
  std::vector<EngineResult> take_results() { return engine_.take_results(); }
  void result_handled() { --in_engine_; }
  void feed() {
    for (; !waiting_.empty() && in_engine_ < engine_.info().queue_max; ++in_engine_) {
      engine_.submit(std::move(waiting_.front()));
      waiting_.pop_front();
    }
  }
  /// Steps that wait are to be one step only.
  void shorten_waiting_steps() {
    for (EngineWork& work : waiting_)
      if (auto* steps = std::get_if<StepBatch>(&work)) steps->steps = 1;
  }
  size_t open_count() const { return waiting_.size() + in_engine_; }

 private:
  Engine& engine_;
  std::deque<EngineWork> waiting_;  // at most one copy per open reservation or opening, and the open orders
  size_t in_engine_ = 0;
};

}  // namespace seer
