// The kernels of the CUDA engine, built by the host compiler. In the library that checks every access this file is compiled with
// -fsanitize=thread; see simt_checks.cpp.
#include "simt/simt_kernels.h"

#include "gpu/cuda/kernels/all.cuh"

namespace simt {

bool kernels_have_group_mma() { return true; }

void run_kernel(seer::cuda::KernelId kernel, seer::cuda::Grid grid, const void* args) {
  using namespace seer::cuda;
  void (*body)(const void*) = nullptr;
  switch (kernel) {
#define X(name, Args, ...) \
  case KernelId::k_##name: body = [](const void* p) { name(*static_cast<const Args*>(p)); }; break;
    SEER_CUDA_KERNELS(X)
#undef X
    case KernelId::kCount: return;
  }
  const KernelInfo& info = info_of(kernel);
  const auto dim = [](int32_t n) { return static_cast<unsigned>(n); };
  run_grid({dim(grid.x), dim(grid.y), dim(grid.z)}, dim(info.threads), static_cast<size_t>(info.shared_bytes), args, info.args_bytes,
           body);
}

}  // namespace simt
