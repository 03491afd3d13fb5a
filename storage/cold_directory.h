// ColdDirectory: the directory of a cold tier, held by one process at a time and emptied when taken and when given back
// (the cold tier does not outlive its process: keys of a restarted node would have no index). It only ever removes what a
// ColdDirectory made: a directory with anything else in it is refused. Used by the cold stores. Not thread-safe.
#pragma once
#include <memory>
#include <string>
#include <utility>

#include "protocols/result.h"
#include "storage/directory_lock.h"

namespace seer {

class ColdDirectory {
 public:
  /// Creates the directory if need be, locks it and empties it. The error is one sentence that names the path.
  static Result<std::unique_ptr<ColdDirectory>> take(const std::string& path);
  ColdDirectory(const ColdDirectory&) = delete;
  ColdDirectory& operator=(const ColdDirectory&) = delete;
  ~ColdDirectory();  // removes what was put into data(), and unlocks

  /// An empty directory inside, for the store's files.
  const std::string& data() const { return data_; }
  /// True if files in it can be read and written past the page cache (tmpfs, for one, may refuse).
  bool supports_direct_io() const { return direct_io_; }

 private:
  ColdDirectory(DirectoryLock lock, std::string data) : lock_(std::move(lock)), data_(std::move(data)) {}

  DirectoryLock lock_;
  const std::string data_;
  bool direct_io_ = false;
};

}  // namespace seer
