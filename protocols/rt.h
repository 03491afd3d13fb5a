// rt: the actor runtime as Seer uses it, a thin layer over CAF 0.17.6. Version-specific names appear only here, in the
// simulation world (actors/sim/sim_world.h) and where messages are registered (protocols/actors.h, protocols/messages.cpp).
//
// An actor is a State class with `using handle`, `kActorName`, a constructor State(self, args...) and make_behavior().
// It is destroyed when the actor ends. Handlers run one at a time; they never block.
#pragma once
#include <atomic>
#include <caf/all.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "protocols/cpu_time.h"
#include "protocols/fields.h"
#include "protocols/result.h"

namespace seer::rt {

// ---- interfaces --------------------------------------------------------------------------------------------------
template <class In, class Out>
using rpc = typename caf::replies_to<In>::template with<Out>;
template <class In>
using oneway = caf::reacts_to<In>;
template <class... Signatures>
using iface = caf::typed_actor<Signatures...>;

using system = caf::actor_system;
using down = caf::down_msg;
/// What a handler of a request returns: an answer, now or later, or an error.
template <class T>
using result = caf::result<T>;
/// A process that has actors.
using process = caf::node_id;
template <class Handle>
process process_of(const Handle& handle) { return handle.node(); }

// ---- time --------------------------------------------------------------------------------------------------------
/// Microseconds of the actor clock: steady in production, virtual in simulation.
template <class Self>
int64_t now_us(Self* self) {
  return std::chrono::duration_cast<std::chrono::microseconds>(self->clock().now().time_since_epoch()).count();
}

/// An actor, for parts of its state that are classes of their own: to send, monitor and know the time. Valid while the state lives, and
/// does not keep the actor alive.
template <class Handle>
using self_of = typename Handle::pointer;

// ---- sending -----------------------------------------------------------------------------------------------------
template <class Self, class Dest, class Message>
void tell(Self* self, const Dest& to, Message&& message) {
  self->send(to, std::forward<Message>(message));
}
template <class Self, class Dest, class Message>
void tell_after(Self* self, int64_t delay_us, const Dest& to, Message&& message) {
  self->delayed_send(to, std::chrono::microseconds(delay_us), std::forward<Message>(message));
}
/// Sends from threads that are not actors (an engine, a cold store, main).
template <class Dest, class Message>
void post(const Dest& to, Message&& message) {
  caf::anon_send(to, std::forward<Message>(message));
}

/// For small control questions, never for work: CAF searches pending requests linearly. A silent peer is an error after `timeout_us`.
template <class Self, class Dest, class Message>
auto ask(Self* self, const Dest& to, int64_t timeout_us, Message&& message) {
  return self->request(to, std::chrono::microseconds(timeout_us), std::forward<Message>(message));
}
inline constexpr int64_t kControlTimeoutUs = 5'000'000;
/// For questions within an answer, of which an actor asks two after each other at most: so the one that it answers is not over before.
inline constexpr int64_t kGatherTimeoutUs = 2'000'000;

/// Asks every actor of a map the same question; `then` gets the list of answers in the order of the map. Actors that are
/// gone, or silent for `timeout_us`, are left out.
template <class List, class Self, class Map, class Question, class Then>
void gather_then(Self* self, const Map& targets, const Question& question, Then then, int64_t timeout_us = kGatherTimeoutUs) {
  struct Open {
    std::map<typename Map::key_type, typename List::value_type> answers;
    size_t count;
    Then then;
    void finish_one() {
      if (--count > 0) return;
      List list;
      for (auto& [key, answer] : answers) list.push_back(std::move(answer));
      then(std::move(list));
    }
  };
  // One more than the questions: the last finish_one() below also covers an empty map.
  auto open = std::make_shared<Open>(Open{{}, targets.size() + 1, std::move(then)});
  for (const auto& [key, target] : targets)
    ask(self, target, timeout_us, question)
        .then(
            [open, id = key](typename List::value_type& answer) {
              open->answers.emplace(id, std::move(answer));
              open->finish_one();
            },
            [open](const caf::error&) { open->finish_one(); });
  open->finish_one();
}
/// The same, as the answer of a handler.
template <class List, class Self, class Map, class Question>
caf::result<List> gather(Self* self, const Map& targets, const Question& question) {
  auto promise = self->template make_response_promise<List>();
  gather_then<List>(self, targets, question, [promise](List list) mutable { promise.deliver(std::move(list)); });
  return promise;
}

inline constexpr caf::atom_value kSharing = caf::atom("sharing");  // the scheduler of production

// ---- class-style actors --------------------------------------------------------------------------------------------
/// Runs actors on threads that the runtime does not own, as waker_here() says. Thread-safe.
class LentThread final : public caf::execution_unit {
 public:
  explicit LentThread(caf::actor_system& sys) : caf::execution_unit(&sys) {}

