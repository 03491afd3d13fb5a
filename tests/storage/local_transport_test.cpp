#include "storage/local_transport.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "storage/arena_pair.h"

using namespace seer;

namespace {

constexpr int64_t kLongUs = 3'600'000'000;

struct Bench : ArenaPair {
  Bench() { CHECK(open(transport).ok()); }
  std::future<FetchResult> start(std::vector<RemoteSlot> slots, int64_t timeout_us = kLongUs) {
    std::vector<Fetch> fetches;
    for (const RemoteSlot& s : slots) fetches.push_back(fetch_of(s));
    auto promise = std::make_shared<std::promise<FetchResult>>();
    CHECK(transport.fetch(fetches, timeout_us, {[promise](FetchResult r) { promise->set_value(std::move(r)); }, {}}).ok());
    return promise->get_future();
  }
  LocalTransport transport;  // last: its thread uses the arenas
};

}  // namespace

TEST_CASE("local transport: a fetch brings the bytes over") {
  Bench b;
  const FetchResult result = b.start({b.good}).get();
  CHECK(result.statuses[0].ok());
  CHECK_FALSE(result.still_writing);
  CHECK(b.is_copied());
}

TEST_CASE("local transport: each block of a fetch has its own status") {
  Bench b;
  RemoteSlot generation = b.good, crc = b.good;
  generation.generation = 99;
  crc.crc32c ^= 1;
  const FetchResult result = b.start({generation, b.good, crc}).get();
  CHECK(result.statuses[0].error().code == Code::kStale);
  CHECK(result.statuses[1].ok());
  CHECK(result.statuses[2].error().code == Code::kCorrupt);
}

TEST_CASE("local transport: a fetch that is late fails, and writes nothing") {
  Bench b;
  const FetchResult result = b.start({b.good, b.good}, 0).get();
  for (const Status& status : result.statuses) CHECK(status.error().code == Code::kUnavailable);
  CHECK(result.statuses[0].error().detail == "transport: node 1 sent nothing within 0 us");
  CHECK_FALSE(result.still_writing);
  CHECK_FALSE(b.is_copied());
}

TEST_CASE("local transport: a fetch that waits behind others is not late") {
  Bench b;
  std::promise<void> entered, go;
  CHECK(b.transport.fetch({}, kLongUs, {[&](auto) { entered.set_value(), go.get_future().wait(); }, {}}).ok());
  entered.get_future().wait();  // the thread is held
  std::future<FetchResult> queued = b.start({b.good}, 1'000'000);
  std::this_thread::sleep_for(std::chrono::milliseconds(1'100));
  go.set_value();
  CHECK(queued.get().statuses[0].ok());
}

TEST_CASE("local transport: closing a peer fails its queued fetches, and after opening it again fetches work") {
  Bench b;
  std::promise<void> entered, go;
  CHECK(b.transport.fetch({}, kLongUs, {[&](auto) { entered.set_value(), go.get_future().wait(); }, {}}).ok());
  entered.get_future().wait();  // the thread is held
  std::future<FetchResult> queued = b.start({b.good});
  b.transport.close_peer(b.kNode, b.kEpoch);
  go.set_value();
  CHECK(queued.get().statuses[0].error().code == Code::kUnavailable);
  CHECK_FALSE(b.is_copied());
  CHECK(b.open(b.transport).ok());
  CHECK(b.start({b.good}).get().statuses[0].ok());
}

TEST_CASE("local transport: the queue is bounded, and every accepted fetch is answered once, also at the end") {
  std::atomic<int> answered{0};
  int accepted = 0;
  {
    LocalTransport transport({.queue_max = 3});
    std::promise<void> entered, go;
    auto wait_for_go = go.get_future().share();
    CHECK(transport.fetch({}, kLongUs, {[&, wait_for_go](auto) { entered.set_value(), wait_for_go.wait(), ++answered; }, {}}).ok());
    entered.get_future().wait();  // the thread is held in the first one
    for (int i = 0; i < 5; ++i)
      accepted += transport.fetch({}, kLongUs, {[&](auto) { ++answered; }, {}}).ok() ? 1 : 0;
    CHECK(accepted == 3);
    go.set_value();
  }
  CHECK(answered == 1 + accepted);
}
