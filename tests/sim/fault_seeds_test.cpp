// Random runs with faults, by seed: clusters of random shape with little memory everywhere, with faults drawn by SimFaults. The
// same seeds must find a planted bug.
//
// A failure names its seed. SEER_FAULT_FIRST_SEED=<seed> and SEER_FAULT_SEEDS=<count> run other seeds than the usual ones; one alone prints
// its log.
#include <doctest/doctest.h>

#include <iostream>
#include <random>
#include <utility>

#include "actors/sim/sim_faults.h"
#include "protocols/number_from_environment.h"
#include "sim/trusting_engine.h"

using namespace seer;

namespace {

SimClusterOptions draw_cluster(uint64_t seed) {
  std::mt19937_64 rng(seed * 0x9e3779b97f4a7c15ull);
  const auto from = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(rng() % static_cast<uint64_t>(most - least + 1));
  };
  const auto chance = [&](uint64_t percent) { return rng() % 100 < percent; };

  SimClusterOptions o;
  o.seed = chance(90) ? seed : 0;
  o.scheduler.policy = chunk_policy_names()[rng() % chunk_policy_names().size()];
  o.scheduler.chunk_tokens = chance(20) ? 0 : from(1, 50);
  o.scheduler.reserve_share = static_cast<double>(from(0, 10)) / 10;
  o.scheduler.inflight_spread_max = static_cast<int32_t>(from(0, 8));
  o.scheduler.starve_us = chance(30) ? from(0, 50'000) : 30'000'000;
  o.instances = static_cast<uint32_t>(from(1, 3));
  o.nodes = chance(50) ? 1 : static_cast<uint32_t>(from(1, o.instances));
  o.block_tokens = static_cast<uint32_t>(from(1, 6));
  o.rows_max = static_cast<int32_t>(from(1, 12));
  o.groups = static_cast<uint32_t>(from(1, 5));
  o.samples = static_cast<uint32_t>(from(1, 4));
  o.prompt_tokens = from(1, 25);
  o.length_max = from(1, 60);
  o.prefill_tokens_max = static_cast<int32_t>(from(1, 40));
  o.report_steps = static_cast<int32_t>(from(1, 10));
  o.parked_max = chance(30) ? rng() % 4 : 4096;
  o.draft_tokens_max = chance(50) ? from(1, 5) : 0;
  o.draft_from_group = o.draft_servers = chance(50);
  o.alike_share = o.draft_from_group ? 0.9 : 0;
  o.draft_trees = seed % 2 == 1;
  o.free_share = chance(30) ? 0.3 : 0.05;
  const int64_t longest_blocks = (o.prompt_tokens + o.length_max + o.block_tokens - 1) / o.block_tokens;
  o.device_blocks = static_cast<int32_t>(longest_blocks + from(0, 2 * longest_blocks));
  o.dram_blocks = chance(10) ? 0 : chance(50) ? from(1, longest_blocks) : from(1, 300);
  o.cold_blocks = chance(40) ? 0 : chance(50) ? from(1, 2 * longest_blocks) : 4096;
  o.chunk_silence_us = 20'000'000;  // well above what a chunk waits for lenders that do not answer
  o.streams = chance(50);
  o.kv_nodes = o.dram_blocks > 0 && chance(30) ? static_cast<uint32_t>(from(1, 2)) : 0;
  return o;
}

SimFaultConfig draw_faults(uint64_t seed) {
  std::mt19937_64 rng(seed);
  const int64_t until_us = static_cast<int64_t>(rng() % 200'000);
  return {.seed = seed, .until_us = rng() % 10 == 0 ? 0 : until_us, .gap_us = 2'000 + static_cast<int64_t>(rng() % 20'000)};
}

/// The first of this many seeds whose verdict is bad, or 0.
template <class Plant>
uint64_t find_bug(uint64_t seeds, Plant plant) {
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SimClusterOptions o = draw_cluster(seed);
    plant(o);
    const SimFaultRun run = run_with_faults(o, draw_faults(seed));
    if (run.verdict.ok()) continue;
    MESSAGE("seed ", seed, ": ", run.verdict.error().detail, " (after ", run.counts_text(), ")");
    return seed;
  }
  return 0;
}

constexpr uint64_t kSeeds = 2000;

}  // namespace

TEST_CASE("faults: after any of them every request is answered once and exactly, and the pool is empty in the end") {
  const uint64_t first = number_from_environment("SEER_FAULT_FIRST_SEED").value_or(1);
  const uint64_t count = number_from_environment("SEER_FAULT_SEEDS").value_or(kSeeds);
  SimFaultRun all;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SimClusterOptions options = draw_cluster(seed);
    if (count == 1) options.log = EventLog::to(std::cout, LogLevel::kInfo, LogClock::kVirtual);
    const SimFaultRun run = run_with_faults(std::move(options), draw_faults(seed));
    for (size_t kind = 0; kind < kFaultKinds; ++kind) all.counts[kind] += run.counts[kind];
    if (run.verdict.ok()) continue;
    FAIL_CHECK("seed ", seed, ": ", run.verdict.error().detail, " (after ", run.counts_text(),
               "); again: SEER_FAULT_FIRST_SEED=", seed,
               " SEER_FAULT_SEEDS=1 build/release/bin/seer_sim_tests -tc='faults: after*'");
  }
  MESSAGE(count, " seeds: ", all.counts_text());
  if (count < kSeeds) return;
  for (size_t kind = 0; kind < kFaultKinds; ++kind) {
    CAPTURE(to_string(static_cast<FaultKind>(kind)));
    CHECK(all.counts[kind] > 0);
  }
}

TEST_CASE("faults: an engine that does not check checksums is found") {
  CHECK(find_bug(kSeeds, [](SimClusterOptions& o) {
          o.wrap_engine = [](std::shared_ptr<Engine> engine) { return std::make_shared<TrustingEngine>(engine); };
        }) > 0);
}

TEST_CASE("faults: a response whose end is sent apart from its last token is found") {
  CHECK(find_bug(kSeeds, [](SimClusterOptions& o) { o.link_faults.splits_chunk_ends = true; }) > 0);
}
