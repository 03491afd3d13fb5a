// Random runs with faults, by seed: real actors on the virtual clock, instances and the KV node killed at random times, a
// cold store that fails, damages and fills up, little memory everywhere. Once the faults stop, every request must have been
// answered exactly once and exactly right, and nothing may be left in the pool.
//
// SEER_FAULT_SEEDS=<count> and SEER_FAULT_FIRST_SEED=<seed> run others than the usual ones.
#include <doctest/doctest.h>

#include <cstdlib>
#include <random>

#include "sim_cluster.h"

using namespace seer;

namespace {

uint64_t env_or(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

struct ColdFaultRates {
  bool on = true;
  uint64_t fail = 0, corrupt = 0, full = 0;  // of 100
};

std::optional<Code> draw(std::mt19937_64& rng, const ColdFaultRates& rates, bool put) {
  if (!rates.on) return std::nullopt;
  const uint64_t x = rng() % 100;
  if (x < rates.fail) return Code::kIo;
  if (x < rates.fail + rates.corrupt) return Code::kCorrupt;
  if (put && x < rates.fail + rates.corrupt + rates.full) return Code::kFull;
  return std::nullopt;
}

void run_seed(uint64_t seed) {
  CAPTURE(seed);
  std::mt19937_64 rng(seed * 0x9e3779b97f4a7c15ull);
  const auto from = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(rng() % static_cast<uint64_t>(most - least + 1));
  };
  const auto chance = [&](uint64_t percent) { return rng() % 100 < percent; };

  std::mt19937_64 cold_rng(seed);
  ColdFaultRates rates;
  if (chance(50)) rates = {true, rng() % 30, rng() % 30, rng() % 30};

  SimClusterOptions o;
  o.seed = chance(90) ? seed : 0;
  o.scheduler.policy = chunk_policy_names()[rng() % chunk_policy_names().size()];
  o.scheduler.chunk_tokens = chance(20) ? 0 : from(1, 50);
  o.scheduler.reserve_share = static_cast<double>(from(0, 10)) / 10;
  o.scheduler.inflight_spread_max = static_cast<int32_t>(from(0, 8));
  o.scheduler.starve_us = chance(30) ? from(0, 50'000) : 30'000'000;
  o.instances = static_cast<uint32_t>(from(1, 3));
  o.nodes = chance(50) ? 1 : static_cast<uint32_t>(from(1, o.instances));
  o.pull_gap_tokens = from(0, 20);
  o.block_tokens = static_cast<uint32_t>(from(1, 6));
  o.rows_max = static_cast<int32_t>(from(1, 12));
  o.groups = static_cast<uint32_t>(from(1, 5));
  o.samples = static_cast<uint32_t>(from(1, 4));
  o.prompt_tokens = from(1, 25);
  o.length_max = from(1, 60);
  o.prefill_tokens_max = static_cast<int32_t>(from(1, 40));
  o.report_steps = static_cast<int32_t>(from(1, 10));
  o.restarts_max = 100;
  o.parked_max = chance(30) ? rng() % 4 : 4096;
  o.free_share = chance(30) ? 0.3 : 0.05;
  const int64_t longest_blocks = (o.prompt_tokens + o.length_max + o.block_tokens - 1) / o.block_tokens;
  o.device_blocks = static_cast<int32_t>(longest_blocks + from(0, 2 * longest_blocks));
  o.dram_blocks = chance(10) ? 0 : chance(50) ? from(1, longest_blocks) : from(1, 300);
  o.cold_blocks = chance(40) ? 0 : chance(50) ? from(1, 2 * longest_blocks) : 4096;
  o.cold_faults = {.put = [&](const BlockKey&) { return draw(cold_rng, rates, true); },
                   .get = [&](const BlockKey&) { return draw(cold_rng, rates, false); }};

  SimCluster cluster(o);
  cluster.start();
  const int64_t kills = chance(30) ? 0 : from(1, 6);
  for (int64_t k = 0; k < kills && cluster.seen.summaries.empty(); ++k) {
    cluster.run_for(from(1, 25'000));
    if (o.dram_blocks > 0 && chance(30))
      cluster.kill_kv_node(static_cast<uint32_t>(rng() % o.nodes));
    else
      cluster.kill_instance(InstanceId{static_cast<uint32_t>(rng() % o.instances)});
  }
  cluster.run_for(from(0, 20'000));
  if (chance(50)) rates.on = false;
  cluster.finish();
  cluster.check_exact();
  cluster.run_for(30'000'000);  // a pull whose lender died ends after its timeout
  cluster.check_drained();
}

}  // namespace

TEST_CASE("faults: after any of them every request is answered once and exactly, and the pool is empty in the end") {
  const uint64_t first = env_or("SEER_FAULT_FIRST_SEED", 1);
  const uint64_t count = env_or("SEER_FAULT_SEEDS", 300);
  for (uint64_t seed = first; seed < first + count; ++seed) run_seed(seed);
}
