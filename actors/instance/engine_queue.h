// EngineQueue: an instance's queue of work for its engine. Work waits here while the engine's own queue is full; the engine gets
// it in the order in which it was submitted. Part of instance_actor. Single owner, not thread-safe.
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

  void submit(EngineWork work);
  /// Returns the results that are ready. The caller calls result_handled() for each of them, then feed().
  std::vector<EngineResult> take_results() { return engine_.take_results(); }
  void result_handled() { --in_engine_; }
  void feed();
  /// Cuts every order of steps that waits here to one step.
  void shorten_waiting_steps();
  bool has_waiting() const { return !waiting_.empty(); }
  size_t open_count() const { return waiting_.size() + in_engine_; }

 private:
  Engine& engine_;
  std::deque<EngineWork> waiting_;  // at most one copy per open reservation or opening, and the open orders
  size_t in_engine_ = 0;
};

}  // namespace seer
