#include "actors/weight_updates.h"

#include <doctest/doctest.h>

#include <random>

using namespace seer;

namespace {

constexpr uint64_t kRight = 71, kWrong = 72;
constexpr int64_t kTimeUs = 10'000'000;

using Run = WeightUpdates::Run;
using Cause = WeightUpdates::Cause;

/// What a WeightUpdates said, in order.
struct Said {
  std::vector<Run> runs;
  std::vector<std::string> ended;  // errors; empty: it did well

  explicit Said(WeightUpdates& updates) {
    while (const auto step = updates.take())
      if (const auto* run = std::get_if<Run>(&*step))
        runs.push_back(*run);
      else if (const Status& status = std::get<WeightUpdates::Ended>(*step).status; true)
        ended.push_back(status.ok() ? "" : status.error().detail);
  }
};

WeightsUpdated changed(uint32_t node, uint64_t version, uint64_t weights = kRight) {
  return {NodeId{node}, WeightVersion{version}, {}, weights};
}

WeightUpdates begun(std::vector<NodeId> asked, uint64_t version = 2) {
  WeightUpdates updates(WeightVersion{1}, 0, kTimeUs);
  const NewWeights what{WeightVersion{version}, "new"};
  REQUIRE(updates.may_begin(what).ok());
  updates.begin(what, "step-2", std::move(asked));
  return updates;
}

}  // namespace

TEST_CASE("weight updates: the new weights are used once all machines have answered") {
  WeightUpdates updates = begun({NodeId{0}, NodeId{1}});
  CHECK(updates.may_begin({WeightVersion{3}, "x"}).error().detail == "an update to weight version 2 is under way");
  updates.note(changed(0, 2));
  CHECK(Said(updates).runs.empty());
  updates.note(changed(1, 2));
  const Said said(updates);
  REQUIRE(said.runs.size() == 1);
  CHECK(said.ended == std::vector<std::string>{""});
  CHECK(said.runs[0].name == "step-2");
  CHECK(said.runs[0].cause == Cause::kUpdate);
  CHECK(said.runs[0].now.what.weights == kRight);
  CHECK(said.runs[0].now.nodes == std::vector{NodeId{0}, NodeId{1}});
  CHECK(updates.version() == WeightVersion{2});
  CHECK(updates.weights() == kRight);
  CHECK(updates.may_begin({WeightVersion{2}, "x"}).error().detail == "weight version 2: expected one above 2, which runs");
}

TEST_CASE("weight updates: those of no machine, and those whose machines all failed, change nothing and say why") {
  WeightUpdates nobody = begun({});
  CHECK(Said(nobody).ended == std::vector<std::string>{"there is no machine"});
  WeightUpdates updates = begun({NodeId{0}});
  updates.note({NodeId{0}, WeightVersion{2}, "no such folder", 0});
  const Said said(updates);
  CHECK(said.runs.empty());
  CHECK(said.ended == std::vector<std::string>{"no such folder"});
  CHECK(updates.version() == WeightVersion{1});
}

TEST_CASE("weight updates: a machine has its time from when it can change, and is believed when it changes later") {
  WeightUpdates updates = begun({NodeId{0}, NodeId{1}});
  updates.end_in_time(100 * kTimeUs);  // requests may finish first
  CHECK(Said(updates).ended.empty());
  CHECK(updates.start_time(5) == 5 + kTimeUs);
  CHECK_FALSE(updates.start_time(6).has_value());
  updates.end_in_time(4 + kTimeUs);
  CHECK(Said(updates).ended.empty());
  updates.end_in_time(5 + kTimeUs);
  CHECK(Said(updates).ended == std::vector<std::string>{"node 0 has not changed its weights within 10 s"});
  CHECK(updates.is_late(changed(0, 2)));
  updates.note(changed(0, 2));
  CHECK(Said(updates).runs.empty());  // node 1 has the old ones
  SUBCASE("the other changes, too") { updates.note(changed(1, 2)); }
  SUBCASE("the other is lost") { updates.lose(NodeId{1}); }
  SUBCASE("the other has wrong ones") { updates.note(changed(1, 2, kWrong)); }
  const Said said(updates);
  REQUIRE(said.runs.size() == 1);
  CHECK(said.runs[0].cause == Cause::kLate);
  CHECK(said.runs[0].name == "step-2");
  CHECK(said.runs[0].now.nodes.front() == NodeId{0});
}