  /// Gives the actor a message. If it is idle, it handles that at once on the calling thread; what comes meanwhile waits for another.
  template <class Handle, class Message>
  void tell(const Handle& to, Message message) {
    caf::resumable* idle = nullptr;
    offered_ = &idle;
    to->eq_impl(caf::make_message_id(), nullptr, this, std::move(message));
    offered_ = nullptr;
    if (idle == nullptr) return;  // it runs elsewhere
    const int64_t began_ns = thread_cpu_ns();
    const bool was_lent = std::exchange(is_lent_, true);
    const caf::resumable::resume_result left = idle->resume(this, 1);
    is_lent_ = was_lent;
    used_ns_ += thread_cpu_ns() - began_ns;
    if (left == caf::resumable::resume_later) return system().scheduler().enqueue(idle);
    caf::intrusive_ptr_release(idle);
  }
  /// Others that the running actor wakes run elsewhere.
  void exec_later(caf::resumable* woken) override {
    if (offered_ == nullptr) return system().scheduler().enqueue(woken);
    *offered_ = woken;
  }

  /// Whether an actor runs on the calling thread in this way.
  static bool is_lent() { return is_lent_; }
  /// CPU time that actors have used in this way, in this process.
  static int64_t used_us() { return used_ns_ / 1000; }

 private:
  static inline thread_local caf::resumable** offered_ = nullptr;  // set while a message is put into a mailbox
  static inline thread_local bool is_lent_ = false;
  static inline std::atomic<int64_t> used_ns_ = 0;
};

template <class State>
struct cell {
  caf::scheduled_actor* self = nullptr;
  std::unique_ptr<State> state;
  const char* name = State::kActorName;

