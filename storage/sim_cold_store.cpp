#include "storage/sim_cold_store.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

namespace seer {

struct SimColdStore::Device : std::enable_shared_from_this<Device> {
  struct Operation {
    bool counted = false;  // puts and gets count towards queue_max
    int64_t duration_us = 0;
    std::function<void()> run;
  };

  Device(const SimColdStoreConfig& c, Schedule s, SimColdFaults f)
      : config(c), schedule(std::move(s)), faults(std::move(f)) {}

  void enqueue(Operation operation) {
    open += operation.counted ? 1 : 0;
    queue.push_back(std::move(operation));
    if (queue.size() == 1) start();
  }

  // The operation at the front stays there while it runs.
  void start() {
    schedule(queue.front().duration_us, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (self == nullptr || self->stopped) return;
      Operation operation = std::move(self->queue.front());
      self->open -= operation.counted ? 1 : 0;
      operation.run();
      self->queue.pop_front();
      if (!self->queue.empty()) self->start();
    });
  }

  int64_t duration_us(const std::vector<ColdBlock>& moved, int64_t bytes_per_s) const {
    int64_t bytes = 0;
    for (const ColdBlock& b : moved) bytes += static_cast<int64_t>(b.bytes.size());
    return config.latency_us + bytes * 1'000'000 / bytes_per_s;
  }

  Status put_one(const ColdBlock& block) {
    if (block.key.version < keep) return fail(Code::kStale, "put: block ", block.key, " is of a dropped version");
    if (const auto fault = faults.put ? faults.put(block.key) : std::nullopt)
      return fail(*fault, "put: simulated fault at block ", block.key);
    if (crc32c(block.bytes) != block.crc32c) return fail(Code::kCorrupt, "put: block ", block.key, " is corrupt");
    const auto size = static_cast<int64_t>(block.bytes.size());
    if (stats.used_bytes + size > config.capacity_bytes)
      return fail(Code::kFull, "simulated cold tier holds ", stats.used_bytes, " of ", config.capacity_bytes, " bytes");
    auto& stored = contents[block.key];
    stats.used_bytes += size - static_cast<int64_t>(stored.size());
    stats.written_bytes += size;
    stored.assign(block.bytes.begin(), block.bytes.end());
    return {};
  }

  Status get_one(ColdBlock& block) {
    const auto fault = faults.get ? faults.get(block.key) : std::nullopt;
    if (fault && *fault != Code::kCorrupt) return fail(*fault, "get: simulated fault at block ", block.key);
    const auto it = contents.find(block.key);
    if (it == contents.end()) return fail(Code::kNotFound, "get: no block ", block.key);
    if (it->second.size() != block.bytes.size())
      return fail(Code::kInvalidArgument, "get: block ", block.key, " has ", it->second.size(), " bytes, not ",
                  block.bytes.size());
    std::copy(it->second.begin(), it->second.end(), block.bytes.begin());
    if (fault) block.bytes[block.bytes.size() / 2] ^= std::byte{1};
    block.crc32c = crc32c(block.bytes);
    stats.read_bytes += static_cast<int64_t>(block.bytes.size());
    return {};
  }

  void erase_one(std::map<BlockKey, std::vector<std::byte>>::iterator it) {
    stats.used_bytes -= static_cast<int64_t>(it->second.size());
    contents.erase(it);
  }

  const SimColdStoreConfig config;
  const Schedule schedule;
  const SimColdFaults faults;
  std::deque<Operation> queue;
  std::map<BlockKey, std::vector<std::byte>> contents;
  WeightVersion keep;
  ColdStoreStats stats;
  size_t open = 0;
  bool stopped = false;
};

SimColdStore::SimColdStore(const SimColdStoreConfig& config, Schedule schedule, SimColdFaults faults)
    : device_(std::make_shared<Device>(config, std::move(schedule), std::move(faults))) {}
SimColdStore::~SimColdStore() { device_->stopped = true; }

Status SimColdStore::put(std::vector<ColdBlock> blocks, Done done) {
  Device& d = *device_;
  if (d.open >= d.config.queue_max) return fail(Code::kFull, "simulated cold tier: ", d.open, " operations are open");
  const int64_t duration_us = d.duration_us(blocks, d.config.write_bytes_per_s);
  d.enqueue({true, duration_us, [&d, blocks = std::move(blocks), done = std::move(done)]() mutable {
               std::vector<Status> statuses;
               for (const ColdBlock& block : blocks) statuses.push_back(d.put_one(block));
               done(std::move(statuses), std::move(blocks));
             }});
  return {};
}

Status SimColdStore::get(std::vector<ColdBlock> blocks, Done done) {
  Device& d = *device_;
  if (d.open >= d.config.queue_max) return fail(Code::kFull, "simulated cold tier: ", d.open, " operations are open");
  const int64_t duration_us = d.duration_us(blocks, d.config.read_bytes_per_s);
  d.enqueue({true, duration_us, [&d, blocks = std::move(blocks), done = std::move(done)]() mutable {
               std::vector<Status> statuses;
               for (ColdBlock& block : blocks) statuses.push_back(d.get_one(block));
               done(std::move(statuses), std::move(blocks));
             }});
  return {};
}

void SimColdStore::erase(std::vector<BlockKey> keys) {
  Device& d = *device_;
  d.enqueue({false, 0, [&d, keys = std::move(keys)] {
               for (const BlockKey& key : keys)
                 if (const auto it = d.contents.find(key); it != d.contents.end()) d.erase_one(it);
             }});
}

void SimColdStore::drop_versions_below(WeightVersion keep) {
  Device& d = *device_;
  d.enqueue({false, 0, [&d, keep] {
               d.keep = std::max(d.keep, keep);
               // Keys sort by version first.
               while (!d.contents.empty() && d.contents.begin()->first.version < d.keep) d.erase_one(d.contents.begin());
             }});
}

ColdStoreStats SimColdStore::stats() const {
  ColdStoreStats s = device_->stats;
  s.capacity_bytes = device_->config.capacity_bytes;
  return s;
}

}  // namespace seer
