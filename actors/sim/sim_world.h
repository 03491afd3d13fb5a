// SimWorld: runs the actors on one thread and a virtual clock, which jumps to the next event. With a seed, runnable actors
// take turns in a random (repeatable) order, and now and then some are late: the next events come first. Without one, they take turns
// in order of arrival, and none is late. Used by tests and by simulation.
//
// One of the three places that name version-specific CAF API (see protocols/rt.h).
#pragma once
#include <caf/scheduler/test_coordinator.hpp>
#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "protocols/actors.h"

namespace seer {

class SimWorld {
 public:
  explicit SimWorld(uint64_t seed = 0)
      : system(config_),
        sched_(dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler())),
        epoch_(sched_.clock().now()),
        rng_(seed),
        shuffle_(seed != 0) {
  }

  /// Kills the actors that spawn() made, then drops virtual timers. Otherwise the system would wait for ever, for live actors
  /// and for the timers that they keep setting.
  ~SimWorld() {
    for (auto& a : owned_) caf::anon_send_exit(caf::actor_cast<caf::actor>(a), caf::exit_reason::kill);
    owned_.clear();
    settle();
    sched_.clock().cancel_all();
    settle();
    system.await_actors_before_shutdown(false);
  }

  template <class State, class... Args>
  typename State::handle spawn(Args... args) {
    auto handle = rt::spawn<State>(system, std::move(args)...);
    owned_.push_back(caf::actor_cast<caf::strong_actor_ptr>(handle));
    return handle;
  }

  /// Asks an actor. Calls `then` with its answer, or `silent` if there is none.
  template <class Answer, class Handle, class Question>
  void ask(const Handle& to, Question question, std::function<void(Answer&)> then, std::function<void()> silent = [] {}) {
    // The unused argument is for CAF 0.17: see rt::spawn().
    system.spawn([=](caf::event_based_actor* self, char) {
      rt::ask(self, to, rt::kControlTimeoutUs, question).then([then](Answer& answer) { then(answer); }, [silent](const caf::error&) { silent(); });
    }, char{});
  }
  /// Calls `then` when the actor has ended.
  template <class Handle>
  void when_over(const Handle& watched, std::function<void(const rt::down&)> then) {
    spawn<EndWatcher>(caf::actor_cast<caf::strong_actor_ptr>(watched), std::move(then));
  }

  /// Runs `work` after a virtual delay: the timer of simulated engines, stores and transports. At equal times, timers of lower
  /// rank come first, then those set first, and then timers of the actors.
  void after_ns(int64_t delay_ns, std::function<void()> work, uint64_t rank = 0) {
    timers_.emplace(std::tuple{now_ns() + delay_ns, rank, next_timer_++}, std::move(work));
  }
  /// The time until which all timers of this rank have fired.
  int64_t fired_ns(uint64_t rank) const { return rank <= rank_now_ ? now_ns() : now_ns() - 1; }
  void after(int64_t delay_us, std::function<void()> work) { after_ns(1000 * delay_us, std::move(work)); }

  /// Runs until `until_us` (from the start), until `done` is true between two events, or until there are no events.
  /// Returns the number of messages handled.
  uint64_t run_until(int64_t until_us, const std::function<bool()>& done = {}) {
    auto& clock = sched_.clock();
    const int64_t limit_ns = 1000 * until_us;
    uint64_t handled = settle();
    while (!done || !done()) {
      const auto [timer_ns, clock_ns] = next_events_ns();
      if (std::min(timer_ns, clock_ns) > limit_ns) {
        if (const uint64_t by_late_ones = settle(); by_late_ones > 0) {
          handled += by_late_ones;
          continue;
        }
        if (!done && now_ns() < limit_ns) clock.current_time = epoch_ + std::chrono::nanoseconds(limit_ns);
        break;
      }
      if (timer_ns <= clock_ns) {
        clock.current_time = epoch_ + std::chrono::nanoseconds(timer_ns);
        rank_now_ = std::get<1>(timers_.begin()->first);
        timers_.extract(timers_.begin()).mapped()();
      } else {
        rank_now_ = kLastRank;
        clock.trigger_timeout();
      }
      handled += settle(true);
    }
    return handled;
  }
  int64_t now_us() const { return now_ns() / 1000; }
  int64_t now_ns() const { return since_epoch_ns(sched_.clock().current_time); }

 private:
  struct Config : caf::actor_system_config {
    Config() {
      add_messages(*this);
      set("scheduler.policy", caf::atom("testing"));
      set("logger.console", caf::atom("none"));
    }
  };
  struct EndWatcher {
    using handle = rt::iface<rt::oneway<Tick>>;
    static constexpr const char* kActorName = "end_watcher";
    EndWatcher(rt::self_ptr<EndWatcher> self, const caf::strong_actor_ptr& watched, std::function<void(const rt::down&)> then) {
      rt::on_down(self, std::move(then));
      rt::monitor(self, watched);
    }
    handle::behavior_type make_behavior() { return {[](const Tick&) {}}; }
  };
  static constexpr uint64_t kLastRank = std::numeric_limits<uint64_t>::max();
  static constexpr int64_t kLateNs = 5'000'000;
  static constexpr uint64_t kLateOf = 16;
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  int64_t since_epoch_ns(caf::actor_clock::time_point t) const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(t - epoch_).count();
  }
  /// Times of the next timer and of the actors' next one.
  std::pair<int64_t, int64_t> next_events_ns() {
    auto& clock = sched_.clock();
    return {timers_.empty() ? kNever : std::get<0>(timers_.begin()->first),
            clock.has_pending_timeout() ? since_epoch_ns(clock.schedule().begin()->first) : kNever};
  }
  /// Whether the actors that could run now wait until after the next event, which is near.
  bool is_late() {
    const auto [timer_ns, clock_ns] = next_events_ns();
    return std::min(timer_ns, clock_ns) - now_ns() <= kLateNs && rng_() % kLateOf == 0;
  }
  /// Lets the actors run until none has work. With `may_be_late` some may be left with theirs.
  uint64_t settle(bool may_be_late = false) {
    uint64_t handled = 0;
    for (; !sched_.jobs.empty(); ++handled) {
      if (shuffle_ && may_be_late && is_late()) break;
      if (shuffle_ && sched_.jobs.size() > 1) std::swap(sched_.jobs.front(), sched_.jobs[rng_() % sched_.jobs.size()]);
      sched_.try_run_once();
    }
    return handled;
  }

  Config config_;

 public:
  rt::system system;

 private:
  caf::scheduler::test_coordinator& sched_;
  caf::actor_clock::time_point epoch_;
  std::mt19937_64 rng_;
  bool shuffle_;
  std::vector<caf::strong_actor_ptr> owned_;
  uint64_t next_timer_ = 1;
  uint64_t rank_now_ = kLastRank;  // of the current event
  std::map<std::tuple<int64_t, uint64_t, uint64_t>, std::function<void()>> timers_;  // by time, rank and order of setting
};

}  // namespace seer