  /// The state may own the thread that was lent and wait for its end, so it ends on another one, before its actor's memory goes.
  ~cell() {
    if (!state || !LentThread::is_lent()) return;
    if (const caf::strong_actor_ptr me = caf::weak_actor_ptr(self->ctrl()).lock())
      self->system().spawn([me, ending = state.release()](char) { delete ending; }, char{});
  }
};
template <class State>
using self_ptr = typename State::handle::template stateful_pointer<cell<State>>;

template <class State, class Host, class... Args>
typename State::handle spawn(Host& host, Args... args) {
  return host.spawn(
      // The unused argument, here and above, is for CAF 0.17, which dereferences the null tuple of an empty argument list.
      [](self_ptr<State> self, char, Args... xs) -> typename State::handle::behavior_type {
        self->state.self = self;
        self->state.state = std::make_unique<State>(self, std::move(xs)...);
        return self->state.state->make_behavior();
      },
      char{}, std::move(args)...);
}

/// The actor's own handle, without keeping it alive: for callbacks of threads that the actor owns.
template <class State>
std::function<void()> waker(self_ptr<State> self, std::function<void(const typename State::handle&)> wake) {
  auto weak = caf::actor_cast<caf::weak_actor_ptr>(self->ctrl());
  return [weak, wake = std::move(wake)] {
    if (auto strong = weak.lock()) wake(caf::actor_cast<typename State::handle>(strong));
  };
}

/// Ends an actor, but not on a thread that was lent: its state may own that, so its watchers would hear of the end before the state is gone.
/// There it ends by its next message.
template <class Self>
void quit_with(Self* self, caf::error reason) {
  if (!LentThread::is_lent()) return self->quit(std::move(reason));
  self->eq_impl(caf::make_message_id(caf::message_priority::high), nullptr, self->context(), caf::exit_msg{self->address(), std::move(reason)});
}

/// For a thread that the actor owns and that often waits for its answer: tells the actor this message. In production an idle actor runs
/// on the thread that tells it, so that neither waits until the system has woken it. The thread must hold no lock then.
/// REQUIRES: the actor ends by a message or by itself, not because its last handle goes.
template <class State, class Message>
std::function<void()> waker_here(self_ptr<State> self, Message message) {
  using handle = typename State::handle;
  const bool simulated = caf::get_or(self->system().config(), "scheduler.policy", kSharing) != kSharing;
  if (simulated) return waker<State>(self, [message](const handle& me) { post(me, message); });
  self->set_exit_handler([self](caf::exit_msg& asked) { quit_with(self, std::move(asked.reason)); });
  auto thread = std::make_shared<LentThread>(self->system());
  return waker<State>(self, [thread, message](const handle& me) { thread->tell(me, message); });
}

/// The state of a living actor, for tests on one thread.
template <class State>
State& look(const typename State::handle& handle) {
  auto* self = dynamic_cast<self_ptr<State>>(caf::actor_cast<caf::abstract_actor*>(handle));
  SEER_CHECK(self != nullptr, State::kActorName);
  return *self->state.state;
}

// ---- lifetime ------------------------------------------------------------------------------------------------------
template <class Handle>
void stop(const Handle& handle) { caf::anon_send_exit(handle, caf::exit_reason::user_shutdown); }
/// Ends an actor at once, as a crash would: for failure tests.
template <class Handle>
void kill(const Handle& handle) { caf::anon_send_exit(handle, caf::exit_reason::kill); }

/// Ends the actor with a reason that its watchers can read: reason_text().
template <class Self>
void quit(Self* self, const std::string& why) { quit_with(self, caf::make_error(caf::sec::runtime_error, why)); }
/// Ends the actor normally: nothing is left to do.
template <class Self>
void quit(Self* self) { quit_with(self, caf::exit_reason::normal); }
/// Whether an actor has ended normally.
inline bool ended_in_order(const down& message) { return !message.reason || message.reason == caf::exit_reason::normal; }
/// The reason that the actor gave to quit(), or `otherwise` if it gave none.
inline std::string reason_text(const down& message, std::string otherwise = {}) {
  if (message.reason != caf::sec::runtime_error) return otherwise;
  std::string text = std::move(otherwise);
  const caf::message& context = message.reason.context();
  if (context.match_elements<std::string>()) text = context.get_as<std::string>(0);
  return text;
}

template <class Self, class Handle>
void monitor(Self* self, const Handle& handle) { self->monitor(handle); }
template <class Self, class F>
void on_down(Self* self, F handler) { self->set_down_handler(std::move(handler)); }
template <class Handle>
bool is_source(const down& message, const Handle& handle) { return handle && message.source == handle.address(); }

// ---- a world with real threads ---------------------------------------------------------------------------------------
/// Config of an actor system for production: a central queue with sleeping workers (no polling between steps).
struct config : caf::actor_system_config {
  explicit config(size_t threads = 2) {
    set("scheduler.policy", kSharing);
    set("scheduler.max-threads", threads);
    set("logger.console", caf::atom("none"));
  }
};

/// Lets a thread that is not an actor (main, a test) talk with actors: it has a handle, and receives on demand. Without a Handle
/// type it can only ask and monitor.
template <class Handle = caf::actor>
class Inbox {
 public:
  explicit Inbox(system& sys) : self_(sys) {}
  Handle handle() { return caf::actor_cast<Handle>(self_); }
  /// When that actor ends, receive() gets an rt::down.
  template <class Other>
  void monitor(const Other& other) { self_->monitor(other); }
  /// Waits at most timeout_us for one message and calls the handler that takes it. False: none came.
  template <class... Handlers>
  bool receive(int64_t timeout_us, Handlers&&... handlers) {
    bool got = true;
    self_->receive(std::forward<Handlers>(handlers)...,
                   caf::after(std::chrono::microseconds(timeout_us)) >> [&] { got = false; });
    return got;
  }
  /// Asks and waits. Returns `otherwise` if the peer is silent or gone; sets `answered`, if given, to whether it answered.
  template <class Answer, class Dest, class Question>
  Answer ask(const Dest& to, Question question, Answer otherwise = {}, bool* answered = nullptr) {
    bool came = false;
    self_->request(to, std::chrono::microseconds(kControlTimeoutUs), std::move(question))
        .receive(
            [&](Answer& answer) {
              otherwise = std::move(answer);
              came = true;
            },
            [](const caf::error&) {});
    if (answered != nullptr) *answered = came;
    return otherwise;
  }

 private:
  caf::scoped_actor self_;
};

}  // namespace seer::rt

// Every struct with SEER_FIELDS is a message: all fields, in order. Defined in protocols/messages.cpp alone: compiling it for all
// messages takes half a minute.
namespace seer {
template <class Inspector, HasFields T>
typename Inspector::result_type inspect(Inspector& f, T& x);
}  // namespace seer
