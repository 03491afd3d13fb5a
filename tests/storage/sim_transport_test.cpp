#include "storage/sim_transport.h"

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <optional>
#include <random>

#include "storage/arena_pair.h"

using namespace seer;

namespace {

/// A clock that moves from timer to timer.
class Timers {
 public:
  SimTransport::Schedule schedule() {
    return [this](int64_t delay_us, std::function<void()> f) { timers_.emplace(std::pair{now_us + delay_us, ++count_}, std::move(f)); };
  }
  void run_until(int64_t us) {
    while (!timers_.empty() && timers_.begin()->first.first <= us) {
      auto timer = timers_.extract(timers_.begin());
      now_us = timer.key().first;
      timer.mapped()();
    }
    now_us = us;
  }
  int64_t now_us = 0;

 private:
  uint64_t count_ = 0;
  std::map<std::pair<int64_t, uint64_t>, std::function<void()>> timers_;
};

/// What became of one fetch.
struct Seen {
  int done = 0, quiet = 0;
  int64_t done_us = 0, quiet_us = 0;
  FetchResult result;
};

struct Bench : ArenaPair {
  explicit Bench(SimTransportConfig config) : transport(std::in_place, std::move(config), timers.schedule()) {
    CHECK(open(*transport).ok());
  }
  FetchEvents note(Seen& seen) {
    return {[this, &seen](FetchResult r) { ++seen.done, seen.done_us = timers.now_us, seen.result = std::move(r); },
            [this, &seen] { ++seen.quiet, seen.quiet_us = timers.now_us; }};
  }
  void start(Seen& seen, int64_t timeout_us) { CHECK(transport->fetch({fetch_of(good)}, timeout_us, note(seen)).ok()); }

