#include "actors/policy/schedule/ledger_scheduler.h"

#include <doctest/doctest.h>

#include <set>

#include "policy/schedule/scheduler_desk.h"

using namespace seer;

namespace {

/// Does what every policy does, and places nothing.
class NoOrder final : public LedgerScheduler {
 public:
  NoOrder() : LedgerScheduler({.chunk_tokens = 32, .reserve_share = 1.0, .headroom_tokens = 0}, 32) {}
  using LedgerScheduler::queued;
  ChunkLedger& ledger() { return ledger_; }

  Status add_group(const GroupSpec& group, int64_t now_us) override { return ledger_.add_group(group, now_us); }
  std::optional<Placement> next(int64_t) override { return std::nullopt; }
  void chunk_ended(RequestId id, int64_t generated_tokens, ChunkEnd end, int64_t now_us) override {
    ledger_.ended(id, generated_tokens, end, now_us);
  }
  void cancel(RequestId id, int64_t now_us) override { ledger_.cancel(id, now_us); }
};

}  // namespace

TEST_CASE("ledger scheduler: a higher priority is served first, then the lower rank, then the lower id") {
  NoOrder scheduler;
  for (const auto& [id, priority] : {std::pair{0u, -1}, {1u, 0}, {2u, 5}}) {
    GroupSpec group = group_of({.id = id, .samples = 2});
    group.priority = priority;
    REQUIRE(scheduler.add_group(group, 0).ok());
  }
  std::set<WaitingRequest> order;
  const auto wait = [&](RequestId id, uint64_t rank) { order.insert(scheduler.queued(scheduler.requests().at(id), rank)); };
  wait(request(0, 0), 1);
  wait(request(1, 1), 7);
  wait(request(1, 0), 7);
  wait(request(2, 0), 9);
  wait(request(2, 1), 8);
  Order served;
  for (const WaitingRequest& next : order) served.push_back(next.request);
  CHECK(served == Order{request(2, 1), request(2, 0), request(1, 0), request(1, 1), request(0, 0)});
}

TEST_CASE("ledger scheduler: instances, growth and estimates are noted in the ledger") {
  NoOrder scheduler;
  REQUIRE(scheduler.add_instance({.id = {0}, .node = {0}, .kv_blocks = 100, .rows_max = 8}).ok());
  REQUIRE(scheduler.add_group(group_of({.samples = 2}), 0).ok());
  scheduler.estimate_changed({0}, 70);
  CHECK(scheduler.requests().group({0}).estimated_tokens == 70);

  const ChunkLedger& ledger = scheduler.ledger();
  scheduler.ledger().start(scheduler.requests().at(request(0, 0)), {0}, 0);
  const int64_t promised_blocks = ledger.picker().used_blocks({0});
  scheduler.progressed(request(0, 0), 31);
  CHECK(ledger.picker().used_blocks({0}) == promised_blocks);
  scheduler.progressed(request(0, 0), 100);
  CHECK(ledger.picker().used_blocks({0}) > promised_blocks);
  CHECK(scheduler.requests().at(request(0, 0)).generated_tokens == 100);
  scheduler.chunk_ended(request(0, 0), 100, ChunkEnd::kFinished, 1);

  CHECK(scheduler.stalled().ok());
  scheduler.remove_instance({0});
  REQUIRE_FALSE(scheduler.stalled().ok());
  CHECK(scheduler.stalled().error().code == Code::kUnavailable);
  REQUIRE(scheduler.add_instance({.id = {1}, .node = {0}, .kv_blocks = 2, .rows_max = 8}).ok());
  scheduler.ledger().start(scheduler.requests().at(request(0, 1)), {1}, 0);
  scheduler.chunk_ended(request(0, 1), 40, ChunkEnd::kYielded, 2);
  REQUIRE(scheduler.stuck().size() == 1);
  CHECK(scheduler.stuck()[0].request == request(0, 1));
}

TEST_CASE("ledger scheduler: a chunk is promised what the configuration says, and the headroom of all policies") {
  const KvPromise promise = chunk_promise({.chunk_tokens = 77, .reserve_share = 0.3});
  CHECK(promise.chunk_tokens == 77);
  CHECK(promise.reserve_share == 0.3);
  CHECK(promise.headroom_tokens == kHeadroomTokens);
}

TEST_CASE("ledger scheduler: a request goes on before others of its priority until its turn is over") {
  for (const std::string policy : {"seer+", "seer", "las", "divided-rr"}) {
    CAPTURE(policy);
    SchedulerDesk desk(policy, {.chunk_tokens = 32, .reserve_share = 1.0, .turn_tokens = 64});
    desk.instance(0, 100, 1).group({.id = 0, .samples = 3});
    const auto order = desk.serve(6, 32);
    for (size_t turn = 0; turn < 6; turn += 2) CHECK(order[turn] == order[turn + 1]);
    CHECK(std::set<RequestId>(order.begin(), order.end()).size() == (policy == "seer" ? 1 : 3));  // it runs the probe first
  }
}
