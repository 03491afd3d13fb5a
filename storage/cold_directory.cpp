#include "storage/cold_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

namespace seer {
namespace fs = std::filesystem;
namespace {

constexpr DirectoryKind kKind = {.name = "cold tier directory", .lock_file = "seer-cold-tier.lock", .data = "data"};

bool probe_direct_io(const std::string& data) {
  const std::string file = data + "/direct-io-probe";
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
  if (fd >= 0) ::close(fd);
  ::unlink(file.c_str());
  return fd >= 0;
}

}  // namespace

Result<std::unique_ptr<ColdDirectory>> ColdDirectory::take(const std::string& path) {
  SEER_ASSIGN_OR_RETURN(DirectoryLock lock, DirectoryLock::take(path, kKind));
  std::unique_ptr<ColdDirectory> directory(new ColdDirectory(std::move(lock), path + "/" + kKind.data));
  std::error_code error;
  fs::remove_all(directory->data_, error);
  if (!error) fs::create_directory(directory->data_, error);
  if (error) return fail(Code::kIo, "cannot empty cold tier directory ", directory->data_, ": ", error.message());
  directory->direct_io_ = probe_direct_io(directory->data_);
  return directory;
}

ColdDirectory::~ColdDirectory() {
  std::error_code error;
  fs::remove_all(data_, error);
  if (!error) lock_.remove_file();  // else the lock says whose the rest is, which is removed when the directory is taken again
}

}  // namespace seer
