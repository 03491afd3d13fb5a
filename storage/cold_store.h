// ColdStore: the seam to the cold KV tier (RocksDB on SSD; a simulation). Used by KvTiers only. Operations are queued and
// run on threads of the store, puts and gets in parallel: a get or an erase sees every put whose `done` has run.
// `done` runs on such a thread and must only hand the result over. At most `queue_max` puts and gets are open: beyond that
// they answer kFull at once. All blocks of a put have one weight version and belong together: they are best put, and
// erased, as whole chains.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "protocols/kv.h"
#include "protocols/result.h"

namespace seer {

struct ColdBlock {
  BlockKey key;
  std::span<std::byte> bytes;  // put: what to store; get: where to read to (the stored size must match). Valid until done
  uint32_t crc32c = 0;         // put: of the bytes; get: filled in from what was read, for the caller to check
};

struct ColdStoreStats {
  int64_t used_bytes = 0;      // of blocks stored and not erased or dropped
  int64_t capacity_bytes = 0;
  int64_t written_bytes = 0;   // payload, total
  int64_t read_bytes = 0;
  int64_t cpu_us = 0;          // CPU time of the store's own threads
};

class ColdStore {
 public:
  /// One Status per block, in order.
  using Done = std::function<void(std::vector<Status>, std::vector<ColdBlock>)>;

  virtual ~ColdStore() = default;
  /// Stores the blocks. Disk or capacity full: kFull for the blocks that do not fit; those stored before stay readable.
  virtual Status put(std::vector<ColdBlock> blocks, Done done) = 0;
  virtual Status get(std::vector<ColdBlock> blocks, Done done) = 0;
  /// Forgets blocks (no answer; unknown keys are ignored).
  virtual void erase(std::vector<BlockKey> keys) = 0;
  /// Drops all data of weight versions below `keep`.
  virtual void drop_versions_below(WeightVersion keep) = 0;
  virtual ColdStoreStats stats() const = 0;  // thread-safe
};

}  // namespace seer
