// make_simt_device() that opens a GPU of this machine, so that the tests of the engine run there: tests/gpu/run_on_gpu.sh.
// What the configuration asks of the emulation is not done: tests that need it are named "(emulated)", and left out there.
#include <cstdio>
#include <cstdlib>

#include "gpu/cuda/cuda_device.h"
#include "simt/simt_device.h"

namespace simt {

std::unique_ptr<seer::cuda::Device> make_simt_device(const SimtConfig& config) {
  auto device = seer::cuda::open_cuda_device(config.index);
  if (device.ok()) return *std::move(device);
  std::fprintf(stderr, "%s\n", device.error().detail.c_str());
  std::exit(77);
}

int32_t simt_devices_max() { return seer::cuda::count_cuda_devices().value(); }

}  // namespace simt
