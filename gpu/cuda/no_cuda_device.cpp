// In a build without CUDA; otherwise cuda_runtime_device.cpp.
#include "gpu/cuda/cuda_device.h"

namespace seer::cuda {
namespace {

Error without_cuda() {
  return fail(Code::kUnavailable, "this build has no CUDA engine: install the CUDA toolkit (nvcc), and build again");
}

}  // namespace

bool has_cuda_engine() { return false; }
Result<std::unique_ptr<Device>> open_cuda_device(int32_t) { return without_cuda(); }
Result<int32_t> count_cuda_devices() { return without_cuda(); }
Result<std::shared_ptr<void>> pin_host_memory(std::span<std::byte>) { return without_cuda(); }

}  // namespace seer::cuda
