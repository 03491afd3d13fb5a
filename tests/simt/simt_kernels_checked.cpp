// simt_kernels.cpp, compiled with a call before each access to memory, and with lines that tests leave out (PLANTED in gpu.h).
#include "simt/simt_kernels.cpp"  // NOLINT: the same kernels
