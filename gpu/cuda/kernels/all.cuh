// All kernels, as kernel_args.h lists them. Included by cuda_kernels.cu and, for tests, by tests/simt/simt_kernels.cpp.
#pragma once
#include "gpu/cuda/kernels/attention.cuh"
#include "gpu/cuda/kernels/gemm.cuh"
#include "gpu/cuda/kernels/rope.cuh"
#include "gpu/cuda/kernels/rows.cuh"
#include "gpu/cuda/kernels/sampling.cuh"
