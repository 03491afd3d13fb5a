// SimColdStore: a cold tier in memory, for simulation and tests: one device that serves one operation after the other, in
// order, with latency and bandwidth on the caller's (virtual) clock. Deterministic. Faults are decided by hooks.
// Single-threaded: calls, schedule() and completions belong to one thread.
#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "storage/cold_store.h"

namespace seer {

struct SimColdStoreConfig {
  int64_t capacity_bytes = int64_t{1} << 40;
  int64_t latency_us = 100;                       // of each operation
  int64_t write_bytes_per_s = 1'000'000'000;
  int64_t read_bytes_per_s = 2'000'000'000;
  size_t queue_max = 64;                          // puts and gets open at most
};

struct SimColdFaults {
  /// The error of one block, or nothing. Asked when the operation runs. A get that answers kCorrupt here succeeds and
  /// hands out bytes with one bit flipped, as a disk without checksums would.
  std::function<std::optional<Code>(const BlockKey&)> put = {};
  std::function<std::optional<Code>(const BlockKey&)> get = {};
};

class SimColdStore final : public ColdStore {
 public:
  /// Runs a function after a delay, later and on the caller's thread.
  using Schedule = std::function<void(int64_t delay_us, std::function<void()>)>;

  SimColdStore(const SimColdStoreConfig& config, Schedule schedule, SimColdFaults faults = {});
  ~SimColdStore() override;

  Status put(std::vector<ColdBlock> blocks, Done done) override;
  Status get(std::vector<ColdBlock> blocks, Done done) override;
  void erase(std::vector<BlockKey> keys) override;
  void drop_versions_below(WeightVersion keep) override;
  ColdStoreStats stats() const override;

 private:
  struct Device;
  std::shared_ptr<Device> device_;  // shared with scheduled functions, which do nothing once the store is gone
};

}  // namespace seer
