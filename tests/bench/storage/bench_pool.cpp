// bench_pool [block bytes = 1024] [rounds = 200]: measures the memory of an empty DRAM tier and the cost of its calls, for pools of
// 1, 64 and 256 GiB; one JSON line each. The bytes of the blocks are not touched: this measures the bookkeeping.
//
// A round: a request of 64 blocks reserves, seals, parks, is opened by all its keys, closed, and every second one released.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "protocols/check.h"
#include "storage/kv_tiers.h"

using namespace seer;

namespace {

constexpr uint32_t kChain = 64;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
int64_t resident_bytes() {
  int64_t pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident_pages;
  return resident_pages * ::sysconf(_SC_PAGESIZE);
}

void run_round(KvTiers& tiers, std::deque<std::function<void()>>& mailbox, uint64_t round) {
  std::vector<BlockRef> chain;
  std::vector<BlockKey> keys;
  for (uint32_t i = 0; i < kChain; ++i) {
    chain.push_back({BlockKey{.version = {}, .prefix = {round + 1, i + 1}}, 16});
    keys.push_back(chain.back().key);
  }
  const OwnerId owner{round};
  for (const Reservation& r : tiers.reserve(owner, chain)) {
    SEER_CHECK(r.state == GrantState::kWrite, round);
    SEER_CHECK(tiers.seal(r.token, 0).ok(), round);
  }
  tiers.unpin(owner, round);
  LeaseId lease;
  tiers.open(owner, keys, [&](const OpenResult& opened) { lease = opened.lease; });
  for (; !mailbox.empty(); mailbox.pop_front()) mailbox.front()();
  SEER_CHECK(tiers.close(lease).ok(), round);
  if (round % 2 == 0) tiers.release(owner);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t block_bytes = argc > 1 ? std::atoll(argv[1]) : 1024;
  const uint64_t rounds = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 200;
  for (const int64_t gib : {1, 64, 256}) {
    const int64_t before = resident_bytes();
    const double start_s = now_s();
    auto arena = HostArena::create({.dram_bytes = gib << 30, .block_bytes = block_bytes});
    if (!arena.ok()) return std::cerr << arena.error().detail << '\n', 1;
    std::deque<std::function<void()>> mailbox;
    KvTiers tiers({}, *arena, nullptr, {.post = [&](std::function<void()> f) { mailbox.push_back(std::move(f)); }});
    const double ready_s = now_s();
    const int64_t at_start = resident_bytes() - before;
    for (uint64_t round = 0; round < rounds; ++round) run_round(tiers, mailbox, round);
    const double end_s = now_s();
    std::cout << nlohmann::ordered_json{{"pool_gib", gib},
                                        {"block_bytes", block_bytes},
                                        {"start_ms", 1e3 * (ready_s - start_s)},
                                        {"resident_bytes_at_start", at_start},
                                        {"blocks_kept", (rounds / 2) * kChain},
                                        {"resident_bytes_with_them", resident_bytes() - before},
                                        {"ns_per_block", 1e9 * (end_s - ready_s) / static_cast<double>(rounds * kChain)}}
              << std::endl;
    mailbox.clear();
  }
}
