#include "storage/cold_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace seer {
namespace fs = std::filesystem;
namespace {

constexpr const char* kLockName = "seer-cold-tier.lock";
constexpr const char* kDataName = "data";

// Nothing, or the name of something in the directory that no ColdDirectory made.
Result<std::string> find_foreign(const std::string& path) {
  std::error_code error;
  std::string foreign;
  bool locked_before = false;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    const std::string name = entry.path().filename();
    if (name == kLockName)
      locked_before = true;
    else if (name != kDataName && name != "lost+found")  // the latter: root of a fresh ext4
      foreign = name;
  }
  if (error) return fail(Code::kIo, "cannot list cold tier directory ", path, ": ", error.message());
  if (foreign.empty() && !locked_before && fs::exists(fs::path(path) / kDataName)) foreign = kDataName;
  return foreign;
}

bool probe_direct_io(const std::string& data) {
  const std::string file = data + "/direct-io-probe";
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
  if (fd >= 0) ::close(fd);
  ::unlink(file.c_str());
  return fd >= 0;
}

}  // namespace

Result<std::unique_ptr<ColdDirectory>> ColdDirectory::take(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return fail(Code::kIo, "cannot create cold tier directory ", path, ": ", error.message());
  SEER_ASSIGN_OR_RETURN(const std::string foreign, find_foreign(path));
  if (!foreign.empty())
    return fail(Code::kInvalidArgument, "cold tier directory ", path, " holds files that are not Seer's (such as ",
                foreign, "); give it an empty or new directory");

  const std::string lock_path = path + "/" + kLockName;
  const int lock = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) return fail(Code::kIo, "cannot write to cold tier directory ", path, ": ", std::strerror(errno));
  if (::flock(lock, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock);
    return fail(Code::kUnavailable, "cold tier directory ", path, " is in use by another process");
  }
  std::unique_ptr<ColdDirectory> directory(new ColdDirectory(path, lock));
  fs::remove_all(directory->data_, error);
  if (!error) fs::create_directory(directory->data_, error);
  if (error) return fail(Code::kIo, "cannot empty cold tier directory ", directory->data_, ": ", error.message());
  directory->direct_io_ = probe_direct_io(directory->data_);
  return directory;
}

ColdDirectory::ColdDirectory(std::string path, int lock)
    : path_(std::move(path)), data_(path_ + "/" + kDataName), lock_(lock) {}

ColdDirectory::~ColdDirectory() {
  std::error_code ignored;  // what cannot be removed now is removed when the directory is taken again
  fs::remove_all(data_, ignored);
  ::unlink((path_ + "/" + kLockName).c_str());
  ::close(lock_);
}

}  // namespace seer
