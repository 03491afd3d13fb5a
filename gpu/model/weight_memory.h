// WeightMemory: safetensors that were sent to this process, or left for it by another one, in anonymous memory of the system (a memfd).
// It has a name in no file system, and is freed with its last user, also when that is killed. Filled by one thread first, then read by any.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "protocols/result.h"

namespace seer {

class WeightMemory {
 public:
  /// Errors: kIo.
  static Result<std::shared_ptr<WeightMemory>> create();
  /// Maps the memory of another process, "/proc/PID/fd/N", which must be sealed: nobody can write to it or change its size any more.
  /// Errors: kIo, kInvalidArgument.
  static Result<std::shared_ptr<WeightMemory>> open(const std::string& path);
  ~WeightMemory();
  WeightMemory(const WeightMemory&) = delete;
  WeightMemory& operator=(const WeightMemory&) = delete;

  /// Errors: kIo: the system has no memory for it.
  Status append(std::string_view bytes);
  /// Bytes from `offset` on, at most `bytes_max`; empty at the end. Errors: kIo.
  Result<std::string> read(uint64_t offset, uint64_t bytes_max) const;
  uint64_t bytes() const { return bytes_; }
  /// CRC-32C of all of it. Reads it where it was opened. Errors: kIo.
  Result<uint32_t> crc() const;
  int descriptor() const { return descriptor_; }

 private:
  WeightMemory(int descriptor, uint64_t bytes, std::optional<uint32_t> crc) : descriptor_(descriptor), bytes_(bytes), crc_(crc) {}

  const int descriptor_;
  uint64_t bytes_;
  std::optional<uint32_t> crc_;  // of what was appended; none: it was opened
};

}  // namespace seer
