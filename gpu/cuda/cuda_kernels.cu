// All kernels of the CUDA engine, built by nvcc: an entry per kernel with a plain name, and the table of them.
#include "gpu/cuda/cuda_kernels.h"
#include "gpu/cuda/kernels/all.cuh"

namespace seer::cuda {

// At least one block per multiprocessor: without the 1, ptxas aims at more and spills registers for it.
#define X(name, Args, threads, ...) \
  extern "C" __global__ void __launch_bounds__(threads, 1) seer_##name(const __grid_constant__ Args args) { \
    if constexpr (!waits_itself(KernelId::k_##name)) {                                                     \
      let_next_begin();                                                                                    \
      wait_for_previous();                                                                                 \
    }                                                                                                      \
    name(args);                                                                                            \
  }
SEER_CUDA_KERNELS(X)
#undef X

const void* kernel_entry(KernelId kernel) {
  static const void* const entries[] = {
#define X(name, ...) reinterpret_cast<const void*>(seer_##name),
      SEER_CUDA_KERNELS(X)
#undef X
  };
  return entries[static_cast<int32_t>(kernel)];
}

}  // namespace seer::cuda
