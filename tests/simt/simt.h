// SIMT on the CPU: CUDA kernels, compiled by the host compiler, run here so that tests can check them without a GPU.
// A thread of a block is a fiber; a block runs alone, its threads in an order that a seed decides. Where a kernel's file
// is built with -fsanitize=thread, the hooks of that option (simt_checks.cpp has them instead of libtsan) see every load and
// store, without a change to the kernel:
//   bounds      nothing outside of device buffers, the block's shared memory and the thread's own stack
//   init        nothing is read that was never written
//   race        two threads, one of them writing, without a barrier between them; two blocks of one launch likewise
//   in flight   cp.async: nobody touches the bytes before their thread has waited; wgmma: it follows a fence, and what it reads was shown
//               to it and stays until it is waited for
//   alignment   of every access to its size
//   divergence  barriers and warp collectives that not all threads reach, or at different places
// Without that option the same kernels run about ten times faster, with only the last one checked.
//
// REQUIRES: one OS thread uses it at a time (SimtDevice has a lock); kernels hold no objects with destructors (a launch that
// fails is abandoned).
// Not modelled: races through atomics and __threadfence (a hand-made lock is reported), named barriers, clusters,
// TMA, kernels that begin before the one before has ended, and time.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace simt {

struct Dim3 {
  unsigned x, y, z;
  constexpr Dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
inline size_t volume(Dim3 d) { return size_t{d.x} * d.y * d.z; }

enum class Order { kForward, kReverse, kRandom };
enum class Mma { kChain, kTruncatingTree };  // in what order, with what rounding an mma adds: nobody may depend on it

struct Options {
  Order order = Order::kForward;
  uint64_t seed = 1;
  Mma mma = Mma::kChain;
  int planted = 0;  // which line kernels leave out, see gpu.h
  bool count = false;  // sectors and bank conflicts per place
  size_t shared_bytes_max = 227 << 10;
};
Options& options();

struct Finding {
  std::string kind;  // bounds, init, race, in_flight, alignment, divergence, limit
  std::string text;  // with file and line
};
/// Those since the last call; at most one per kind and place.
std::vector<Finding> take_findings();

/// What the warps asked memory for at one place of the source. `*_min` is what the same bytes need at best.
struct SiteCount {
  std::string place;
  bool shared = false, write = false;
  uint64_t requests = 0, bytes = 0;
  uint64_t units = 0, units_min = 0;  // 32-byte sectors of global memory; wavefronts of shared memory
};
std::vector<SiteCount> take_counts();

void* device_alloc(size_t bytes);  // contents undefined, and known to be
void device_free(void* p);
void copy_to_device(void* to, const void* from, size_t bytes);
void fill_device(void* to, int byte, size_t bytes);
void copy_from_device(void* to, const void* from, size_t bytes);  // also checks that all of it was written
void run_grid(Dim3 grid, Dim3 block, size_t shared_bytes, const void* args, size_t args_bytes,
              void (*body)(const void* args));

// --- what a kernel calls ---
Dim3 thread_idx();
Dim3 block_idx();
Dim3 block_dim();
Dim3 grid_dim();
unsigned char* dynamic_shared();
void barrier();
void sync_warp(uint32_t mask);
uint64_t shuffle(uint32_t mask, uint64_t value, int source_lane);
uint32_t ballot(uint32_t mask, bool predicate);
void load_matrix(const void* row, uint32_t out[4], bool transposed);
void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]);
void group_mma(float (*d)[4], const void* a, const void* w, int columns);  // wgmma: 64 x 16 times 16 x columns, rows of 128 bytes swizzled
void group_mma_show();   // fence.proxy.async
void group_mma_begin();  // wgmma.fence
void group_mma_commit();
int group_mma_wait(int groups_open);  // how many multiplications are still open
void async_copy(void* shared, const void* global, int bytes, int bytes_valid);
void async_commit();
void async_wait(int groups_open);
void access(const void* p, int bytes, bool write);  // one memory instruction of this thread, at the caller's place
void load_bytes(void* to, const void* from, int bytes);   // likewise, and does it; `to` is the thread's own
void store_bytes(void* to, const void* from, int bytes);
uint64_t atomic_add(void* p, uint64_t value, int bytes);
uint64_t atomic_or(void* p, uint64_t value, int bytes);
// For an interpreter: what findings give as the place, instead of the caller's line; and to give up.
void set_place(const std::string* place);
void refuse(const std::string& why);
void check_all_accesses();

template <class... P>
void launch_kernel(void (*kernel)(P...), Dim3 grid, Dim3 block, size_t shared_bytes, P... args) {
  const std::tuple<void (*)(P...), P...> call(kernel, args...);
  run_grid(grid, block, shared_bytes, &call, sizeof call, [](const void* p) {
    std::apply([](void (*k)(P...), const P&... a) { k(a...); }, *static_cast<const decltype(call)*>(p));
  });
}

}  // namespace simt

// --- the language of CUDA, as far as the kernels use it ---
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define threadIdx (simt::thread_idx())
#define blockIdx (simt::block_idx())
#define blockDim (simt::block_dim())
#define gridDim (simt::grid_dim())
#define __syncthreads() simt::barrier()
inline void __syncwarp(uint32_t mask = ~0u) { simt::sync_warp(mask); }

namespace simt {
template <class T>
T shuffle_value(uint32_t mask, T value, int source_lane) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = shuffle(mask, bits, source_lane);
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}
inline int lane_id() { return static_cast<int>(thread_idx().x % 32); }
}  // namespace simt
template <class T>
T __shfl_sync(uint32_t mask, T v, int lane) { return simt::shuffle_value(mask, v, lane & 31); }
template <class T>
T __shfl_xor_sync(uint32_t mask, T v, int x) { return simt::shuffle_value(mask, v, simt::lane_id() ^ x); }
template <class T>
T __shfl_up_sync(uint32_t mask, T v, int n) {
  return simt::shuffle_value(mask, v, simt::lane_id() < n ? simt::lane_id() : simt::lane_id() - n);
}
inline uint32_t __ballot_sync(uint32_t mask, bool p) { return simt::ballot(mask, p); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __ffs(uint32_t x) { return __builtin_ffs(static_cast<int>(x)); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint32_t>(uint64_t{a} * b >> 32); }
template <class T>
T atomicAdd(T* p, T v) {
  static_assert(std::is_integral_v<T>, "float atomics make the result depend on timing");
  return static_cast<T>(simt::atomic_add(p, static_cast<uint64_t>(v), sizeof(T)));
}
template <class T>
T atomicOr(T* p, T v) {
  static_assert(std::is_integral_v<T>);
  return static_cast<T>(simt::atomic_or(p, static_cast<uint64_t>(v), sizeof(T)));
}
