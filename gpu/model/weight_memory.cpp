#include "gpu/model/weight_memory.h"

#include <sys/mman.h>
#include <unistd.h>

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

}  // namespace seer
