// DeviceMemory: all memory of an engine on its device, asked for by name and reserved at once, so that nothing is allocated later
// and an engine that does not fit says so in one sentence. Used by CudaForward and CudaEngine. Single owner.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "gpu/cuda/device.h"

namespace seer::cuda {

class DeviceMemory {
 public:
  enum class Use : uint8_t { kWeights, kKv, kWorkspace };

  /// `pointer` gets room for `count` elements in reserve(); until then it lives and is null.
  template <class T>
  void want(Use use, T*& pointer, int64_t count) {
    pointer = nullptr;
    wanted_.push_back({use, count * static_cast<int64_t>(sizeof(T)), [&pointer](std::byte* p) { pointer = reinterpret_cast<T*>(p); }});
  }
  int64_t bytes(Use use) const;
  int64_t bytes() const { return bytes(Use::kWeights) + bytes(Use::kKv) + bytes(Use::kWorkspace); }
  /// Errors: kFull, with what is needed and what is free.
  Status reserve(Device& device);
  /// Sets all of it to zero.
  void clear(Device& device) const;

 private:
  struct Wanted {
    Use use;
    int64_t bytes;
    std::function<void(std::byte*)> set;
    std::byte* memory = nullptr;
  };
  std::vector<Wanted> wanted_;
};

}  // namespace seer::cuda