TEST_CASE("weight updates: a machine that was lost after it changed has not, since it comes back with the weights that it starts with") {
  for (const bool other_changes : {true, false}) {
    CAPTURE(other_changes);
    WeightUpdates updates = begun({NodeId{0}, NodeId{1}});
    updates.note(changed(0, 2));
    updates.lose(NodeId{0});
    updates.note(other_changes ? changed(1, 2) : WeightsUpdated{NodeId{1}, WeightVersion{2}, "no such folder", 0});
    const Said said(updates);
    CHECK(said.runs.size() == (other_changes ? 1 : 0));
    if (other_changes) CHECK(said.runs[0].now.nodes == std::vector{NodeId{1}});
    CHECK(said.ended == std::vector<std::string>{other_changes ? "" : "no such folder"});
    CHECK(updates.version() == WeightVersion{other_changes ? 2u : 1u});
  }
}

TEST_CASE("weight updates: what another process orders is followed after the update, if it is newer") {
  WeightUpdates updates = begun({NodeId{0}}, 3);
  SUBCASE("newer") {
    updates.follow({{WeightVersion{4}, "theirs"}, {NodeId{0}}});
    CHECK(Said(updates).runs.empty());
    updates.note(changed(0, 3));
    const Said said(updates);
    REQUIRE(said.runs.size() == 2);
    CHECK(said.runs[0].now.what.version == WeightVersion{3});
    CHECK(said.runs[1].now.what.version == WeightVersion{4});
    CHECK(said.runs[1].cause == Cause::kElsewhere);
  }
  SUBCASE("older") {
    updates.follow({{WeightVersion{2}, "theirs"}, {NodeId{0}}});
    updates.note(changed(0, 3));
    CHECK(Said(updates).runs.size() == 1);
  }
}

// Any calls in any order: versions only grow, each update ends once, and weights run only if a machine said that it has them, or another
// process that all do.
TEST_CASE("weight updates: random calls") {
  int64_t late_runs = 0, update_runs = 0, elsewhere_runs = 0, failed = 0;
  for (uint64_t seed = 0; seed < 20'000; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    const auto below = [&](uint64_t n) { return rng() % n; };
    WeightUpdates updates(WeightVersion{1}, 0, kTimeUs);
    std::set<std::pair<WeightVersion, NodeId>> told;
    std::set<WeightVersion> followed;
    uint64_t last = 1;
    int64_t now_us = 0, begun = 0, ended = 0;
    WeightVersion runs{1};
    for (int i = 0; i < 60; ++i) {
      const NodeId node{static_cast<uint32_t>(below(3))};
      const WeightVersion any{2 + below(last)};
      switch (below(6)) {
        case 0: {
          const NewWeights what{WeightVersion{last + 1}, "new"};
          if (!updates.may_begin(what).ok()) break;
          ++last, ++begun;
          updates.begin(what, {}, below(10) == 0 ? std::vector<NodeId>{} : std::vector{NodeId{0}, NodeId{1}, NodeId{2}});
          break;
        }
        case 1:
        case 2: {
          const uint64_t weights = below(4) == 0 ? 0 : below(8) == 0 ? kWrong : kRight;
          if (weights != 0) told.insert({any, node});
          updates.note({node, any, weights == 0 && below(2) == 0 ? "it failed" : "", weights});
          break;
        }
        case 3: updates.lose(node); break;
        case 4:
          if (below(8) > 0) break;
          last = std::max(last, any.value);
          followed.insert(any);
          updates.follow({{any, "theirs"}, {node}});
          break;
        default:
          now_us += static_cast<int64_t>(below(kTimeUs));
          updates.start_time(now_us);
          updates.end_in_time(now_us);
      }
      while (const auto step = updates.take()) {
        if (const auto* over = std::get_if<WeightUpdates::Ended>(&*step)) {
          ++ended;
          failed += over->status.ok() ? 0 : 1;
          continue;
        }
        const Run& run = std::get<Run>(*step);
        CHECK(run.now.what.version > runs);
        runs = run.now.what.version;
        CHECK_FALSE(run.now.nodes.empty());
        if (run.cause == Cause::kElsewhere)
          CHECK(followed.contains(runs));
        else
          for (const NodeId has : run.now.nodes) CHECK(told.contains({runs, has}));
        (run.cause == Cause::kUpdate ? update_runs : run.cause == Cause::kLate ? late_runs : elsewhere_runs) += 1;
      }
      CHECK(updates.version() == runs);
      CHECK(begun == ended + (updates.is_under_way() ? 1 : 0));
    }
  }
  CHECK(update_runs > 1000);
  CHECK(late_runs > 1000);
  CHECK(elsewhere_runs > 1000);
  CHECK(failed > 1000);
}
