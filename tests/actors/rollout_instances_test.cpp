#include "actors/rollout_instances.h"

#include <doctest/doctest.h>

using namespace seer;

namespace {

constexpr InstanceId kFirst{0}, kSecond{1}, kThird{2};
constexpr int64_t kSecondUs = 1'000'000;

InstanceUp up(InstanceId id, WeightVersion version = {5}, int64_t kv_blocks = 10) {
  InstanceUp up{.instance = id, .node = {}, .kv_blocks = kv_blocks, .block_tokens = 16, .rows_max = 4, .handle = {}};
  up.identity.model = "model";
  up.identity.version = version;
  return up;
}

/// A rollout with version 5 of the weights, at time 0.
struct Bench {
  explicit Bench(size_t expected = 2, bool machines_may_join = false, std::map<InstanceId, int64_t> kv_tokens = {}, bool waits_for_all = true)
      : instances({.version = {5},
                   .expected = expected,
                   .machines_may_join = machines_may_join,
                   .return_us = 30 * kSecondUs,
                   .change_us = 3 * kSecondUs,
                   .waits_for_all = waits_for_all,
                   .kv_tokens = std::move(kv_tokens)},
                  0) {}
  bool join(const InstanceUp& up) {
    if (!instances.admit(up).ok()) return false;
    instances.add(up, 0);
    return true;
  }
  std::string why_refused(const InstanceUp& up) {
    const Status fits = instances.admit(up);
    return fits.ok() ? "" : fits.error().detail;
  }
  RolloutInstances instances;
};

}  // namespace

TEST_CASE("rollout instances: the first one up sets weights and model for all others, also once it is gone") {
  Bench b;
  InstanceUp first = up(kFirst), other = up(kSecond);
  first.identity.weights = 7;
  first.identity.shape = 3;
  CHECK(b.join(first));
  b.instances.lose(kFirst, 0);
  other.identity.weights = 8;
  CHECK(b.why_refused(other) == "instance 1 is refused: its weights' checksum is 0000000000000008, expected 0000000000000007");
  other.identity.weights = 7;
  other.identity.shape = 4;
  CHECK(b.why_refused(other) == "instance 1 is refused: its config.json's checksum is 0000000000000004, expected 0000000000000003");
  other.identity.shape = 3;
  CHECK(b.why_refused(other).empty());
}

TEST_CASE("rollout instances: what the first one does not know is set by the next one") {
  Bench b;
  CHECK(b.join(up(kFirst)));
  InstanceUp second = up(kSecond), third = up(kThird);
  second.identity.weights = 7;
  third.identity.weights = 8;
  CHECK(b.join(second));
  CHECK(b.why_refused(third) == "instance 2 is refused: its weights' checksum is 0000000000000008, expected 0000000000000007");
}

TEST_CASE("rollout instances: one with older weights is waited for, one that cannot fit is not") {
  Bench b;
  CHECK(b.join(up(kFirst)));
  CHECK(!b.instances.all_settled(0));

  CHECK(!b.join(up(kSecond, {4})));
  CHECK(!b.instances.all_settled(0));
  CHECK(!b.instances.all_settled(3 * kSecondUs - 1));
  CHECK(b.instances.all_settled(3 * kSecondUs));

  CHECK(!b.join(up(kSecond, {6})));  // weights never go back
  CHECK(b.instances.all_settled(0));

  InstanceUp other_model = up(kSecond, {4});
  other_model.identity.model = "another";
  CHECK(!b.join(other_model));
  CHECK(b.instances.all_settled(0));

  CHECK(b.join(up(kSecond)));  // it fits now: its refusal is forgotten
  CHECK(b.instances.all_settled(0));
  CHECK(b.instances.why_missing().empty());
}

TEST_CASE("rollout instances: none can come once all are gone for good or refused, unless machines may join") {
  for (const bool machines_may_join : {false, true}) {
    Bench b(2, machines_may_join);
    CHECK(b.join(up(kFirst)));
    CHECK(b.join(up(kSecond)));
    b.instances.lose(kFirst, 0);
    b.instances.lose(kSecond, 0);
    CHECK(!b.instances.none_can_come(0));  // their nodes may start them again
    b.instances.gone({NodeId{0}, {kFirst}, "instance 0 failed to start"});
    CHECK(!b.instances.none_can_come(0));
    CHECK(!b.join(up(kSecond, {6})));
    CHECK(b.instances.none_can_come(0) == !machines_may_join);
    CHECK(b.instances.why_missing() ==
          ": instance 0 failed to start, and instance 1 is refused: its weight version is 6, expected 5");
  }
}

