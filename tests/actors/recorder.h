// Recorder: an actor that keeps its messages, in order: the other side of the actor under test.
#pragma once
#include <memory>
#include <variant>
#include <vector>

#include "actors/sim/sim_world.h"

namespace seer {

template <class Handle, class... Messages>
class Recorder {
 public:
  using Log = std::vector<std::variant<Messages...>>;

  explicit Recorder(SimWorld& world) : handle_(world.spawn<Actor>(log_)) {}
  const Handle& handle() const { return handle_; }
  const Log& log() const { return *log_; }

  /// All messages of one type, in order.
  template <class Message>
  std::vector<Message> all() const {
    std::vector<Message> found;
    for (const auto& m : *log_)
      if (const auto* message = std::get_if<Message>(&m)) found.push_back(*message);
    return found;
  }

 private:
  struct Actor {
    using handle = Handle;
    static constexpr const char* kActorName = "recorder";
    Actor(rt::self_ptr<Actor>, std::shared_ptr<Log> log_in) : log(std::move(log_in)) {}
    typename handle::behavior_type make_behavior() {
      return {[this](const Messages& message) { log->push_back(message); }...};
    }
    std::shared_ptr<Log> log;
  };
  std::shared_ptr<Log> log_ = std::make_shared<Log>();  // shared: the actor ends with its world, later than this
  Handle handle_;
};

}  // namespace seer
