// SimtDevice: the device interface of the CUDA engine on simt.h, so that the engine runs end to end without a GPU. Its kernels are
// the engine's own, built by the host compiler, with or without checks of every access (two libraries).
//
// Streams are lists of work that has not run: it runs when somebody waits, a piece of a random stream at a time, as the events
// allow. So a missing event, or host memory that is reused too early, shows as a wrong result.
// Calls of the host run while other devices go on, so that devices can wait for each other.
// Faults are injected at the n-th allocation or launch.
//
// Findings of the emulation are errors of the device: status() gives the first.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "gpu/cuda/device.h"

namespace simt {

struct SimtConfig {
  int32_t index = 0;
  int64_t memory_bytes = int64_t{1} << 30;
  uint64_t seed = 1;             // of the order between streams
  bool group_mma = true;         // with the kernels for wgmma, if the library has them
  int64_t fail_allocation = -1;  // this one fails, counted from 0
  int64_t fail_launch = -1;      // this one, and all work after it
  int64_t graphs_max = 1 << 20;  // for which there is memory
  int64_t hang_launch = -1;      // this one never ends
  bool says_native = false;      // that its streams are CUDA's, as those of a GPU
};

std::unique_ptr<seer::cuda::Device> make_simt_device(const SimtConfig& config);
/// How many devices can be made; their indices begin with 0.
int32_t simt_devices_max();

/// What the launches of a kernel asked memory for since the last call, while options().count was on.
struct KernelCount {
  int64_t launches = 0;
  int64_t read_bytes = 0, written_bytes = 0;  // of global memory
  int64_t sectors = 0, sectors_least = 0;     // of 32 bytes of global memory
  int64_t wavefronts = 0, wavefronts_least = 0;  // of shared memory
  std::map<std::string, double> worst;        // place -> how many times the least it takes, where that is above 1.05
};
std::map<std::string, KernelCount> take_kernel_counts();

}  // namespace simt
