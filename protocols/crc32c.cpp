#include "protocols/crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace seer {
namespace {

// The checksum is the remainder of a division: the bytes are a polynomial over GF(2), and this is the divisor, without its x^32. The
// lowest bit of a word has the highest power of x.
constexpr uint32_t kPolynomial = 0x82f63b78u;

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? kPolynomial ^ (c >> 1) : c >> 1;
    table[i] = c;
  }
  return table;
}
constexpr auto kTable = make_table();

// Each way below takes and returns the remainder itself, which is the complement of the checksum.

uint32_t table_remainder(const std::byte* p, size_t n, uint32_t crc) {
  for (; n > 0; --n, ++p) crc = kTable[(crc ^ static_cast<uint32_t>(*p)) & 0xff] ^ (crc >> 8);
  return crc;
}

#if defined(__x86_64__)
/// x^power mod the polynomial.
constexpr uint32_t power_of_x(size_t power) {
  uint32_t remainder = 0x80000000u;
  for (; power > 0; --power) remainder = (remainder & 1) != 0 ? kPolynomial ^ (remainder >> 1) : remainder >> 1;
  return remainder;
}

__attribute__((target("sse4.2"))) inline uint64_t crc_of_word(uint64_t crc, const std::byte* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return _mm_crc32_u64(crc, word);
}
__attribute__((target("sse4.2"))) uint32_t one_stream_remainder(const std::byte* p, size_t n, uint32_t crc) {
  uint64_t c = crc;
  for (; n >= 8; n -= 8, p += 8) c = crc_of_word(c, p);
  for (; n > 0; --n, ++p) c = _mm_crc32_u8(static_cast<uint32_t>(c), static_cast<uint8_t>(*p));
  return static_cast<uint32_t>(c);
}

/// The instruction takes three cycles, but one can start in every cycle, so three streams process a third of the bytes each. Then
/// the remainder of a third is multiplied by x once for every bit after that third. The exponent of the factor is lower by 33: in this
/// bit order a carry-less product of two words is x times too large, and taking its remainder multiplies it by x^32.
__attribute__((target("pclmul,sse4.2"))) uint32_t three_streams_remainder(const std::byte* p, size_t n, uint32_t crc) {
  constexpr size_t kThird = 680;  // three of them fit twice into a piece of copy_and_crc32c()
  constexpr uint32_t kOverOne = power_of_x(8 * kThird - 33), kOverTwo = power_of_x(8 * 2 * kThird - 33);
  const auto product = [](uint64_t a, uint32_t b) __attribute__((target("pclmul,sse4.2"))) {
    return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<int64_t>(a)),
                                                                        _mm_cvtsi64_si128(int64_t{b}), 0x00)));
  };
  for (; n >= 3 * kThird; n -= 3 * kThird, p += 3 * kThird) {
    uint64_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < kThird; i += 8) {
      a = crc_of_word(a, p + i);
      b = crc_of_word(b, p + kThird + i);
      c = crc_of_word(c, p + 2 * kThird + i);
    }
    crc = static_cast<uint32_t>(_mm_crc32_u64(0, product(a, kOverTwo) ^ product(b, kOverOne)) ^ c);
  }
  return one_stream_remainder(p, n, crc);
}

/// Folding: 256 bytes are kept as 16 words of 128 bits. In each step every word is multiplied by x^2048, which moves it over the next
/// 256 bytes, and added to the word there. The 256 bytes left at the end have the same remainder as all bytes.
///
/// A word is first * x^64 + second, so the two factors are x^(2048 + 64) and x^2048, each divided by x: as above, products are x times
/// too large.
__attribute__((target("avx512f,vpclmulqdq,sse4.2"))) uint32_t folding_remainder(const std::byte* p, size_t n, uint32_t crc) {
  constexpr size_t kRegisters = 4, kStepBytes = kRegisters * 64;
  if (n < 2 * kStepBytes) return one_stream_remainder(p, n, crc);
  constexpr auto kFirst = static_cast<int64_t>(uint64_t{power_of_x(8 * kStepBytes + 63)} << 32);
  constexpr auto kSecond = static_cast<int64_t>(uint64_t{power_of_x(8 * kStepBytes - 1)} << 32);
  const __m512i factors = _mm512_set4_epi64(kSecond, kFirst, kSecond, kFirst);
  __m512i words[kRegisters];
  for (size_t i = 0; i < kRegisters; ++i) words[i] = _mm512_loadu_si512(p + 64 * i);
  words[0] = _mm512_xor_si512(words[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  for (n -= kStepBytes, p += kStepBytes; n >= kStepBytes; n -= kStepBytes, p += kStepBytes)
    for (size_t i = 0; i < kRegisters; ++i)
      words[i] = _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(words[i], factors, 0x00),
                                           _mm512_clmulepi64_epi128(words[i], factors, 0x11), _mm512_loadu_si512(p + 64 * i),
                                           0x96);  // the sum of the three
  return one_stream_remainder(p, n, one_stream_remainder(reinterpret_cast<const std::byte*>(words), kStepBytes, 0));
}
#endif

template <uint32_t (*remainder)(const std::byte*, size_t, uint32_t)>
uint32_t sum(std::span<const std::byte> bytes, uint32_t crc) {
  return ~remainder(bytes.data(), bytes.size(), ~crc);
}

}  // namespace

std::span<const Crc32cWay> crc32c_ways() {
  static const std::vector<Crc32cWay> ways = [] {
    std::vector<Crc32cWay> found = {{"table", sum<table_remainder>}};
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("sse4.2")) return found;
    found.push_back({"sse4.2", sum<one_stream_remainder>});
    if (!__builtin_cpu_supports("pclmul")) return found;
    found.push_back({"sse4.2, three streams", sum<three_streams_remainder>});
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"))
      found.push_back({"avx512", sum<folding_remainder>});
#endif
    return found;
  }();
  return ways;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  static const auto fastest = crc32c_ways().back().sum;
  return fastest(bytes, crc);
}

uint32_t copy_and_crc32c(std::span<std::byte> to, const std::byte* from, uint32_t crc) {
  constexpr size_t kPieceBytes = 4 << 10;  // still in the L1 cache when it is summed
  for (size_t at = 0; at < to.size(); at += kPieceBytes) {
    const std::span<std::byte> piece = to.subspan(at, std::min(kPieceBytes, to.size() - at));
    std::memcpy(piece.data(), from + at, piece.size());
    crc = crc32c(piece, crc);
  }
  return crc;
}

}  // namespace seer