TEST_CASE("rollout instances: one that was lost may come back for a while, on a cluster also another one") {
  Bench one(1), cluster(1, true);
  for (Bench* b : {&one, &cluster}) {
    CHECK(b->join(up(kFirst)));
    CHECK(!b->instances.one_may_come(0));
    b->instances.lose(kFirst, kSecondUs);
    CHECK(b->instances.one_may_come(31 * kSecondUs - 1));
    CHECK(!b->instances.one_may_come(31 * kSecondUs));
    CHECK(!b->instances.none_came(31 * kSecondUs));
    CHECK(b->instances.none_came(31 * kSecondUs + 1));
    b->instances.gone({NodeId{0}, {kFirst}, "lost"});
    CHECK(b->instances.one_may_come(kSecondUs) == (b == &cluster));
    CHECK(b->join(up(kFirst)));
    CHECK(!b->instances.none_came(40 * kSecondUs));
  }
}

TEST_CASE("rollout instances: a resumed rollout waits for what held its KV before, from its start on") {
  Bench b(1, false, {{kFirst, 160}, {kSecond, 1600}});
  CHECK(b.join(up(kFirst)));
  CHECK(b.instances.kv_tokens_max() == 1600);
  CHECK(!b.instances.one_may_come(10 * kSecondUs));
  b.instances.started(10 * kSecondUs);
  CHECK(b.instances.one_may_come(40 * kSecondUs - 1));
  CHECK(!b.instances.one_may_come(40 * kSecondUs));
}

TEST_CASE("rollout instances: lost ones count for the longest response, those that left in order do not") {
  Bench b(3);
  CHECK(b.join(up(kFirst, {5}, 10)));
  CHECK(b.join(up(kSecond, {5}, 20)));
  CHECK(b.join(up(kThird, {5}, 30)));
  CHECK(b.instances.kv_tokens_max() == 480);
  b.instances.lose(kThird, 0);
  b.instances.gone({NodeId{2}, {kThird}, "lost"});
  CHECK(b.instances.kv_tokens_max() == 480);
  b.instances.gone({NodeId{2}, {kThird}, ""});
  CHECK(b.instances.kv_tokens_max() == 320);
  CHECK(b.instances.parts_lost() == std::vector<std::string>{"lost"});

  CHECK(b.instances.drain({kSecond, kThird}, 0) == std::vector{kSecond});
  CHECK(b.instances.kv_tokens_max() == 160);
}

TEST_CASE("rollout instances: one that leaves is no longer up, and can still be reached until it has left") {
  Bench b;
  CHECK(b.join(up(kFirst)));
  CHECK(b.join(up(kSecond)));
  CHECK(b.instances.drain({kFirst}, 0) == std::vector{kFirst});
  CHECK(b.instances.find(kFirst) == nullptr);
  CHECK(b.instances.has(kFirst));
  CHECK(b.instances.handles().size() == 2);
  CHECK(b.instances.up().size() == 1);
  CHECK(b.instances.all_settled(0));

  CHECK(!b.instances.lose(kFirst, 0));
  CHECK(b.instances.lose(kSecond, 0));
  CHECK(b.instances.handles().empty());
}

TEST_CASE("rollout instances: one that comes again is told apart from a new one") {
  Bench b;
  CHECK(b.instances.admit(up(kFirst)).ok());
  CHECK(b.instances.add(up(kFirst), 0));
  b.instances.lose(kFirst, 0);
  CHECK(b.instances.admit(up(kFirst)).ok());
  CHECK(!b.instances.add(up(kFirst), 7));
  CHECK(b.instances.at(kFirst).up_us == 7);
}

TEST_CASE("rollout instances: a rollout that does not wait for all begins with those that are up after a while") {
  Bench b(2, false, {}, false);
  CHECK_FALSE(b.instances.all_settled(3 * kSecondUs));  // none is up
  CHECK(b.join(up(kFirst)));
  CHECK_FALSE(b.instances.all_settled(3 * kSecondUs - 1));
  CHECK(b.instances.all_settled(3 * kSecondUs));
  b.instances.lose(kFirst, 4 * kSecondUs);
  CHECK_FALSE(b.instances.none_can_come(5 * kSecondUs));
}
