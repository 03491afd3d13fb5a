// DirectoryLock: a directory that belongs to Seer, held by one process at a time. The lock file marks it as Seer's: a
// directory is taken if it is new or empty, or if it holds only that file and the folder with the data. Used by all stores
// on disk. Not thread-safe.
#pragma once
#include <string>
#include <utility>

#include "protocols/result.h"

namespace seer {

/// One kind of directory.
struct DirectoryKind {
  const char* name;       // in errors, such as "cold tier directory"
  const char* lock_file;  // the file in it that is locked
  const char* data;       // the folder in it, which the owner of the lock makes
};

class DirectoryLock {
 public:
  /// Creates the directory if need be and locks it; does not touch the data. Each error is one sentence that names the path:
  /// kIo (it cannot be made, listed or written to), kInvalidArgument (it holds other files), kUnavailable (it is in use by
  /// another process).
  static Result<DirectoryLock> take(const std::string& path, const DirectoryKind& kind);
  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&&) = delete;
  ~DirectoryLock();  // unlocks; the lock file stays, to mark the directory as Seer's

  /// Removes only the lock file: the directory is no longer marked as Seer's.
  void remove_file();

 private:
  DirectoryLock(std::string file_path, int file) : file_path_(std::move(file_path)), file_(file) {}

  std::string file_path_;
  int file_;  // descriptor that holds the lock; -1: moved from
};

}  // namespace seer
