// WeightMemory: safetensors that were sent to this process, in anonymous memory of the system (a memfd). It has a name in no file
// system, and is freed with its last user, also when the process is killed. Filled by one thread first, then read by any.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "protocols/result.h"

namespace seer {

class WeightMemory {
 public:
  /// Errors: kIo.
  static Result<std::shared_ptr<WeightMemory>> create();
  ~WeightMemory();
  WeightMemory(const WeightMemory&) = delete;
  WeightMemory& operator=(const WeightMemory&) = delete;

  /// Errors: kIo: the system has no memory for it.
  Status append(std::string_view bytes);
  /// Bytes from `offset` on, at most `bytes_max`; empty at the end. Errors: kIo.
  Result<std::string> read(uint64_t offset, uint64_t bytes_max) const;
  uint64_t bytes() const { return bytes_; }
  int descriptor() const { return descriptor_; }

 private:
  explicit WeightMemory(int descriptor) : descriptor_(descriptor) {}

  const int descriptor_;
  uint64_t bytes_ = 0;
};

}  // namespace seer
