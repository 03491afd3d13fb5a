// bench_read_ahead <directory> [rounds = 3]: how long parked requests wait for their KV when their turn comes, with and without
// reading it back ahead (KvTiersConfig::reads_ahead), interleaved, over a RocksDB tier in the directory. One JSON line.
//
// 32 requests of 32 blocks of 1 MiB take turns; half of their KV fits into DRAM. A turn opens the request's blocks, which is what is
// measured, runs for 40 ms, and parks the request until all others had theirs.
#if defined(SEER_HAVE_ROCKSDB)
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "protocols/crc32c.h"
#include "protocols/hash.h"
#include "storage/kv_tiers.h"
#include "storage/rocksdb_store.h"

using namespace seer;

namespace {

constexpr int64_t kBlockBytes = 1 << 20;
constexpr uint32_t kRequests = 32, kBlocks = 32, kTurns = 4 * kRequests;
constexpr std::chrono::milliseconds kRun(40);
using Clock = std::chrono::steady_clock;

class Node {
 public:
  Node(const std::string& dir, bool reads_ahead) {
    auto arena = HostArena::create({.dram_bytes = kRequests * kBlocks / 2 * kBlockBytes, .block_bytes = kBlockBytes});
    auto cold = open_rocksdb_store({.dir = dir, .capacity_bytes = int64_t{1} << 40});
    if (!arena.ok() || !cold.ok()) {
      std::fprintf(stderr, "%s\n", (!arena.ok() ? arena.error() : cold.error()).detail.c_str());
      std::exit(1);
    }
    arena_ = *arena;
    KvTiersConfig config;
    config.reads_ahead = reads_ahead;
    tiers_.emplace(config, arena_, *std::move(cold), KvTiersHooks{.post = [this](auto work) { post(std::move(work)); }});
    for (uint32_t request = 0; request < kRequests; ++request) store(request);
  }

  /// Milliseconds that each turn waited.
  std::vector<double> take_turns() {
    std::vector<double> waits;
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      const KvOwner owner{turn % kRequests};
      std::vector<BlockKey> keys;
      for (const BlockRef& block : chain(turn % kRequests)) keys.push_back(block.key);
      tiers_->pin(owner);
      const auto begin = Clock::now();
      std::optional<OpenResult> opened;
      tiers_->open(owner, keys, [&](OpenResult result) { opened = std::move(result); });
      run_until([&] { return opened.has_value(); }, begin + std::chrono::minutes(1));
      waits.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
      if (!opened || opened->blocks.size() != kBlocks) std::fprintf(stderr, "turn %u did not get its blocks\n", turn), std::exit(1);
      (void)tiers_->close(opened->lease);
      run_until([] { return false; }, Clock::now() + kRun);
      tiers_->unpin(owner, turn + kRequests);
    }
    return waits;
  }
  KvTiersStats stats() const { return tiers_->stats(); }

 private:
  static std::vector<BlockRef> chain(uint32_t request) {
    std::vector<BlockRef> blocks;
    for (uint64_t i = 0; i < kBlocks; ++i) blocks.push_back({{WeightVersion{1}, 1, {mix64(request), i}}, 16});
    return blocks;
  }
  void store(uint32_t request) {
    const std::vector<BlockRef> blocks = chain(request);
    for (uint32_t i = 0; i < kBlocks;) {
      const Reservation got = tiers_->reserve(KvOwner{request}, {&blocks[i], 1}, {.first_index = i})[0];
      if (got.state == GrantState::kWrite) {
        const auto slot = arena_->span(got.slot);
        std::memset(slot.data(), static_cast<int>(request + i), slot.size());
        (void)tiers_->seal(got.token, crc32c(slot));
        ++i;
      } else {
        run_until([] { return false; }, Clock::now() + std::chrono::milliseconds(1));
      }
    }
    tiers_->unpin(KvOwner{request}, request);
  }
  void post(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
    came_.notify_one();
  }
  template <class Until>
  void run_until(const Until& until, Clock::time_point end) {
    while (!until()) {
      std::unique_lock lock(mutex_);
      if (!came_.wait_until(lock, end, [this] { return !posted_.empty(); })) return;
      const auto work = std::move(posted_.front());
      posted_.pop_front();
      lock.unlock();
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::function<void()>> posted_;
  std::shared_ptr<HostArena> arena_;
  std::optional<KvTiers> tiers_;  // destroyed first: its store posts
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) std::fprintf(stderr, "usage: bench_read_ahead <directory> [rounds]\n"), std::exit(2);
  const int rounds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 3;
  std::vector<double> waits[2];
  int64_t waited_blocks = 0;  // with reading ahead, those that were read only when they were asked for
  for (int round = 0; round < rounds; ++round)
    for (const bool ahead : {false, true}) {
      Node node(std::string(argv[1]) + "/tier", ahead);
      const std::vector<double> took = node.take_turns();
      waits[ahead].insert(waits[ahead].end(), took.begin(), took.end());
      if (ahead) waited_blocks += node.stats().open_cold_blocks;
    }
  nlohmann::ordered_json line{{"bench", "read_ahead"}, {"rounds", rounds}, {"turns", kTurns}};
  for (const bool ahead : {false, true}) {
    std::vector<double>& all = waits[ahead];
    std::ranges::sort(all);
    line[ahead ? "ahead" : "asked"] = {{"wait_ms_p50", all[all.size() / 2]}, {"wait_ms_p90", all[all.size() * 9 / 10]}, {"wait_ms_max", all.back()}};
  }
  line["not_ahead_share"] = static_cast<double>(waited_blocks) / (static_cast<double>(rounds) * kTurns * kBlocks);
  std::cout << line.dump() << std::endl;
}
#else
#include <cstdio>
int main() {
  std::fprintf(stderr, "bench_read_ahead: built without RocksDB\n");
  return 1;
}
#endif
