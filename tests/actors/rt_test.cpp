#include "protocols/rt.h"

#include <doctest/doctest.h>

#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "actors/recorder.h"
#include "protocols/workers.h"

using namespace seer;

namespace {

/// Has a report, and may end when it hears of an estimate.
struct Reporter {
  using handle = rt::iface<rt::oneway<GroupEstimate>, rt::rpc<GetReport, DraftServerReport>>;
  static constexpr const char* kActorName = "reporter";
  Reporter(rt::self_ptr<Reporter> self_in, int64_t groups_in, std::shared_ptr<int> alive_in)
      : self(self_in), groups(groups_in), alive(std::move(alive_in)) {}
  handle::behavior_type make_behavior() {
    return {[this](const GroupEstimate&) { rt::quit(self, "out of groups"); },
            [this](const GetReport&) { return DraftServerReport{.groups = groups}; }};
  }
  rt::self_ptr<Reporter> self;
  int64_t groups;
  std::shared_ptr<int> alive;
};
/// Has a thread whose work wakes it. It may end then, or wait until it may go on.
struct Owner {
  using handle = EstimateSink;
  static constexpr const char* kActorName = "owner";
  using Thread = std::promise<std::thread::id>;
  struct Places {
    Thread worked, woken, ended;
    std::promise<void> may_work, waits, may_go_on, heard;
    bool is_heard_early = false;  // a watcher heard of the end while the state was there
  };
  enum class Then : uint8_t { kLives, kEnds, kWaits };

  Owner(rt::self_ptr<Owner> self_in, Places* places_in, Then then_in) : self(self_in), places(places_in), then(then_in) {
    outbox.set_wake(rt::waker_here<Owner>(self, GroupEstimate{.estimated_tokens = 1}));
  }
  ~Owner() {
    thread.reset();  // waits for it
    if (then == Then::kEnds) places->is_heard_early = places->heard.get_future().wait_for(std::chrono::milliseconds(50)) == std::future_status::ready;
    places->ended.set_value(std::this_thread::get_id());
  }
  handle::behavior_type make_behavior() {
    return {[this](const GroupEstimate& message) {
      if (message.estimated_tokens == 0) {
        if (then != Then::kWaits) return;
        places->waits.set_value();
        return places->may_go_on.get_future().wait();
      }
      places->woken.set_value(std::this_thread::get_id());
      if (then == Then::kEnds) rt::quit(self);
    }};
  }

  rt::self_ptr<Owner> self;
  Places* places;
  Then then;
  Outbox<int> outbox;
  std::unique_ptr<std::jthread> thread = std::make_unique<std::jthread>([this] {
    places->may_work.get_future().wait();
    outbox.put(0);
    places->worked.set_value(std::this_thread::get_id());
  });
};

void wait_until_idle(const Owner::handle& owner) {
  auto* const actor = dynamic_cast<caf::scheduled_actor*>(caf::actor_cast<caf::abstract_actor*>(owner));
  while (!actor->mailbox().blocked()) std::this_thread::yield();
}

using Reports = std::vector<DraftServerReport>;
using Reporters = std::map<uint32_t, Reporter::handle>;

/// The groups in the answers of all reporters; {-1} while there is no answer.
std::vector<int64_t> gathered(SimWorld& world, const Reporters& reporters, int64_t wait_us) {
  std::vector<int64_t> groups{-1};
  world.system.spawn([&](caf::event_based_actor* self, char) {  // the unused argument: see rt::spawn()
    rt::gather_then<Reports>(self, reporters, GetReport{}, [&](const Reports& reports) {
      groups.clear();
      for (const DraftServerReport& report : reports) groups.push_back(report.groups);
    });
  }, char{});
  world.run_until(world.now_us() + wait_us);
  return groups;
}

}  // namespace

TEST_CASE("rt: gather answers in the order of the map, at once if there is nobody to ask, without those who are gone") {
  SimWorld world;
  const auto alive = std::make_shared<int>();
  Reporters reporters;
  CHECK(gathered(world, reporters, 0).empty());
  for (const uint32_t id : {7, 2, 5}) reporters[id] = world.spawn<Reporter>(int64_t{id}, alive);
  CHECK(gathered(world, reporters, 0) == std::vector<int64_t>{2, 5, 7});
  rt::kill(reporters[5]);
  world.run_until(world.now_us());
  CHECK(gathered(world, reporters, rt::kControlTimeoutUs) == std::vector<int64_t>{2, 7});
}

