// Errors of RocksDB as those of Seer. Used by the files that open a RocksDB database.
#pragma once
#include <rocksdb/status.h>

#include <string_view>

#include "protocols/result.h"

namespace seer {

/// `doing`: what failed, for the message. kFull: no space; kCorrupt; kNotFound; kIo: anything else. REQUIRES: !status.ok().
inline Error rocksdb_error(const rocksdb::Status& status, std::string_view doing) {
  const Code code = status.IsNoSpace()      ? Code::kFull
                    : status.IsCorruption() ? Code::kCorrupt
                    : status.IsNotFound()   ? Code::kNotFound
                                            : Code::kIo;
  return fail(code, doing, ": ", status.ToString());
}

}  // namespace seer
