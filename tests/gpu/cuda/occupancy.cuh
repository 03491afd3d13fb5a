// CUDA's own calculator of occupancy, which needs no GPU.
#pragma once
#include <cuda_occupancy.h>

#include "gpu/cuda/kernel_args.h"

namespace seer {

/// Of a multiprocessor.
inline int shared_bytes_of(int architecture) { return (architecture < 90 ? 164 : 228) << 10; }
/// As many blocks as shared memory alone allows: none of a kernel that is not for this architecture.
inline int blocks_by_shared_memory(int architecture, const cuda::KernelInfo& info) {
  return shared_bytes_of(architecture) / (info.shared_bytes + (1 << 10));
}

/// Blocks of a kernel that run on a multiprocessor at once, by CUDA's own calculator. `architecture`: as 90.
inline int blocks_per_multiprocessor(int architecture, int registers, const cuda::KernelInfo& info) {
  cudaOccDeviceProp chip;
  chip.computeMajor = architecture / 10;
  chip.computeMinor = architecture % 10;
  chip.maxThreadsPerBlock = 1024;
  chip.maxThreadsPerMultiprocessor = 2048;
  chip.regsPerBlock = chip.regsPerMultiprocessor = 65536;
  chip.warpSize = 32;
  chip.sharedMemPerBlock = 48 << 10;
  chip.sharedMemPerMultiprocessor = static_cast<size_t>(shared_bytes_of(architecture));
  chip.sharedMemPerBlockOptin = chip.sharedMemPerMultiprocessor - (1 << 10);
  chip.reservedSharedMemPerBlock = 1 << 10;
  chip.numSms = 108;
  cudaOccFuncAttributes kernel;
  kernel.maxThreadsPerBlock = info.threads;
  kernel.numRegs = registers;
  kernel.sharedSizeBytes = 0;
  kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
  kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  kernel.maxDynamicSharedSizeBytes = chip.sharedMemPerBlockOptin;
  const cudaOccDeviceState state;
  cudaOccResult result;
  const auto found = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &chip, &kernel, &state, info.threads,
                                                             static_cast<size_t>(info.shared_bytes));
  return found == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : 0;
}

}  // namespace seer
