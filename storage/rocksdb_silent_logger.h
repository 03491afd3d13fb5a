// SilentLogger: RocksDB's log, not written. With a log in its folder RocksDB 7.8 ends the process when the disk is full: the log's next
// line fails an assertion. Errors come back from the calls that meet them.
#pragma once
#include <rocksdb/env.h>

#include <cstdarg>

namespace seer {

class SilentLogger final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

}  // namespace seer
