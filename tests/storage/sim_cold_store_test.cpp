#include "storage/sim_cold_store.h"

#include <doctest/doctest.h>

#include <deque>
#include <map>
#include <optional>
#include <string>

using namespace seer;

namespace {

constexpr int64_t kBytes = 64;

BlockKey key(uint64_t n, uint64_t version = 1) { return {WeightVersion{version}, 7, {n, n}}; }

/// A store on a clock that moves from timer to timer. The log says what was answered, and when.
struct Bench {
  explicit Bench(SimColdStoreConfig config = {.latency_us = 10, .write_bytes_per_s = 64'000'000, .read_bytes_per_s = 64'000'000},
                 SimColdFaults faults = {})
      : store(std::in_place, config,
              [this](int64_t us, std::function<void()> f) { timers.emplace(std::pair{now_us + us, ++count}, std::move(f)); },
              std::move(faults)) {}
  void run() {
    while (!timers.empty()) {
      auto timer = timers.extract(timers.begin());
      now_us = timer.key().first;
      timer.mapped()();
    }
  }
  ColdBlock block(uint64_t n, char fill, uint64_t version = 1) {
    std::vector<std::byte>& bytes = memory.emplace_back(kBytes, std::byte(fill));
    return {key(n, version), bytes, crc32c(bytes)};
  }
  ColdStore::Done note(const std::string& name) {
    return [this, name](std::vector<Status> statuses, std::vector<ColdBlock> blocks) {
      log += cat(name, "@", now_us, ":");
      for (const Status& s : statuses) log += s.ok() ? "ok," : cat(to_string(s.error().code), ",");
      got = std::move(blocks);
    };
  }
  std::string take_log() { return std::exchange(log, {}); }

  int64_t now_us = 0;
  uint64_t count = 0;
  std::map<std::pair<int64_t, uint64_t>, std::function<void()>> timers;
  std::deque<std::vector<std::byte>> memory;
  std::string log;
  std::vector<ColdBlock> got;
  std::optional<SimColdStore> store;
};

}  // namespace

TEST_CASE("sim cold store: operations take turns, each its latency and its bytes' time") {
  Bench b;
  CHECK(b.store->put({b.block(1, 'a'), b.block(2, 'b')}, b.note("put")).ok());
  CHECK(b.store->get({b.block(1, 0), b.block(3, 0)}, b.note("get")).ok());
  CHECK(b.log.empty());  // never from inside the call
  b.run();
  CHECK(b.take_log() == "put@12:ok,ok,get@24:ok,not_found,");
  CHECK(b.got[0].bytes[5] == std::byte('a'));
  CHECK(b.got[0].crc32c == crc32c(b.got[0].bytes));
  CHECK(b.store->stats().used_bytes == 2 * kBytes);
  CHECK(b.store->stats().written_bytes == 2 * kBytes);
  CHECK(b.store->stats().read_bytes == kBytes);
}

TEST_CASE("sim cold store: what has no room is refused, what was there stays, and erased room is used again") {
  Bench b({.capacity_bytes = 2 * kBytes});
  (void)b.store->put({b.block(1, 'a'), b.block(2, 'b'), b.block(3, 'c')}, b.note("put"));
  b.store->erase({key(1), key(77)});
  (void)b.store->put({b.block(4, 'd')}, b.note("again"));
  (void)b.store->get({b.block(1, 0), b.block(2, 0), b.block(4, 0)}, b.note("get"));
  b.run();
  CHECK(b.log.find(":ok,ok,full,") != std::string::npos);
  CHECK(b.log.find(":not_found,ok,ok,") != std::string::npos);
  CHECK(b.store->stats().used_bytes == 2 * kBytes);
}

TEST_CASE("sim cold store: dropped versions are gone, and no later put of them is taken") {
  Bench b;
  (void)b.store->put({b.block(1, 'a', 1), b.block(1, 'b', 2)}, b.note("put"));
  b.store->drop_versions_below({2});
  (void)b.store->get({b.block(1, 0, 1), b.block(1, 0, 2)}, b.note("get"));
  (void)b.store->put({b.block(2, 'c', 1)}, b.note("late"));
  b.run();
  CHECK(b.log.find(":not_found,ok,") != std::string::npos);
  CHECK(b.log.ends_with(":stale,"));
  CHECK(b.store->stats().used_bytes == kBytes);
}

TEST_CASE("sim cold store: corrupt puts are refused, a get that is to be corrupt hands out bytes with one bit flipped") {
  int gets = 0;
  Bench b({}, {.put = {}, .get = [&](const BlockKey&) -> std::optional<Code> {
             return gets++ == 0 ? std::optional(Code::kCorrupt) : std::nullopt;
           }});
  ColdBlock wrong = b.block(1, 'a');
  wrong.crc32c ^= 1;
  (void)b.store->put({wrong, b.block(2, 'b')}, b.note("put"));
  (void)b.store->get({b.block(2, 0)}, b.note("get"));
  b.run();
  CHECK(b.log.find(":corrupt,ok,") != std::string::npos);
  CHECK(b.log.ends_with(":ok,"));
  const std::vector<std::byte> right(kBytes, std::byte('b'));
  CHECK(b.got[0].crc32c != crc32c(right));  // which is how a reader notices
}

TEST_CASE("sim cold store: the queue is bounded, erasing does not count, and nothing is answered after its end") {
  Bench b({.queue_max = 2});
  CHECK(b.store->put({b.block(1, 'a')}, b.note("put")).ok());
  b.store->erase({key(9)});
  CHECK(b.store->get({b.block(1, 0)}, b.note("get")).ok());
  CHECK(b.store->get({b.block(1, 0)}, b.note("more")).error().code == Code::kFull);
  b.store.reset();
  b.run();
  CHECK(b.log.empty());
}
