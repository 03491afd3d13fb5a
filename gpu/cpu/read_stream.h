// ReadStream: how fast this machine reads memory, as a limit for a step, which reads weights and KV. Loads in order
// with software prefetch, on the threads of a pool, from a buffer that no cache holds. Used by machine_limits.cpp and
// bench_engine.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gpu/cpu/aligned_array.h"
#include "gpu/cpu/thread_pool.h"
#include "protocols/check.h"

namespace seer {

class ReadStream {
 public:
  static constexpr size_t kPieceBytes = size_t{2} << 20;

  /// `pool` is borrowed. REQUIRES: `bytes`, several times a large last-level cache, is a multiple of kPieceBytes.
  explicit ReadStream(ThreadPool& pool, size_t bytes = size_t{1} << 30) : pool_(pool), buffer_(bytes), sums_(pool.threads()) {
    SEER_CHECK(bytes % kPieceBytes == 0, bytes);
    std::memset(buffer_.data(), 1, bytes);  // else all pages would be one page of zeros
  }

  /// One pass over the buffer, in GB/s (10^9 bytes).
  double measure_gb_s() {
    const auto begin = std::chrono::steady_clock::now();
    pool_.run_ranges(static_cast<int32_t>(buffer_.size() / kPieceBytes), 1, [&](int32_t first, int32_t end, int32_t thread) {
      sums_[static_cast<size_t>(thread)] +=
          sum_(buffer_.data() + first * kPieceBytes, static_cast<size_t>(end - first) * kPieceBytes);
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return static_cast<double>(buffer_.size()) / seconds * 1e-9;
  }
  /// Sum of all that was read so far: that it is used keeps the reading from being optimised away.
  uint64_t checksum() const {
    uint64_t sum = 0;
    for (size_t i = 0; i < sums_.size(); ++i) sum += sums_[i];
    return sum;
  }

 private:
  static constexpr ptrdiff_t kAheadBytes =
      1024;  // past the end too: a prefetch of an address that is not there does nothing

  using SumFn = uint64_t (*)(const std::byte* data, size_t bytes);  // bytes: a multiple of 128; data aligned to 64

#if defined(__x86_64__)
  __attribute__((target("avx512f"))) static uint64_t sum_avx512(const std::byte* data, size_t bytes) {
    __m512i a = _mm512_setzero_si512(), b = a;
    for (const std::byte* p = data; p != data + bytes; p += 128) {
      __builtin_prefetch(p + kAheadBytes);
      __builtin_prefetch(p + kAheadBytes + 64);
      a = _mm512_add_epi64(a, _mm512_load_si512(p));
      b = _mm512_add_epi64(b, _mm512_load_si512(p + 64));
    }
    alignas(64) uint64_t parts[8];
    _mm512_store_si512(parts, _mm512_add_epi64(a, b));
    return sum_of(parts);
  }
  __attribute__((target("avx2"))) static uint64_t sum_avx2(const std::byte* data, size_t bytes) {
    __m256i sums[4] = {};
    for (const std::byte* p = data; p != data + bytes; p += 128) {
      __builtin_prefetch(p + kAheadBytes);
      __builtin_prefetch(p + kAheadBytes + 64);
      const auto* lines = reinterpret_cast<const __m256i*>(p);
      for (int i = 0; i < 4; ++i) sums[i] = _mm256_add_epi64(sums[i], _mm256_load_si256(lines + i));
    }
    alignas(32) uint64_t parts[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(parts),
                       _mm256_add_epi64(_mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3])));
    return sum_of(parts);
  }
#endif
  static uint64_t sum_plain(const std::byte* data, size_t bytes) {
    uint64_t sums[16] = {};
    for (const std::byte* p = data; p != data + bytes; p += 128) {
      __builtin_prefetch(p + kAheadBytes);
      __builtin_prefetch(p + kAheadBytes + 64);
      const auto* words = reinterpret_cast<const uint64_t*>(p);
      for (int i = 0; i < 16; ++i) sums[i] += words[i];
    }
    return sum_of(sums);
  }
  template <size_t kParts>
  static uint64_t sum_of(const uint64_t (&parts)[kParts]) {
    uint64_t sum = 0;
    for (const uint64_t part : parts) sum += part;
    return sum;
  }
  static SumFn choose() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return sum_avx512;
    if (__builtin_cpu_supports("avx2")) return sum_avx2;
#endif
    return sum_plain;
  }

  ThreadPool& pool_;
  AlignedArray<std::byte> buffer_;
  AlignedArray<uint64_t> sums_;  // one per thread
  SumFn sum_ = choose();
};

}  // namespace seer
