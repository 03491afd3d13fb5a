#include "gpu/cuda/device_memory.h"

namespace seer::cuda {

int64_t DeviceMemory::bytes(Use use) const {
  int64_t sum = 0;
  for (const Wanted& w : wanted_) sum += w.use == use ? w.bytes : 0;
  return sum;
}

Status DeviceMemory::reserve(Device& device) {
  const int64_t weights = bytes(Use::kWeights), kv = bytes(Use::kKv), workspace = bytes(Use::kWorkspace);
  if (const int64_t sum = weights + kv + workspace; sum > device.properties().free_bytes)
    return fail(Code::kFull, "cuda engine: needs ", sum, " bytes (weights ", weights, ", KV ", kv, ", workspace ", workspace,
                "), ", device.properties().name, " has ", device.properties().free_bytes, " free");
  for (Wanted& w : wanted_) {
    SEER_ASSIGN_OR_RETURN(w.memory, device.allocate(w.bytes));
    w.set(w.memory);
  }
  return {};
}

void DeviceMemory::clear(Device& device) const {
  for (const Wanted& w : wanted_) device.clear(Stream::kSteps, w.memory, w.bytes);
}

}  // namespace seer::cuda
