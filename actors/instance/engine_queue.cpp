#include "actors/instance/engine_queue.h"

#include <utility>
#include <variant>

namespace seer {

void EngineQueue::submit(EngineWork work) {
  waiting_.push_back(std::move(work));
  feed();
}

void EngineQueue::feed() {
  for (; !waiting_.empty() && in_engine_ < engine_.info().queue_max; ++in_engine_) {
    engine_.submit(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void EngineQueue::shorten_waiting_steps() {
  for (EngineWork& work : waiting_)
    if (auto* order = std::get_if<StepOrder>(&work)) order->steps = 1;
}

}  // namespace seer
