#include "gpu/cuda/cuda_device.h"

#include <doctest/doctest.h>

using namespace seer;

TEST_CASE("cuda device: without a GPU, a driver or CUDA in the build, the error is one sentence") {
  const auto devices = cuda::count_cuda_devices();
  if (!cuda::has_cuda_engine()) {
    CHECK(devices.error().detail == "this build has no CUDA engine: install the CUDA toolkit (nvcc), and build again");
    CHECK(cuda::open_cuda_device(0).error().code == Code::kUnavailable);
    return;
  }
  if (!devices.ok()) {
    CHECK(devices.error().code == Code::kUnavailable);
    CHECK(devices.error().detail.starts_with("cuda: "));
    CHECK(cuda::open_cuda_device(0).error().detail == devices.error().detail);
    return;
  }
  const auto none = cuda::open_cuda_device(*devices);
  REQUIRE(!none.ok());
  CHECK(none.error().detail == cat("cuda: no device ", *devices, ", this machine has ", *devices));
}