  Timers timers;
  std::optional<SimTransport> transport;
};

const SimTransportConfig kSlow{.latency_us = 100, .bytes_per_s = 256'000};  // a block: 100 us + 1000 us

}  // namespace

TEST_CASE("sim transport: the bytes come after their time on the network, and not before") {
  Bench b(kSlow);
  Seen seen;
  b.start(seen, 10'000);
  b.timers.run_until(1099);
  CHECK(seen.done == 0);
  CHECK_FALSE(b.is_copied());
  b.timers.run_until(1100);
  CHECK(seen.done == 1);
  CHECK(seen.result.statuses[0].ok());
  CHECK_FALSE(seen.result.still_writing);
  CHECK(b.is_copied());
  b.timers.run_until(100'000);
  CHECK(seen.done == 1);
  CHECK(seen.quiet == 0);
}

TEST_CASE("sim transport: a late fetch has failed at its deadline, writes afterwards, and says when it will write no more") {
  Bench b(kSlow);
  Seen seen;
  b.start(seen, 400);
  b.timers.run_until(500);
  CHECK(seen.done == 1);
  CHECK(seen.done_us == 400);
  CHECK(seen.result.still_writing);
  CHECK(seen.result.statuses[0].error().code == Code::kUnavailable);
  CHECK(seen.quiet == 0);
  CHECK_FALSE(b.is_copied());
  b.timers.run_until(5000);
  CHECK(b.is_copied());  // which is why its slot must not be used meanwhile
  CHECK(seen.done == 1);
  CHECK(seen.quiet == 1);
  CHECK(seen.quiet_us == 1100);
}

TEST_CASE("sim transport: a fetch that waits behind others is not late while these come") {
  SimTransportConfig config = kSlow;
  Timers* timers = nullptr;
  config.now_us = [&timers] { return timers->now_us; };
  Bench b(config);
  timers = &b.timers;
  std::vector<Seen> seen(5);
  for (Seen& s : seen) b.start(s, 1'200);
  b.timers.run_until(100'000);
  for (size_t i = 0; i < seen.size(); ++i) {
    CHECK(seen[i].done_us == 100 + 1000 * static_cast<int64_t>(i + 1));
    CHECK(seen[i].result.statuses[0].ok());
  }
}

TEST_CASE("sim transport: closing a peer ends its fetches at once, late ones too, and nothing is written any more") {
  Bench b(kSlow);
  Seen open, late;
  b.start(open, 10'000);
  b.start(late, 400);
  b.timers.run_until(500);
  b.transport->close_peer(b.kNode, b.kEpoch - 1);  // another epoch
  CHECK(open.done == 0);
  b.transport->close_peer(b.kNode, b.kEpoch);
  CHECK(open.done == 1);
  CHECK(open.result.statuses[0].error().code == Code::kUnavailable);
  CHECK_FALSE(open.result.still_writing);
  CHECK(late.quiet == 1);
  b.timers.run_until(100'000);
  CHECK_FALSE(b.is_copied());
  CHECK(open.done == 1);
  CHECK(open.quiet == 0);
  CHECK(late.done == 1);
  CHECK(late.quiet == 1);
}

TEST_CASE("sim transport: fetches open at its end are answered then, and timers that fire later do nothing") {
  Bench b(kSlow);
  Seen open, late;
  b.start(open, 10'000);
  b.start(late, 400);
  b.timers.run_until(500);
  b.transport.reset();
  CHECK(open.result.statuses[0].error().code == Code::kCancelled);
  b.timers.run_until(100'000);
  CHECK(open.done == 1);
  CHECK(late.done == 1);
  CHECK(late.quiet == 1);
  CHECK_FALSE(b.is_copied());
}

TEST_CASE("sim transport: a late fetch counts as open until it is quiet") {
  SimTransportConfig config = kSlow;
  config.queue_max = 1;
  Bench b(config);
  Seen late, refused, next;
  b.start(late, 400);
  b.timers.run_until(500);
  CHECK(b.transport->fetch({b.fetch_of(b.good)}, 400, b.note(refused)).error().code == Code::kFull);
  b.timers.run_until(1100);
  b.start(next, 10'000);
  b.timers.run_until(100'000);
  CHECK(refused.done == 0);
  CHECK(next.result.statuses[0].ok());
}

TEST_CASE("sim transport: faults and lateness come from the hooks") {
  SimTransportConfig config = kSlow;
  int asked = 0;
  config.fault = [&](const RemoteSlot&) -> std::optional<Code> { return asked++ == 0 ? std::optional(Code::kCorrupt) : std::nullopt; };
  config.late_us = [] { return 50; };
  Bench b(config);
  Seen first, second;
  b.start(first, 10'000);
  b.start(second, 10'000);
  b.timers.run_until(100'000);
  CHECK(first.result.statuses[0].error().code == Code::kCorrupt);
  CHECK(second.result.statuses[0].ok());
  CHECK(second.done_us == 1150);
}

TEST_CASE("sim transport: whatever is late, closed or cancelled, each fetch is done once, and quiet once if it was still writing") {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n)); };
    SimTransportConfig config = kSlow;
    config.late_us = [&] { return below(2000); };
    config.queue_max = 8;
    Bench b(config);
    std::vector<std::unique_ptr<Seen>> accepted;
    for (int step = 0; step < 60; ++step) {
      if (below(3) > 0) {
        auto seen = std::make_unique<Seen>();
        if (b.transport->fetch({b.fetch_of(b.good)}, below(3000), b.note(*seen)).ok()) accepted.push_back(std::move(seen));
      } else if (below(6) == 0) {
        b.transport->close_peer(b.kNode, b.kEpoch);
        CHECK(b.open(*b.transport).ok());
      }
      b.timers.run_until(b.timers.now_us + below(800));
    }
    b.transport.reset();
    b.timers.run_until(b.timers.now_us + 100'000);
    for (const auto& seen : accepted) {
      CHECK(seen->done == 1);
      CHECK(seen->quiet == (seen->result.still_writing ? 1 : 0));
      CHECK(seen->quiet_us >= (seen->quiet > 0 ? seen->done_us : 0));
    }
  }
}

TEST_CASE("sim transport: with a clock, the fetches of a node share its links") {
  for (const bool shared : {false, true}) {
    CAPTURE(shared);
    SimTransportConfig config = kSlow;
    int64_t* now_us = nullptr;
    if (shared) config.now_us = [&now_us] { return *now_us; };
    Bench bench(config);
    now_us = &bench.timers.now_us;
    Seen first, second, later;
    bench.start(first, 10'000);
    bench.start(second, 10'000);
    bench.timers.run_until(5000);
    bench.start(later, 10'000);
    bench.timers.run_until(10'000);
    CHECK(first.done_us == 1100);
    CHECK(second.done_us == (shared ? 2100 : 1100));
    CHECK(later.done_us == 6100);  // the links were free again
  }
}
