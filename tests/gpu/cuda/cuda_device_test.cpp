#include "gpu/cuda/cuda_device.h"

#include <algorithm>

#include "gpu/cuda/cuda_bench.h"
#include "gpu/cuda/peers.h"

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

TEST_CASE("nccl: its version is known where it is found, and GPUs that it cannot connect are one sentence") {
  const auto version = cuda::nccl_version();
  const auto first = simt::make_simt_device({.says_native = true}), same = simt::make_simt_device({.says_native = true});
  const std::vector<cuda::Device*> pair{first.get(), same.get()};  // both are number 0
  const Error error = cuda::make_nccl_communicators(pair, {.bytes_max = 64}).error();
  CHECK(error.code == Code::kUnavailable);
  if (version.ok()) {
    CHECK(std::ranges::count(*version, '.') == 2);
    CHECK_MESSAGE(error.detail.starts_with("nccl: connecting 2 GPUs: "), error.detail);
  } else {
    CHECK(error.detail == version.error().detail);
  }
  // GPUs never exchange through calls of the host, which CUDA may run one at a time.
  const Error refused = cuda::make_communicators(pair, {.bytes_max = 64}).error();
  CHECK(refused.code == Code::kUnavailable);
  CHECK(refused.detail == (version.ok() ? error.detail : "cuda engine: an instance on 2 GPUs needs NCCL, libnccl.so.2: " + error.detail));
}
