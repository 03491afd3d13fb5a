// The few instructions that kernels use beyond plain CUDA C++, each with two bodies: PTX for the GPU, simt/simt.h for tests on
// the CPU. Kernels contain no asm and no #ifdef. Each PTX body is one instruction, because no test here runs it on a GPU.
#pragma once
#include <cstdint>

#if defined(__CUDACC__)
#define GPU_INLINE __device__ __forceinline__
#else
#include "simt/simt.h"
#define GPU_INLINE inline __attribute__((always_inline))
#endif
#define SEER_INLINE GPU_INLINE  // exact_math_body.h is compiled as device code
#include "gpu/cpu/exact_math_body.h"
#include "gpu/cuda/kernel_args.h"

// Tests of the checker leave one line out at a time; elsewhere this is nothing.
#if defined(SEER_PLANTED_BUGS)
#define PLANTED(n) (simt::options().planted == (n))
#else
#define PLANTED(n) false
#endif
#define UNLESS_PLANTED(n) if (!PLANTED(n))

// Device code is in an unnamed namespace, so that the build for the GPU and the one for the CPU can be in one program.
namespace seer::cuda {
namespace {

struct alignas(8) Float2 {
  float x, y;
};
struct alignas(16) Float4 {
  float at[4];
};
struct alignas(8) Words2 {
  uint32_t x, y;
};
struct alignas(16) Words4 {
  uint32_t x, y, z, w;
};

#if defined(__CUDACC__)

GPU_INLINE unsigned char* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char shared[];  // as the swizzle of wgmma wants it
  return shared;
}
// The kernel before in the stream may still run: what it writes may be touched only after wait_for_previous(). The next one may begin.
// Each block waits, also one with nothing to do: when all have ended, the next kernel takes those before them to be over too.
GPU_INLINE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
GPU_INLINE void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
GPU_INLINE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Copies 16 bytes in the background.
GPU_INLINE void copy_async_16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
// Likewise, or writes zeros where `valid` is false.
GPU_INLINE void copy_async_16(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(valid ? 16 : 0) : "memory");
}
GPU_INLINE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kOpen>
GPU_INLINE void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory"); }

GPU_INLINE void load_matrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
GPU_INLINE void load_matrix_x4_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
// d += a * b: 16 x 16 times 16 x 8.
GPU_INLINE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
               "{%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// wgmma, of capability 9.0: a group of four warps multiplies in the background. Between begin and wait the sums are not touched.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kHasGroupMma = true;
