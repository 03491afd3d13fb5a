// A ResponseHistory on RocksDB, in a directory that outlives the process. After a kill at any time it still has every put
// whose `done` had run. See response_history_record.cpp for the bytes. Made by cli. Thread-safe.
//
// A record that cannot be read, or is of another format or vocabulary, is left out and counted. A directory that cannot
// be read at all, is in use or holds files of others gives an error of one sentence that names it: a rollout can go on
// without history.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "protocols/result.h"
#include "storage/response_history.h"

namespace seer {

struct RocksdbResponseHistoryConfig {
  std::string dir;                    // created if need be; must be empty or have been a response history before
  int64_t bytes_max = 4ll << 30;      // of records, before compression
  size_t responses_max = 16;          // per prompt
  size_t response_tokens_max = 32768;
  size_t queue_max = 64;              // operations open at most
  int32_t vocab_tokens = std::numeric_limits<int32_t>::max();  // tokens are below this
};

Result<std::unique_ptr<ResponseHistory>> open_rocksdb_response_history(const RocksdbResponseHistoryConfig& config);

}  // namespace seer
