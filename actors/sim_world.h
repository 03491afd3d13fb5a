// SimWorld: the same actors on one thread and a virtual clock: time jumps to the next event. With a seed, runnable actors
// take turns in a random (repeatable) order; without one, in order of arrival. Used by tests and by simulation.
//
// One of the three places that name version-specific CAF API (see protocols/rt.h).
#pragma once
#include <caf/scheduler/test_coordinator.hpp>
#include <functional>
#include <map>
#include <random>
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
    timers_ = spawn<Timers>(this);
  }

  /// Kills what spawn() made, then drops virtual timers. Without both, the system would wait for ever: for live actors,
  /// and for timers that they keep setting.
  ~SimWorld() {
    for (auto& a : owned_) caf::anon_send_exit(caf::actor_cast<caf::actor>(a), caf::exit_reason::kill);
    owned_.clear();
    timers_ = nullptr;
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

  /// Runs `work` after a virtual delay: the timer of simulated engines, stores and transports.
  void after(int64_t delay_us, std::function<void()> work) {
    pending_.emplace(next_timer_, std::move(work));
    rt::post(timers_, TimerSet{next_timer_++, delay_us});
  }

  /// Runs until `until_us` (from the start) or until nothing is left to do. Returns the number of messages handled.
  uint64_t run_until(int64_t until_us) {
    auto& clock = sched_.clock();
    const auto limit = epoch_ + std::chrono::duration_cast<caf::actor_clock::duration_type>(
                                    std::chrono::microseconds(until_us));
    uint64_t handled = settle();
    while (clock.has_pending_timeout() && clock.schedule().begin()->first <= limit) {
      clock.trigger_timeout();
      handled += settle();
    }
    if (clock.current_time < limit) clock.current_time = limit;
    return handled;
  }
  int64_t now_us() const {
    return std::chrono::duration_cast<std::chrono::microseconds>(sched_.clock().current_time - epoch_).count();
  }

 private:
  struct Config : caf::actor_system_config {
    Config() {
      add_message_types<caf::id_block::seer>();
      set("scheduler.policy", caf::atom("testing"));
      set("logger.console", caf::atom("none"));
    }
  };
  struct Timers {
    using handle = TimerHandle;
    static constexpr const char* kActorName = "timers";
    Timers(rt::self_ptr<Timers> self_in, SimWorld* world_in) : self(self_in), world(world_in) {}
    handle::behavior_type make_behavior() {
      return {[this](const TimerSet& set) { rt::tell_after(self, set.delay_us, handle{self}, Tick{set.timer}); },
              [this](const Tick& tick) {
                auto node = world->pending_.extract(tick.what);
                if (!node.empty()) node.mapped()();
              }};
    }
    rt::self_ptr<Timers> self;
    SimWorld* world;
  };

  uint64_t settle() {
    uint64_t handled = 0;
    for (; !sched_.jobs.empty(); ++handled) {
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
  TimerHandle timers_;
  uint64_t next_timer_ = 1;
  std::map<uint64_t, std::function<void()>> pending_;
};

}  // namespace seer