GPU_INLINE void show_to_group_mma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }  // what was written before
GPU_INLINE void group_mma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
GPU_INLINE void group_mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kOpen>
GPU_INLINE void group_mma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kOpen) : "memory"); }
// A matrix in shared memory: rows of 128 bytes, swizzled, eight after 1024 bytes.
GPU_INLINE uint64_t group_mma_matrix(const void* first) {
  return uint64_t{(shared_address(first) & 0x3ffff) >> 4} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
#define SEER_SUMS_4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define SEER_SUMS_32(i) \
  SEER_SUMS_4(i), SEER_SUMS_4(i + 1), SEER_SUMS_4(i + 2), SEER_SUMS_4(i + 3), \
  SEER_SUMS_4(i + 4), SEER_SUMS_4(i + 5), SEER_SUMS_4(i + 6), SEER_SUMS_4(i + 7)
// d += a * w: 64 x 16 times 16 x kColumns. A thread has what it would have of fragments of mma.
template <int kColumns>
GPU_INLINE void group_mma(float (*d)[4], const void* a, const void* w) {
  static_assert(kColumns == 64 || kColumns == 96 || kColumns == 128 || kColumns == 144);
  if constexpr (kColumns == 64)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "%32, %33, 1, 1, 1, 0, 0;"
        : SEER_SUMS_32(0) : "l"(group_mma_matrix(a)), "l"(group_mma_matrix(w)));
  else if constexpr (kColumns == 96)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}, "
        "%48, %49, 1, 1, 1, 0, 0;"
        : SEER_SUMS_32(0), SEER_SUMS_4(8), SEER_SUMS_4(9), SEER_SUMS_4(10), SEER_SUMS_4(11) : "l"(group_mma_matrix(a)), "l"(group_mma_matrix(w)));
  else if constexpr (kColumns == 128)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
        "%64, %65, 1, 1, 1, 0, 0;"
        : SEER_SUMS_32(0), SEER_SUMS_32(8) : "l"(group_mma_matrix(a)), "l"(group_mma_matrix(w)));
  else
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n144k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
        "%64,%65,%66,%67,%68,%69,%70,%71}, "
        "%72, %73, 1, 1, 1, 0, 0;"
        : SEER_SUMS_32(0), SEER_SUMS_32(8), SEER_SUMS_4(16), SEER_SUMS_4(17) : "l"(group_mma_matrix(a)), "l"(group_mma_matrix(w)));
}
// The sums are read after the wait, not before.
template <int kFrags>
GPU_INLINE void group_mma_results(float (&d)[kFrags][4]) {
#pragma unroll
  for (int i = 0; i < kFrags; ++i) asm volatile("" : SEER_SUMS_4(i)::"memory");
}
#else
constexpr bool kHasGroupMma = false;
GPU_INLINE void show_to_group_mma() {}
GPU_INLINE void group_mma_begin() {}
GPU_INLINE void group_mma_commit() {}
template <int kOpen>
GPU_INLINE void group_mma_wait() {}
template <int kColumns>
GPU_INLINE void group_mma(float (*)[4], const void*, const void*) {}
template <int kFrags>
GPU_INLINE void group_mma_results(float (&)[kFrags][4]) {}
#endif
// The same pointer, from which the compiler computes anew: constants added to it stay offsets of instructions.
template <class T>
GPU_INLINE T* fixed(T* p) {
  asm("" : "+l"(p));
  return p;
}
template <class T>
GPU_INLINE T load(const void* p) { return *static_cast<const T*>(p); }
template <class T>
GPU_INLINE void store(void* p, const T& x) { *static_cast<T*>(p) = x; }
GPU_INLINE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
GPU_INLINE uint32_t float_bits(float x) { return __float_as_uint(x); }
GPU_INLINE float bits_float(uint32_t x) { return __uint_as_float(x); }
// Two floats to bf16 by nearest even; `low` in the low half.
GPU_INLINE uint32_t pack_bf16(float low, float high) {
  uint32_t y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

#else

inline unsigned char* dynamic_shared() { return simt::dynamic_shared(); }
GPU_INLINE void wait_for_previous() {}
GPU_INLINE void let_next_begin() {}
GPU_INLINE void copy_async_16(void* shared, const void* global) { simt::async_copy(shared, global, 16, 16); }
GPU_INLINE void copy_async_16(void* shared, const void* global, bool valid) {
  simt::async_copy(shared, global, 16, valid ? 16 : 0);
}
GPU_INLINE void copy_async_commit() { simt::async_commit(); }
template <int kOpen>
GPU_INLINE void copy_async_wait() { simt::async_wait(kOpen); }
GPU_INLINE void load_matrix_x4(uint32_t (&r)[4], const void* row) { simt::load_matrix(row, r, false); }
GPU_INLINE void load_matrix_x4_transposed(uint32_t (&r)[4], const void* row) { simt::load_matrix(row, r, true); }
GPU_INLINE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t b[2] = {b0, b1};
  simt::mma_bf16(d, a, b);
}
constexpr bool kHasGroupMma = true;
GPU_INLINE void show_to_group_mma() { simt::group_mma_show(); }
GPU_INLINE void group_mma_begin() { simt::group_mma_begin(); }
GPU_INLINE void group_mma_commit() { simt::group_mma_commit(); }
template <int kOpen>
GPU_INLINE void group_mma_wait() { simt::group_mma_wait(kOpen); }
template <int kColumns>
GPU_INLINE void group_mma(float (*d)[4], const void* a, const void* w) { simt::group_mma(d, a, w, kColumns); }
template <int kFrags>
GPU_INLINE void group_mma_results(float (&)[kFrags][4]) {}
template <class T>
GPU_INLINE T* fixed(T* p) { return p; }
// One access of 8 or 16 bytes, where the host compiler would make several.
template <class T>
GPU_INLINE T load(const void* p) {
  T x;
  simt::load_bytes(&x, p, sizeof(T));
  return x;
}
template <class T>
GPU_INLINE void store(void* p, const T& x) {
  simt::store_bytes(p, &x, sizeof(T));
}
GPU_INLINE float exp2_approx(float x) { return exp2f(x); }
GPU_INLINE uint32_t float_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
GPU_INLINE float bits_float(uint32_t x) { return __builtin_bit_cast(float, x); }
GPU_INLINE uint32_t round_bf16(float x) {
  const uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
GPU_INLINE uint32_t pack_bf16(float low, float high) { return round_bf16(low) | round_bf16(high) << 16; }

#endif

GPU_INLINE float low_bf16(uint32_t pair) { return bits_float(pair << 16); }
GPU_INLINE float high_bf16(uint32_t pair) { return bits_float(pair & 0xffff0000); }

// Activations and KV are bf16, or float in f32 mode.
struct Bf16 {
  static constexpr bool kHasParts = true;   // products with matrices may come in parts
  static constexpr bool kPadsHeads = true;  // padded_dim may be more than head_dim
  using Value = uint16_t;
  GPU_INLINE static float load(uint16_t x) { return low_bf16(x); }
  GPU_INLINE static uint16_t round(float x) { return static_cast<uint16_t>(pack_bf16(x, 0.0f)); }
  GPU_INLINE static Float4 load4(const uint16_t* p) {
    const auto pairs = cuda::load<Words2>(p);
    return {{low_bf16(pairs.x), high_bf16(pairs.x), low_bf16(pairs.y), high_bf16(pairs.y)}};
  }
};
struct F32 {
  static constexpr bool kHasParts = false, kPadsHeads = false;
  using Value = float;
  GPU_INLINE static float load(float x) { return x; }
  GPU_INLINE static float round(float x) { return x; }
  GPU_INLINE static Float4 load4(const float* p) { return cuda::load<Float4>(p); }
};

// A struct whose size is a multiple of 16, read or written 16 bytes at a time.
template <class T>
struct Pieces {
  Words4 at[sizeof(T) / 16];
};
template <class T>
GPU_INLINE T load_struct(const T* p) {
  Pieces<T> pieces;
#pragma unroll
  for (size_t i = 0; i < sizeof(T) / 16; ++i) pieces.at[i] = load<Words4>(reinterpret_cast<const Words4*>(p) + i);
  return std::bit_cast<T>(pieces);
}
template <class T>
GPU_INLINE void store_struct(T* p, const T& x) {
  const auto pieces = std::bit_cast<Pieces<T>>(x);
#pragma unroll
  for (size_t i = 0; i < sizeof(T) / 16; ++i) store(reinterpret_cast<Words4*>(p) + i, pieces.at[i]);
}

template <class T>
GPU_INLINE const T* after(const Plan* plan, int32_t bytes) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(plan + 1) + bytes);
}
GPU_INLINE const PlanRow* plan_rows(const Plan* plan) { return after<PlanRow>(plan, 0); }
GPU_INLINE const PlanSample* plan_samples(const Plan* plan) {
  return after<PlanSample>(plan, plan->rows * static_cast<int32_t>(sizeof(PlanRow)));
}
GPU_INLINE const PlanTree* plan_trees(const Plan* plan) {
  return after<PlanTree>(plan, plan->rows * static_cast<int32_t>(sizeof(PlanRow)) +
                                   plan->samples * static_cast<int32_t>(sizeof(PlanSample)));
}
GPU_INLINE const PlanTile* plan_tiles(const Plan* plan) {
  return after<PlanTile>(plan, plan->rows * static_cast<int32_t>(sizeof(PlanRow)) +
                                   plan->samples * static_cast<int32_t>(sizeof(PlanSample)) +
                                   plan->trees * static_cast<int32_t>(sizeof(PlanTree)));
}
// Rows that a launch works on: those of the plan, or its samples from `first` on.
GPU_INLINE int launch_rows(const Plan* plan, int32_t samples, int32_t first) {
  if (!samples) return plan->rows;
  const int left = plan->samples - first;
  return left < kSamplesMax ? left : kSamplesMax;
}

// Whether the plan has no row `row`. `known` is something of it that is never negative: it is loaded together with the number of rows, not
// after the branch that waits for that. The row may be of a former pass.
GPU_INLINE bool lacks_row(const Plan* plan, int row, int known) { return (row >= plan->rows) | (known < 0); }

constexpr int kNoRoot = 0x7fffffff;  // RowState::root of a row in no tree

GPU_INLINE int thread_index() { return static_cast<int>(threadIdx.x); }
GPU_INLINE int block_x() { return static_cast<int>(blockIdx.x); }
GPU_INLINE int block_y() { return static_cast<int>(blockIdx.y); }
GPU_INLINE int block_z() { return static_cast<int>(blockIdx.z); }

}  // namespace
}  // namespace seer::cuda
