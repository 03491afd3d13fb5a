#include "storage/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace seer {
namespace fs = std::filesystem;
namespace {

constexpr const char* kLostAndFound = "lost+found";  // at the root of a fresh ext4

/// The name of something in the directory that is not Seer's; empty if there is none.
Result<std::string> find_foreign(const std::string& path, const DirectoryKind& kind) {
  std::error_code error;
  std::string foreign;
  bool was_locked = false, has_data = false;
  for (fs::directory_iterator entry(path, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name == kind.lock_file)
      was_locked = true;
    else if (name == kind.data)
      has_data = true;
    else if (name != kLostAndFound)
      foreign = name;
  }
  if (error) return fail(Code::kIo, "cannot list ", kind.name, " ", path, ": ", error.message());
  if (foreign.empty() && has_data && !was_locked) foreign = kind.data;
  return foreign;
}

/// False: the file was removed by its last holder after we opened it, and another process may hold a new one.
bool is_named(int file, const std::string& path) {
  struct stat held, named;
  return ::fstat(file, &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

}  // namespace

Result<DirectoryLock> DirectoryLock::take(const std::string& path, const DirectoryKind& kind) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return fail(Code::kIo, "cannot create ", kind.name, " ", path, ": ", error.message());
  SEER_ASSIGN_OR_RETURN(const std::string foreign, find_foreign(path, kind));
  if (!foreign.empty())
    return fail(Code::kInvalidArgument, kind.name, " ", path, " holds files that are not Seer's (such as ", foreign,
                "); give it an empty or new directory");

  std::string file_path = path + "/" + kind.lock_file;
  const int file = ::open(file_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return fail(Code::kIo, "cannot write to ", kind.name, " ", path, ": ", std::strerror(errno));
  DirectoryLock lock(std::move(file_path), file);
  if (::flock(file, LOCK_EX | LOCK_NB) != 0 || !is_named(file, lock.file_path_))
    return fail(Code::kUnavailable, kind.name, " ", path, " is in use by another process");
  return lock;
}

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept
    : file_path_(std::move(other.file_path_)), file_(std::exchange(other.file_, -1)) {}

DirectoryLock::~DirectoryLock() {
  if (file_ >= 0) ::close(file_);
}

void DirectoryLock::remove_file() { ::unlink(file_path_.c_str()); }

}  // namespace seer
