// LooseColdStore: a cold store in memory that does all that storage/cold_store.h allows, in an order drawn by the caller. Puts,
// erases and drops take effect in the order in which they came; gets take effect at any time. The completion of each comes later,
// in any order. A get leaves garbage in its slot until it completes. Used by the random schedules of KvTiers.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "storage/cold_store.h"

namespace seer {

/// Random numbers of one schedule.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(mix64(seed)) {}
  uint64_t below(uint64_t end) { return mix64(state_ += 0x9e3779b97f4a7c15ull) % end; }
  bool one_in(uint64_t n) { return below(n) == 0; }

 private:
  uint64_t state_;
};

struct LooseColdStoreConfig {
  int64_t capacity_blocks = 8;
  size_t queue_max = 4;
  uint64_t fault_percent = 0;  // of blocks: the put or get fails, or the get hands out other bytes
};

class LooseColdStore final : public ColdStore {
 public:
  /// What the store sees of a slot that it reads (put) or writes (get), told when it starts and when its completion is called.
  struct Watch {
    std::function<void(const ColdBlock&, bool is_get)> begins, ends;
    std::function<void(const ColdBlock&)> found_corrupt;  // the bytes of a put differ from their checksum
  };

  LooseColdStore(const LooseColdStoreConfig& config, Dice& dice, Watch watch)
      : config_(config), dice_(dice), watch_(std::move(watch)) {}

  Status put(std::vector<ColdBlock> blocks, Done done) override { return submit(Kind::kPut, std::move(blocks), std::move(done)); }
  Status get(std::vector<ColdBlock> blocks, Done done) override { return submit(Kind::kGet, std::move(blocks), std::move(done)); }
  void erase(std::vector<BlockKey> keys) override { writers_.push_back({.kind = Kind::kErase, .keys = std::move(keys)}); }
  void drop_versions_below(WeightVersion keep) override { writers_.push_back({.kind = Kind::kDrop, .keep = keep}); }
  ColdStoreStats stats() const override {
    return {.used_bytes = used_bytes_, .capacity_bytes = config_.capacity_blocks * 64};
  }

  /// Goes on with one operation. False: there is none.
  bool step() {
    const size_t choices = readers_.size() + ended_.size() + (writers_.empty() ? 0 : 1);
    if (choices == 0) return false;
    size_t at = dice_.below(choices);
    if (at < readers_.size()) {
      go_on_reading(at);
    } else if ((at -= readers_.size()) < ended_.size()) {
      complete(at);
    } else {
      write_next();
    }
    return true;
  }
  /// Puts and gets whose completion has not been called.
  size_t open_count() const { return open_; }
  bool is_idle() const { return open_ == 0 && writers_.empty(); }
  size_t block_count() const { return contents_.size(); }
  /// The block's slot is being read or written.
  bool is_busy_with(const BlockKey& key) const { return busy_.contains(key); }

 private:
  enum class Kind { kPut, kGet, kErase, kDrop };
  struct Operation {
    Kind kind = Kind::kPut;
    std::vector<ColdBlock> blocks = {};
    Done done = {};
    std::vector<BlockKey> keys = {};
    WeightVersion keep = {};
    std::vector<Status> statuses = {};
    bool started = false;
  };

  Status submit(Kind kind, std::vector<ColdBlock> blocks, Done done) {
    if (open_ >= config_.queue_max) return fail(Code::kFull, "loose cold store: ", open_, " operations are open");
    ++open_;
    for (const ColdBlock& block : blocks) {
      watch_.begins(block, kind == Kind::kGet);
      busy_.insert(block.key);
    }
    Operation operation{.kind = kind, .blocks = std::move(blocks), .done = std::move(done)};
    if (kind == Kind::kGet)
      readers_.push_back(std::move(operation));
    else
      writers_.push_back(std::move(operation));
    return {};
  }

  bool is_faulty() { return config_.fault_percent > 0 && dice_.below(100) < config_.fault_percent; }
  Status fault() { return fail(std::array{Code::kIo, Code::kFull, Code::kNotFound}[dice_.below(3)], "loose cold store: a fault"); }

  void go_on_reading(size_t at) {
    Operation& operation = readers_[at];
    if (!std::exchange(operation.started, true)) {  // what is half read is garbage
      for (const ColdBlock& block : operation.blocks) std::ranges::fill(block.bytes, std::byte{0xee});
      return;
    }
    for (ColdBlock& block : operation.blocks) operation.statuses.push_back(get_one(block));
    ended_.push_back(std::move(operation));
    readers_.erase(readers_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  void write_next() {
    Operation operation = std::move(writers_.front());
    writers_.pop_front();
    for (const BlockKey& key : operation.keys) forget(contents_.find(key));
    if (operation.kind == Kind::kDrop) {
      keep_ = std::max(keep_, operation.keep);
      while (!contents_.empty() && contents_.begin()->first.version < keep_) forget(contents_.begin());
    }
    if (operation.kind != Kind::kPut) return;
    for (const ColdBlock& block : operation.blocks) operation.statuses.push_back(put_one(block));
    ended_.push_back(std::move(operation));
  }

  void complete(size_t at) {
    Operation operation = std::move(ended_[at]);
    ended_.erase(ended_.begin() + static_cast<std::ptrdiff_t>(at));
    --open_;
    for (const ColdBlock& block : operation.blocks) {
      watch_.ends(block, operation.kind == Kind::kGet);
      busy_.erase(busy_.find(block.key));
    }
    operation.done(std::move(operation.statuses), std::move(operation.blocks));
  }

  Status put_one(const ColdBlock& block) {
    if (block.key.version < keep_) return fail(Code::kStale, "loose cold store: an old version");
    if (is_faulty()) return fault();
    if (crc32c(block.bytes) != block.crc32c) {
      watch_.found_corrupt(block);
      return fail(Code::kCorrupt, "loose cold store: block ", block.key, " is corrupt");
    }
    if (used_bytes_ >= config_.capacity_blocks * std::ssize(block.bytes)) return fail(Code::kFull, "loose cold store: full");
    const auto [at, is_new] = contents_.try_emplace(block.key);
    at->second.assign(block.bytes.begin(), block.bytes.end());
    if (is_new) used_bytes_ += std::ssize(block.bytes);
    return {};
  }

  Status get_one(ColdBlock& block) {
    const bool faulty = is_faulty(), flips = faulty && dice_.one_in(2);
    if (faulty && !flips) return fault();
    const auto stored = contents_.find(block.key);
    if (stored == contents_.end()) return fail(Code::kNotFound, "loose cold store: no block ", block.key);
    std::ranges::copy(stored->second, block.bytes.begin());
    if (flips) block.bytes[dice_.below(block.bytes.size())] ^= std::byte{1};
    block.crc32c = crc32c(block.bytes);
    return {};
  }

  void forget(std::map<BlockKey, std::vector<std::byte>>::iterator at) {
    if (at == contents_.end()) return;
    used_bytes_ -= std::ssize(at->second);
    contents_.erase(at);
  }

  const LooseColdStoreConfig config_;
  Dice& dice_;
  const Watch watch_;
  std::deque<Operation> writers_;  // not in effect yet
  std::vector<Operation> readers_, ended_;
  std::map<BlockKey, std::vector<std::byte>> contents_;
  std::multiset<BlockKey> busy_;
  WeightVersion keep_;
  int64_t used_bytes_ = 0;
  size_t open_ = 0;
};

}  // namespace seer
