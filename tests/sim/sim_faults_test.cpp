// Tests the faults that SimFaults draws, and its verdict. fault_seeds_test.cpp checks that no fault does harm.
#include "actors/sim/sim_faults.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

using namespace seer;

namespace {

constexpr int64_t kUntilUs = 100'000;
constexpr int64_t kGapUs = 4'000;

/// A cluster with everything that a fault can hit: several machines, draft servers, and little DRAM above a cold tier.
SimClusterOptions whole_cluster() {
  SimClusterOptions o;
  o.instances = 3;
  o.nodes = 2;
  o.device_blocks = 50;
  o.dram_blocks = 30;
  o.cold_blocks = 200;
  o.draft_tokens_max = 3;
  o.draft_from_group = o.draft_servers = true;
  o.alike_share = 0.9;
  o.chunk_silence_us = 20'000'000;
  return o;
}
SimFaultConfig faults_of(uint64_t seed) { return {.seed = seed, .until_us = kUntilUs, .gap_us = kGapUs}; }

int64_t strikes_of(const SimFaultRun& run) {
  return std::accumulate(run.counts.begin(), run.counts.begin() + static_cast<size_t>(FaultKind::kLostMessage), int64_t{0});
}

}  // namespace

TEST_CASE("sim faults: the same seed gives the same faults and events, another seed others") {
  std::set<uint64_t> hashes;
  std::set<std::array<int64_t, kFaultKinds>> counts;
  constexpr uint64_t kRuns = 30;
  for (uint64_t seed = 1; seed <= kRuns; ++seed) {
    CAPTURE(seed);
    const SimFaultRun run = run_with_faults(whole_cluster(), faults_of(seed));
    const SimFaultRun again = run_with_faults(whole_cluster(), faults_of(seed));
    CHECK_MESSAGE(run.verdict.ok(), (run.verdict.ok() ? "" : run.verdict.error().detail));
    CHECK(run.events_hash == again.events_hash);
    CHECK(run.counts == again.counts);
    CHECK(run.total_s == again.total_s);
    hashes.insert(run.events_hash);
    counts.insert(run.counts);
  }
  CHECK(hashes.size() == kRuns);
  CHECK(counts.size() > kRuns / 2);
}

TEST_CASE("sim faults: each kind happens with some seeds, and none of them with all") {
  constexpr int kRuns = 60;
  std::array<int, kFaultKinds> runs_with{};
  for (uint64_t seed = 1; seed <= kRuns; ++seed) {
    const SimFaultRun run = run_with_faults(whole_cluster(), faults_of(seed));
    for (size_t kind = 0; kind < kFaultKinds; ++kind) runs_with[kind] += run.counts[kind] > 0;
  }
  for (size_t kind = 0; kind < kFaultKinds; ++kind) {
    CAPTURE(to_string(static_cast<FaultKind>(kind)));
    CHECK(runs_with[kind] > 0);
    CHECK(runs_with[kind] < kRuns);
  }
}

TEST_CASE("sim faults: no fault happens later than until_us") {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    SimFaultConfig until = faults_of(seed);
    until.until_us = 20'000;
    const SimFaultRun whole = run_with_faults(whole_cluster(), until);
    until.limit_us = until.until_us;
    CHECK(run_with_faults(whole_cluster(), until).counts == whole.counts);
  }
}

TEST_CASE("sim faults: strikes come gap_us apart on average") {
  for (const int64_t gap_us : {2'000, 8'000}) {
    CAPTURE(gap_us);
    int64_t strikes = 0;
    double expected = 0;
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      const SimFaultRun run = run_with_faults(whole_cluster(), {.seed = seed, .until_us = kUntilUs, .gap_us = gap_us});
      strikes += strikes_of(run);
      expected += std::min(1e6 * run.total_s, static_cast<double>(kUntilUs)) / static_cast<double>(gap_us);
    }
    CHECK(static_cast<double>(strikes) < 1.2 * expected);
    CHECK_MESSAGE(static_cast<double>(strikes) > 0.4 * expected, "some find nothing that they could hit");
  }
}

TEST_CASE("sim faults: faults and restarts in the options are overwritten") {
  SimClusterOptions o = whole_cluster();
  int asked = 0;
  o.has_links = true;
  o.link_faults = {.is_lost = [&] { return ++asked > 0; }, .late_us = [&] { return int64_t{++asked}; }};
  o.transfer_fault = [&]() -> std::optional<Code> { return ++asked > 0 ? std::optional(Code::kIo) : std::nullopt; };
  o.transfer_late_us = [&] { return int64_t{++asked}; };
  o.cold_faults.put = [&](const BlockKey&) -> std::optional<Code> { return ++asked > 0 ? std::optional(Code::kIo) : std::nullopt; };
  o.restarts_max = 0;
  int64_t crashes = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const SimFaultRun run = run_with_faults(o, faults_of(seed));
    CHECK(run.verdict.ok());
    crashes += run.count(FaultKind::kInstanceCrash);
    CHECK(run.counts == run_with_faults(whole_cluster(), faults_of(seed)).counts);
  }
  CHECK(asked == 0);
  CHECK(crashes > 0);
}

TEST_CASE("sim faults: a rollout that has not ended by limit_us gets a bad verdict") {
  const SimFaultRun run = run_with_faults(whole_cluster(), {.seed = 1, .until_us = 100, .gap_us = kGapUs, .limit_us = 200});
  REQUIRE_FALSE(run.verdict.ok());
  CHECK(run.verdict.error().code == Code::kUnavailable);
  CHECK(run.total_s == 0);
  CHECK(run.requests == 24);
}

TEST_CASE("sim faults: counts are given in words, only for kinds that happened") {
  SimFaultRun run;
  CHECK(run.counts_text() == "no fault");
  run.counts[static_cast<size_t>(FaultKind::kDiskFull)] = 1;
  run.counts[static_cast<size_t>(FaultKind::kInstanceCrash)] = 2;
  CHECK(run.counts_text() == "2 instance crashes, 1 full disk");
  CHECK(run.count(FaultKind::kInstanceCrash) == 2);
  std::set<std::string> names;
  for (size_t kind = 0; kind < kFaultKinds; ++kind) names.insert(to_string(static_cast<FaultKind>(kind)));
  CHECK(names.size() == kFaultKinds);
}
