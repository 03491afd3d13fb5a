// A GPU through the CUDA runtime, and what is known of those of this machine. In a build without CUDA there is none.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "gpu/cuda/device.h"

namespace seer::cuda {

/// Whether this build has the engine's kernels for GPUs.
bool has_cuda_engine();
/// Opens a GPU. Errors: kUnavailable (a build without CUDA, no driver, no such device, too old), in one sentence.
Result<std::unique_ptr<Device>> open_cuda_device(int32_t index);
/// GPUs of this machine. Errors: as above; none found is no error.
Result<int32_t> count_cuda_devices();
/// Lets all GPUs copy from and to this memory in the background, as long as the pointer lives. Takes all of it from the system at once.
/// Errors: as above, and kFull.
Result<std::shared_ptr<void>> pin_host_memory(std::span<std::byte> bytes);

}  // namespace seer::cuda
