// The cold KV tier on RocksDB: one column family per weight version, every put one sorted SST file that is written past
// the page cache and ingested by move, so that bytes are written once and a version is dropped without rewriting. See
// rocksdb_store.cpp for the layout. Made by cli, owned by KvTiers. Thread-safe.
//
// The tier starts empty and is removed at the end. The space of an erased block is freed when the last block of its put is
// erased: KvTiers puts blocks of one chain together, and they are erased together.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "protocols/result.h"
#include "storage/cold_store.h"

namespace seer {

struct RocksdbStoreConfig {
  std::string dir;                  // created if need be; must be empty or have been a cold tier before
  int64_t capacity_bytes = 0;       // of blocks; beyond that puts answer kFull
  size_t queue_max = 64;            // puts and gets open at most
  int32_t threads = 12;             // own threads, which mostly wait for the disk: a large get is read by all of them
  int32_t writers_max = 4;          // puts written at the same time; fewer than threads, so that reads never wait for one
  std::function<void(const std::string&)> log = {};  // called at open with anything unusual; may be empty
};

/// Errors are one sentence that names the directory: not writable, in use, or holding files that are not ours.
Result<std::unique_ptr<ColdStore>> open_rocksdb_store(const RocksdbStoreConfig& config);

}  // namespace seer
