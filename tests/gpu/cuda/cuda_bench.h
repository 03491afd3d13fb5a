// What the tests of the CUDA engine share: engines on the emulated device.
#pragma once
#include <utility>
#include <vector>

#include "gpu/cpu/cpu_engine.h"
#include "gpu/cuda/cuda_engine.h"
#include "gpu/engine_bench.h"
#include "simt/simt_device.h"

namespace seer {

inline CudaEngineConfig small_config(CudaType type) {
  return {.type = type, .device_blocks = 64, .slots_max = 32, .rows_max = 128, .row_splits_max = 256, .tree_rows_max = 70};
}

/// Devices for the ranks of an engine.
inline std::vector<std::unique_ptr<cuda::Device>> simt_devices(int ranks, const simt::SimtConfig& config = {}) {
  std::vector<std::unique_ptr<cuda::Device>> devices;
  for (int rank = 0; rank < ranks; ++rank) {
    simt::SimtConfig own = config;
    own.index = rank;
    own.seed += static_cast<uint64_t>(rank);
    devices.push_back(simt::make_simt_device(own));
  }
  return devices;
}

/// Device memory with a copy of these values.
template <class T>
std::byte* put_on(cuda::Device& device, const std::vector<T>& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  std::byte* const to = *device.allocate(bytes);
  device.copy_in(cuda::Stream::kSteps, to, values.data(), bytes);
  REQUIRE(device.wait(device.record(cuda::Stream::kSteps)).ok());
  return to;
}

inline std::unique_ptr<Engine> simt_engine(const std::shared_ptr<const Model>& model, const CudaEngineConfig& config,
                                           const simt::SimtConfig& device = {}) {
  auto engine = make_cuda_engine(model, simt::make_simt_device(device), config);
  REQUIRE_MESSAGE(engine.ok(), engine.error().detail);
  return *std::move(engine);
}

}  // namespace seer
