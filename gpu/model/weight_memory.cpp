#include "gpu/model/weight_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace seer {

Result<std::shared_ptr<WeightMemory>> WeightMemory::create() {
  const int descriptor = ::memfd_create("seer-weights", MFD_CLOEXEC);
  if (descriptor < 0) return fail(Code::kIo, "cannot make memory for weights: ", std::strerror(errno));
  return std::shared_ptr<WeightMemory>(new WeightMemory(descriptor));
}

WeightMemory::~WeightMemory() { ::close(descriptor_); }

Status WeightMemory::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return fail(Code::kIo, "no memory for weights after ", bytes_, " bytes: ", std::strerror(errno));
    bytes_ += static_cast<uint64_t>(written);
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

}  // namespace seer
