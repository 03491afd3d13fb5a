// Safetensors files, one after the other, in memory: what a client sends as new weights.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "gpu/model/safetensors.h"

using namespace seer;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto memory = WeightMemory::create();
  if (!memory.ok() || !(*memory)->append({reinterpret_cast<const char*>(data), size}).ok()) std::abort();
  const auto file = SafetensorsFile::map(**memory, "upload");
  if (!file.ok()) return 0;
  size_t sum = 0;
  for (const auto& [name, tensor] : (*file)->tensors()) {
    for (const std::byte byte : tensor.bytes) sum += static_cast<size_t>(byte);  // every byte may be read
    if (!tensor.shape.empty()) sum += tensor.rows(0, tensor.shape[0]).bytes.size();
  }
  volatile size_t read = sum;
  (void)read;
  return 0;
}
