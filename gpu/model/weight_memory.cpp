#include "gpu/model/weight_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "protocols/crc32c.h"

namespace seer {
namespace {

constexpr uint64_t kReadBytes = 1 << 20;  // at a time

}  // namespace

Result<std::shared_ptr<WeightMemory>> WeightMemory::create() {
  const int descriptor = ::memfd_create("seer-weights", MFD_CLOEXEC);
  if (descriptor < 0) return fail(Code::kIo, "cannot make memory for weights: ", std::strerror(errno));
  return std::shared_ptr<WeightMemory>(new WeightMemory(descriptor, 0, 0));
}

Result<std::shared_ptr<WeightMemory>> WeightMemory::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return fail(Code::kIo, "cannot open the memory ", path, ": ", std::strerror(errno));
  constexpr int kSealed = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
  struct stat status {};
  const int seals = ::fcntl(descriptor, F_GET_SEALS);  // -1: it is no memory
  if (seals < 0 || (seals & kSealed) != kSealed || ::fstat(descriptor, &status) != 0) {
    ::close(descriptor);
    return fail(Code::kInvalidArgument, path, " is no memory that is sealed: expected a memfd that nobody can change any more");
  }
  return std::shared_ptr<WeightMemory>(new WeightMemory(descriptor, static_cast<uint64_t>(status.st_size), {}));
}

WeightMemory::~WeightMemory() { ::close(descriptor_); }

Status WeightMemory::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return fail(Code::kIo, "no memory for weights after ", bytes_, " bytes: ", std::strerror(errno));
    bytes_ += static_cast<uint64_t>(written);
    crc_ = crc32c(std::as_bytes(std::span(bytes.substr(0, static_cast<size_t>(written)))), *crc_);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

Result<std::string> WeightMemory::read(uint64_t offset, uint64_t bytes_max) const {
  std::string bytes(offset < bytes_ ? std::min(bytes_max, bytes_ - offset) : 0, '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::pread(descriptor_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return fail(Code::kIo, "cannot read weights at byte ", offset + done, ": ", std::strerror(errno));
    done += static_cast<size_t>(got);
  }
  return bytes;
}

Result<uint32_t> WeightMemory::crc() const {
  if (crc_) return *crc_;
  uint32_t crc = 0;
  for (uint64_t offset = 0; offset < bytes_; offset += kReadBytes) {
    SEER_ASSIGN_OR_RETURN(const std::string part, read(offset, kReadBytes));
    crc = crc32c(std::as_bytes(std::span(part)), crc);
  }
  return crc;
}

}  // namespace seer
