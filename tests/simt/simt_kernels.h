// Runs the kernels of the CUDA engine on the emulation. Implemented twice: simt_kernels.cpp has them from the host compiler,
// ptx_kernels.cpp interprets the PTX that nvcc made of them.
#pragma once
#include "gpu/cuda/device.h"

namespace simt {

/// Whether those for wgmma are among them.
bool kernels_have_group_mma();
void run_kernel(seer::cuda::KernelId kernel, seer::cuda::Grid grid, const void* args);

}  // namespace simt