TEST_CASE("rt: a monitor hears that an actor ended, and why if it said so") {
  for (const bool says : {true, false}) {
    CAPTURE(says);
    SimWorld world;
    const auto alive = std::make_shared<int>();
    const auto watched = world.spawn<Reporter>(int64_t{1}, alive), other = world.spawn<Reporter>(int64_t{2}, alive);
    std::string reason = "none";
    bool is_watched = false, is_other = true;
    // Kept: an actor without a handle ends.
    const caf::actor watcher = world.system.spawn([&](caf::event_based_actor* self, char) -> caf::behavior {
      rt::on_down(self, [&, self](const rt::down& message) {
        reason = rt::reason_text(message);
        is_watched = rt::is_source(message, watched);
        is_other = rt::is_source(message, other) || rt::is_source(message, Reporter::handle{});
        self->quit();
      });
      rt::monitor(self, watched);
      return {[](const Tick&) {}};
    }, char{});
    world.run_until(0);
    if (says) rt::post(watched, GroupEstimate{});
    else rt::kill(watched);
    world.run_until(10);
    CHECK(reason == (says ? "out of groups" : ""));
    CHECK(is_watched);
    CHECK_FALSE(is_other);
    CHECK_MESSAGE(alive.use_count() == 2, "the state of the one that ended is gone, that of the other is not");
  }
}

TEST_CASE("rt: a waker reaches its actor while that lives, and does not keep it alive") {
  SimWorld world;
  const auto alive = std::make_shared<int>();
  const auto reporter = world.spawn<Reporter>(int64_t{1}, alive);
  world.run_until(0);
  int woken = 0;
  const auto wake = rt::waker<Reporter>(rt::look<Reporter>(reporter).self, [&](const Reporter::handle& handle) {
    CHECK(handle == reporter);
    ++woken;
  });
  wake();
  CHECK(woken == 1);
  rt::kill(reporter);
  world.run_until(10);
  CHECK(alive.use_count() == 1);
}

TEST_CASE("rt: an inbox gets what is sent to it, says that nothing came, and asks who may be gone") {
  rt::config config;
  add_messages(config);
  rt::system system(config);
  rt::Inbox<EstimateSink> inbox(system);
  uint32_t got = 0;
  const auto take = [&](const GroupEstimate& estimate) { got = estimate.group.index; };
  CHECK_FALSE(inbox.receive(0, take));
  rt::post(inbox.handle(), GroupEstimate{GroupId{8}, 0});
  CHECK(inbox.receive(60'000'000, take));
  CHECK(got == 8);

  const auto alive = std::make_shared<int>();
  const auto reporter = rt::spawn<Reporter>(system, int64_t{3}, alive);
  CHECK(inbox.ask<DraftServerReport>(reporter, GetReport{}).groups == 3);
  rt::kill(reporter);
  CHECK(inbox.ask<DraftServerReport>(reporter, GetReport{}, DraftServerReport{.groups = -1}).groups == -1);
}

TEST_CASE("rt: a thread of an idle actor runs it itself, but does not end it, and watchers hear of its end when its state is gone") {
  const std::thread::id here = std::this_thread::get_id();
  for (const auto then : {Owner::Then::kLives, Owner::Then::kEnds, Owner::Then::kWaits}) {
    CAPTURE(static_cast<int>(then));
    Owner::Places places;
    {
      rt::config config;
      add_messages(config);
      rt::system system(config);
      rt::Inbox<> watcher(system);
      const Owner::handle owner = rt::spawn<Owner>(system, &places, then);
      watcher.monitor(owner);
      rt::post(owner, GroupEstimate{});
      if (then == Owner::Then::kWaits)
        places.waits.get_future().wait();
      else
        wait_until_idle(owner);
      places.may_work.set_value();
      const std::thread::id worked = places.worked.get_future().get();
      if (then == Owner::Then::kWaits) places.may_go_on.set_value();
      const bool is_same = places.woken.get_future().get() == worked;
      CHECK(is_same == (then != Owner::Then::kWaits));
      if (then != Owner::Then::kEnds) rt::stop(owner);
      CHECK(watcher.receive(60'000'000, [&](const rt::down& down) { CHECK(rt::ended_in_order(down) == (then == Owner::Then::kEnds)); }));
      places.heard.set_value();
      CHECK_FALSE(places.is_heard_early);
      const std::thread::id ended = places.ended.get_future().get();
      CHECK(ended != worked);
      CHECK(ended != here);
    }
  }
}

TEST_CASE("rt: in a simulated world an actor is told, and runs in its turn") {
  SimWorld world;
  Owner::Places places;
  const auto owner = world.spawn<Owner>(&places, Owner::Then::kLives);
  world.run_until(0);
  auto woken = places.woken.get_future();
  places.may_work.set_value();
  places.worked.get_future().wait();
  CHECK(woken.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
  world.run_until(0);
  CHECK(woken.get() == std::this_thread::get_id());
  rt::kill(owner);
  world.run_until(10);
}
