// The entries of cuda_kernels.cu, for launches.
#pragma once
#include "gpu/cuda/kernel_args.h"

namespace seer::cuda {

const void* kernel_entry(KernelId kernel);

}  // namespace seer::cuda
