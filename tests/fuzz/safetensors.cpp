// Safetensors files, one after the other, in memory: what a client sends as new weights.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "gpu/model/safetensors.h"

using namespace seer;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto memory = WeightMemory::create();
  if (!memory.ok() || !(*memory)->append({reinterpret_cast<const char*>(data), size}).ok()) std::abort();
  const auto file = SafetensorsFile::open(**memory, "upload");
  if (!file.ok()) return 0;
  size_t sum = 0;
  for (const auto& [name, tensor] : (*file)->tensors()) {
    std::vector<std::byte> bytes(tensor.bytes);
    if (!tensor.read(0, bytes).ok()) std::abort();  // every byte may be read
    for (const std::byte byte : bytes) sum += static_cast<size_t>(byte);
  }
  volatile size_t read = sum;
  (void)read;
  return 0;
}
